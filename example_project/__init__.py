"""A small web shop on Celery, and the demo that kills its worker."""
