"""Windows: convolutions, pooling and what else reads neighbourhoods."""
