"""Messages and their headers as values: what is read from them and what is written into them."""
