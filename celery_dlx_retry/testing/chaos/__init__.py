"""The chaos run: ``python -m celery_dlx_retry.testing.chaos``."""
