"""Count the calls, the files and the hops between files that one task needs in this package."""
