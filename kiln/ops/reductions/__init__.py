"""Reductions over dims, running totals, and what is made of them."""
