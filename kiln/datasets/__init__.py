"""Small data sets that come with kiln: no download, nothing to install."""

from kiln.datasets.digits import load_digits

__all__ = ["load_digits"]
