"""Mathematics of one element: functions of scalars, which the bodies of pointwise ops are made of."""
