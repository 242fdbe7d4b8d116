// Calls of views, joins and backward with tensors and plain ints, made without Python. What Python says of
// these names (kiln/ops/views, kiln/ops/indexing/concatenation.py, kiln/tensor.py) holds: here is only what
// it does with such arguments, and whatever else a call has, or has wrong, goes to it.
#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "autograd/autograd.h"
#include "binding/views.h"
#include "call/trace.h"

namespace kiln {

struct QuickForm {
    using Call = PyObject* (*)(PyObject* const* values, Py_ssize_t count);
    const char* name;
    Call call;
    const char* params[4] = {};  // none: any number of arguments, all by place
    mutable PyObject* interned[4] = {};
};

namespace {

constexpr int64_t most_results = 4096;  // more are Python's to allow
constexpr size_t most_recorded = 32;    // arrays that a recording joins at once, as Python has it
constexpr size_t most_edges = 64;       // operands of a node that have gradients

bool int_from(PyObject* object, int64_t* value) {
    if (!object || !PyLong_CheckExact(object)) return false;
    int overflow = 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

// A dim among `ndim`, counted from the front; `missing` where none is given.
bool dim_from(PyObject* object, int ndim, int* dim, int64_t missing = 0) {
    int64_t value = missing;
    if (object && !int_from(object, &value)) return false;
    if (value < -ndim || value >= ndim) return false;
    *dim = int(value < 0 ? value + ndim : value);
    return true;
}

bool dims_of(PyObject* const* items, Py_ssize_t count, Dims* dims) {
    *dims = Dims(size_t(count));
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!int_from(items[i], &(*dims)[size_t(i)])) return false;
    return true;
}

bool is_list(PyObject* object) { return PyTuple_Check(object) || PyList_Check(object); }
bool dims_in(PyObject* list, Dims* dims) {
    return dims_of(PySequence_Fast_ITEMS(list), PySequence_Fast_GET_SIZE(list), dims);
}

// Ints that are given one by one or as one sequence, after the tensor.
bool dims_from_rest(PyObject* const* args, Py_ssize_t count, Dims* dims) {
    if (count == 2 && is_list(args[1])) return dims_in(args[1], dims);
    return count > 1 && dims_of(args + 1, count - 1, dims);
}

// ---- one view ----

using Values = PyObject* const*;

// The sizes asked for with a -1 replaced by what is left; false where they do not multiply up to the count.
bool infer(const Tensor& x, Dims& sizes) {
    int64_t rest = 1;
    int64_t* open = nullptr;
    for (int64_t& size : sizes) {
        if (size == -1 && !open)
            open = &size;
        else if (size < 0 || __builtin_mul_overflow(rest, size, &rest))
            return false;
    }
    if (!open) return rest == x.numel;
    if (!rest || x.numel % rest) return false;
    *open = x.numel / rest;
    return true;
}

template <bool must_view>
PyObject* reshape_form(Values args, Py_ssize_t count) {
    const TensorRef x(&tensor_of(args[0]));
    Dims sizes, strides;
    if (!dims_from_rest(args, count, &sizes) || !infer(*x, sizes)) return nullptr;
    if (must_view && !can_view(*x, sizes, &strides)) return nullptr;
    return wrap(reshaped(*x, sizes));
}

PyObject* view_as_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    if (!values[1] || !is_tensor(values[1])) return nullptr;
    const Tensor& like = tensor_of(values[1]);
    return x->contiguous && like.numel == x->numel ? wrap(reshaped(*x, Dims(like.sizes))) : nullptr;
}

PyObject* flatten_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int first, last;
    if (!dim_from(values[1], x->ndim(), &first) || !dim_from(values[2], x->ndim(), &last, -1) || first > last)
        return nullptr;
    Dims sizes;
    for (int d = 0; d < x->ndim(); ++d) {
        const int64_t size = x->sizes[size_t(d)];
        d > first&& d <= last ? sizes.back() *= size : (sizes.push_back(size), 0);
    }
    return wrap(reshaped(*x, sizes));
}

