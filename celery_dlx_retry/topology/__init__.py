"""Exchanges, queues and bindings as values: their names, arguments and order."""
