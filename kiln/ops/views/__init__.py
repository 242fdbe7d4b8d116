"""Arrays that look at another's memory, and their copies."""
