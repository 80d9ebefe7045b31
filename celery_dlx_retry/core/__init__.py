"""Compute: policies, topology, lanes, headers. Standard library only; no clock, no chance of its own."""
