"""Products of matrices and vectors, and distances made of them."""
