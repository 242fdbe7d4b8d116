"""Elements at other places: flipped, repeated, padded, joined."""
