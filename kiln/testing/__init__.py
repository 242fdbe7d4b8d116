"""How kiln is proved: comparisons, layouts, gradient checks and random programs. Nothing in kiln imports
it.
"""
