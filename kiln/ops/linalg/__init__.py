"""Linear algebra: calls of LAPACK as ops with derivatives, and what is made of them."""
