"""What layers are made of: activations, norms, losses, attention, recurrence, updates."""
