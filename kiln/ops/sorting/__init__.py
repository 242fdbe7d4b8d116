"""Sorted orders, quantiles, distinct values and counts."""
