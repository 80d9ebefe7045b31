"""What was there before, on plain Celery; docs/example.md shows the difference to what is there now."""
