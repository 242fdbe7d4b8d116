"""Graphs that are defined: placeholders, and what is made of them. Its names stand in `kiln.graph`."""
