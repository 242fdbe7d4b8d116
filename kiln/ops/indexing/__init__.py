"""Elements read and written at positions that are data."""
