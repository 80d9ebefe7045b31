"""A small shop, once in Django and once in Flask, with tasks that fail as real ones do: ``make shop``."""
