"""Functions of tensors as graphs: `kiln.jit.trace` and what programs and exports are made from."""
