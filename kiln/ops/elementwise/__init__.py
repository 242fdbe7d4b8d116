"""Functions of one element at a time."""
