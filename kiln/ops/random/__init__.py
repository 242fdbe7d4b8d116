"""What is drawn: numbers by position and seed, generators, distributions, dropout."""
