"""How many calls, files and changes of file one task crosses in this package, from its delivery to its acknowledgement."""