PyObject* squeeze_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim = -1;
    if (values[1] && !dim_from(values[1], x->ndim(), &dim)) return nullptr;
    Dims sizes;
    for (int d = 0; d < x->ndim(); ++d)
        if (x->sizes[size_t(d)] != 1 || (dim >= 0 && d != dim)) sizes.push_back(x->sizes[size_t(d)]);
    return wrap(reshaped(*x, sizes));
}

PyObject* unsqueeze_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim;
    if (!values[1] || !dim_from(values[1], x->ndim() + 1, &dim)) return nullptr;
    return wrap(unsqueezed(*x, dim));
}

Dims in_order(int ndim) {
    Dims order;
    for (int d = 0; d < ndim; ++d) order.push_back(d);
    return order;
}

PyObject* transpose_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int a, b;
    if (x->ndim() < 2 || !values[1] || !values[2] || !dim_from(values[1], x->ndim(), &a) ||
        !dim_from(values[2], x->ndim(), &b))
        return nullptr;
    Dims order = in_order(x->ndim());
    std::swap(order[size_t(a)], order[size_t(b)]);
    return wrap(permuted(*x, order));
}

PyObject* t_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    if (x->ndim() > 2) return nullptr;
    Dims order = in_order(x->ndim());
    std::reverse(order.begin(), order.end());
    return wrap(permuted(*x, order));
}

// x.T of a matrix, x.mT of a batch of them.
template <bool batched>
PyObject* transposed_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    const int ndim = x->ndim();
    if (ndim < 2 || (ndim > 2 && !batched)) return nullptr;
    Dims order = in_order(ndim);
    std::swap(order[size_t(ndim - 1)], order[size_t(ndim - 2)]);
    return wrap(permuted(*x, order));
}

PyObject* permute_form(Values args, Py_ssize_t count) {
    const TensorRef x(&tensor_of(args[0]));
    Dims order;
    if (!dims_from_rest(args, count, &order) || order.size() != x->sizes.size()) return nullptr;
    uint64_t seen = 0;
    for (int64_t& dim : order) {
        if (dim < -x->ndim() || dim >= x->ndim() || x->ndim() > 64) return nullptr;
        dim += dim < 0 ? x->ndim() : 0;
        seen |= uint64_t(1) << dim;
    }
    return std::popcount(seen) == x->ndim() ? wrap(permuted(*x, order)) : nullptr;
}

PyObject* expand_form(Values args, Py_ssize_t count) {
    const TensorRef x(&tensor_of(args[0]));
    Dims sizes;
    if (!dims_from_rest(args, count, &sizes) || sizes.size() < x->sizes.size()) return nullptr;
    const size_t extra = sizes.size() - x->sizes.size();
    for (size_t d = 0; d < sizes.size(); ++d) {
        const int64_t have = d < extra ? 1 : x->sizes[d - extra];
        if (sizes[d] == -1 && d >= extra) sizes[d] = have;
        if (sizes[d] < 0 || (have != 1 && have != sizes[d])) return nullptr;
    }
    return wrap(expanded(*x, sizes));
}

PyObject* narrow_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim;
    int64_t start, length;
    if (!values[1] || !dim_from(values[1], x->ndim(), &dim) || !int_from(values[2], &start) ||
        !int_from(values[3], &length))
        return nullptr;
    const int64_t size = x->sizes[size_t(dim)];
    if (start < -size || start > size) return nullptr;
    start += start < 0 ? size : 0;
    if (length < 0 || length > size - start) return nullptr;
    return wrap(slice_view(*x, dim, start, length, 1));
}

PyObject* select_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim, place;
    if (!values[1] || !values[2] || !dim_from(values[1], x->ndim(), &dim)) return nullptr;
    const int64_t size = x->sizes[size_t(dim)];
    if (size > INT_MAX || !dim_from(values[2], int(size), &place)) return nullptr;
    return wrap(select_view(*x, dim, place));
}

// ---- several views ----

