"""Attention: its primitives, what they mean written out, and the functions that call them."""
