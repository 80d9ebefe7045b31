"""Text and numbers that users and operators write: durations, rates, URLs, names of queues."""
