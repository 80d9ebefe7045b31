"""``celery dlx dead …``: see, understand and repair dead letters."""
