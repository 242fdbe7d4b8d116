"""Losses: of values, of probabilities, of classes, of margins."""
