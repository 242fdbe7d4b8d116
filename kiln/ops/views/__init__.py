"""Arrays that look at another's memory, and their copies.

A view is one of five primitives. `diagonal` and `unfold` are of the kind `as_strided` under their own names:
the core makes the same view, and the derivative, told which diagonal it is, needs no strides. `as_strided`
itself refuses gradients where the tensor does not fill its memory, rather than put them elsewhere. `select`,
`split` and `unbind` are composites of slices that the core makes by itself (`native=`): several views are one
node.

A call of a view or a join enters no Python (`quick=True`): `native/binding/quick.cpp` has the usual form of
each, for tensors and plain ints that fit; the function in Python is what it means, and says what is wrong.
"""
