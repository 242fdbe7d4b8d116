// The core's own functions of views and joins, for callables that need no Python.
#pragma once

#include "binding/bind.h"

namespace kiln {

enum class CoreOp {
    as_strided,
    write,
    slice,
    reshape,
    permute,
    expand,
    select,
    unbind,
    split,
    split_with_sizes,
    concat,
    stack
};

// The function of a view at a number: of dims (as_strided, write, reshape, expand), which dim (slice,
// select).
Fn& view_fn(CoreOp op, int n);
// Of several views, or of a join: along a dim, and how many.
Fn& view_fn(CoreOp op, int dim, size_t count);
Fn& permute_fn(const Dims& order);

TensorRef reshaped(Tensor& x, const Dims& sizes);
TensorRef expanded(Tensor& x, const Dims& sizes);
TensorRef permuted(Tensor& x, const Dims& order);
TensorRef unsqueezed(Tensor& x, int dim);
// The views of x along a dim: a range, or one place without the dim.
TensorRef slice_view(Tensor& x, int dim, int64_t start, int64_t length, int64_t step);
TensorRef select_view(Tensor& x, int dim, int64_t place);

// Tensor.backward in its plain case; throws what is wrong.
PyObject* backward_from(PyObject* tensor, bool retain);

// How calls of a function that give tensors and plain ints are made without Python.
struct QuickForm;
// The form of that name; ValueError if there is none.
const QuickForm& quick_form(const char* name);
// The result; null, without an exception, where the call is of another form: then Python's function makes it,
// or says what is wrong.
PyObject* call_quick(const QuickForm& form, PyObject* const* args, Py_ssize_t count, PyObject* names);

}  // namespace kiln