PyObject* several(CoreOp op, const TensorRef& x, int dim, std::span<const int64_t> lengths, int64_t count) {
    Operands operands;
    operands.reserve(lengths.size() + 1);
    operands.push_back({x.get(), {}});
    for (int64_t length : lengths) operands.push_back({nullptr, Number::of(length)});
    const Results views = call(view_fn(op, dim, size_t(count)), {operands.data(), operands.size()});
    return tuple_of({views.data(), views.size()}).release();
}

// Parts of `step`, the last one what is left.
PyObject* in_steps(const TensorRef& x, int dim, int64_t step) {
    const int64_t size = x->sizes[size_t(dim)], count = (size - 1) / step + 1;
    if (count > most_results) return nullptr;
    Dims lengths(size_t(count), step);
    lengths.back() = size - (count - 1) * step;
    return several(CoreOp::split, x, dim, {lengths.data(), lengths.size()}, count);
}

PyObject* chunk_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim;
    int64_t chunks;
    if (!dim_from(values[2], x->ndim(), &dim) || !int_from(values[1], &chunks) || chunks < 1) return nullptr;
    const int64_t size = x->sizes[size_t(dim)];
    return size ? in_steps(x, dim, (size - 1) / chunks + 1) : nullptr;
}

PyObject* split_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim;
    int64_t step;
    if (!values[1] || !dim_from(values[2], x->ndim(), &dim)) return nullptr;
    const int64_t size = x->sizes[size_t(dim)];
    if (int_from(values[1], &step)) return size && step > 0 ? in_steps(x, dim, step) : nullptr;
    Dims lengths;
    if (!is_list(values[1]) || !dims_in(values[1], &lengths)) return nullptr;
    int64_t left = size;
    for (int64_t length : lengths) {
        if (length < 0 || length > left) return nullptr;
        left -= length;
    }
    if (left || lengths.empty() || int64_t(lengths.size()) > most_results) return nullptr;
    const auto count = int64_t(lengths.size());
    return several(CoreOp::split_with_sizes, x, dim, {lengths.data(), lengths.size()}, count);
}

PyObject* unbind_form(Values values, Py_ssize_t) {
    const TensorRef x(&tensor_of(values[0]));
    int dim;
    if (!dim_from(values[1], x->ndim(), &dim)) return nullptr;
    const int64_t count = x->sizes[size_t(dim)];
    return count && count <= most_results ? several(CoreOp::unbind, x, dim, {}, count) : nullptr;
}

PyObject* iter_form(Values values, Py_ssize_t) {
    PyObject* const given[2] = {values[0], nullptr};
    const Object views = Object::steal(unbind_form(given, 2));
    return views ? PyObject_GetIter(views.get()) : nullptr;
}

// ---- backward ----

bool is_left_out(PyObject* value) { return !value || value == Py_None; }

PyObject* backward_form(Values values, Py_ssize_t) {
    if (!is_left_out(values[1]) || !(is_left_out(values[2]) || PyBool_Check(values[2]))) return nullptr;
    return backward_from(values[0], values[2] == Py_True);
}

// ---- joins ----

// Many are joined in groups of `most` first.
TensorRef joined(CoreOp op, int dim, std::span<const Operand> operands, size_t most) {
    if (operands.size() <= most) return call_one(view_fn(op, dim, operands.size()), operands);
    Results groups;
    Operands parts;
    for (size_t k = 0; k < operands.size(); k += most) {
        groups.push_back(joined(op, dim, operands.subspan(k, std::min(most, operands.size() - k)), most));
        parts.push_back({groups.back().get(), {}});
    }
    return joined(CoreOp::concat, dim, {parts.data(), parts.size()}, most);
}

