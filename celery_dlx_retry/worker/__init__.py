"""Hook into Celery: the task class, the request class, the bootstep."""
