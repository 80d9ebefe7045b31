"""What one Celery app needs of us in every process: settings, names, publishers, and what it knows of the broker."""
