"""Decide whether a task is retried, after which delay, or why it becomes a dead letter. Pure: no clock, no broker."""
