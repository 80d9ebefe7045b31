"""The rules of `celery dlx doctor`: facts, checks, consequences and cures. Pure."""
