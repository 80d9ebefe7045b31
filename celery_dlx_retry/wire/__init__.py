"""Messages and their headers as values: read them and write them. Pure."""
