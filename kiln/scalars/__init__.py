"""Mathematics of one element: the language of scalars, and the functions written in it."""