// Arrays of one dtype and shape (but for `dim`, of a concat) joined.
template <CoreOp op>
PyObject* join_form(Values values, Py_ssize_t) {
    PyObject* list = values[0];
    if (!list || !(PyTuple_CheckExact(list) || PyList_CheckExact(list))) return nullptr;
    if (values[2] && values[2] != Py_None) return nullptr;  // out=
    const auto count = size_t(PySequence_Fast_GET_SIZE(list));
    PyObject** items = PySequence_Fast_ITEMS(list);
    int dim;
    if (!count || !is_tensor(items[0])) return nullptr;
    const Tensor& first = tensor_of(items[0]);
    if (!dim_from(values[1], first.ndim() + (op == CoreOp::stack), &dim)) return nullptr;
    Held held;
    Operands operands;
    held.reserve(count);
    operands.reserve(count);
    bool recorded = false;
    for (size_t i = 0; i < count; ++i) {
        if (!is_tensor(items[i])) return nullptr;
        const Tensor& x = tensor_of(items[i]);
        if (x.dtype != first.dtype || x.ndim() != first.ndim()) return nullptr;
        for (int d = 0; d < x.ndim(); ++d)
            if (x.sizes[size_t(d)] != first.sizes[size_t(d)] && (op == CoreOp::stack || d != dim))
                return nullptr;
        recorded = recorded || takes_part(x);
        operands.push_back({hold(items[i], held), {}});
    }
    const size_t most = current_recording()          ? most_recorded
                        : recorded && grad_enabled() ? most_edges
                                                     : SIZE_MAX;
    return wrap(joined(op, dim, {operands.data(), operands.size()}, most));
}

const QuickForm forms[] = {
    {"reshape", reshape_form<false>},
    {"view", reshape_form<true>},
    {"permute", permute_form},
    {"expand", expand_form},
    {"view_as", view_as_form, {"input", "other"}},
    {"flatten", flatten_form, {"input", "start_dim", "end_dim"}},
    {"squeeze", squeeze_form, {"input", "dim"}},
    {"unsqueeze", unsqueeze_form, {"input", "dim"}},
    {"transpose", transpose_form, {"input", "dim0", "dim1"}},
    {"t", t_form, {"input"}},
    {"T", transposed_form<false>, {"input"}},
    {"mT", transposed_form<true>, {"input"}},
    {"narrow", narrow_form, {"input", "dim", "start", "length"}},
    {"select", select_form, {"input", "dim", "index"}},
    {"chunk", chunk_form, {"input", "chunks", "dim"}},
    {"split", split_form, {"input", "split_size_or_sections", "dim"}},
    {"unbind", unbind_form, {"input", "dim"}},
    {"iter", iter_form, {"input"}},
    {"backward", backward_form, {"self", "gradient", "retain_graph"}},
    {"cat", join_form<CoreOp::concat>, {"tensors", "dim", "out"}},
    {"stack", join_form<CoreOp::stack>, {"tensors", "dim", "out"}},
};

// Arguments by the form's parameters, null where none is given; false if the call has others.
bool bind_to(const QuickForm& form, PyObject* const* args, Py_ssize_t count, PyObject* names,
             PyObject* (&values)[4]) {
    if (count > 4) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (!form.params[i]) return false;
        values[i] = args[i];
    }
    for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); ++k) {
        size_t i = 0;
        while (i < 4 && form.interned[i] != PyTuple_GET_ITEM(names, k)) ++i;
        if (i == 4 || values[i]) return false;
        values[i] = args[count + k];
    }
    return true;
}

}  // namespace

const QuickForm& quick_form(const char* name) {
    for (const QuickForm& form : forms)
        if (!std::strcmp(form.name, name)) {
            for (size_t i = 0; i < 4 && form.params[i] && !form.interned[i]; ++i)
                form.interned[i] = PyUnicode_InternFromString(form.params[i]);
            return form;
        }
    raise(ErrorKind::value, concat("quicken: no form '", name, "'"));
}

PyObject* call_quick(const QuickForm& form, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (traces) return nullptr;  // the Python tells which sizes it reads
    if (!form.params[0]) return !names && count && is_tensor(args[0]) ? form.call(args, count) : nullptr;
    PyObject* values[4] = {};
    if (!bind_to(form, args, count, names, values) || !values[0]) return nullptr;
    const bool joins = form.params[0][0] == 't';
    return joins || is_tensor(values[0]) ? form.call(values, count) : nullptr;
}

}  // namespace kiln
