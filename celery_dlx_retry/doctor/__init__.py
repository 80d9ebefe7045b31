"""What `celery dlx doctor` knows: facts, checks and rules."""
