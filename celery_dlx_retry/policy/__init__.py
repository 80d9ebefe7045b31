"""Whether a task is retried, after which delay, and why it becomes a dead letter. No clock and no broker."""
