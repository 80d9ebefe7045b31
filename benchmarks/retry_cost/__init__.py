"""How many instructions a whole retry takes in a real worker."""
