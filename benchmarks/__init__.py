"""Measurements that take minutes; run by hand."""
