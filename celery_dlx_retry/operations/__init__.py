"""What the command line, a web page or a script can do: no click, no printing."""
