"""Ways for a retry to wait, measured side by side in one run: ``python -m benchmarks.compare``."""
