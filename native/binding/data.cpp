// Values in and out: nested lists, buffers, single numbers.
#include "binding/bind.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/threads.h"

namespace kiln {

namespace {

// ---- tensor(data) ----

// Finds the shape of nested sequences and the kind of their numbers.
struct NestedShape {
    Dims sizes;
    Kind kind = Kind::bool_;
    bool any = false;
};

bool is_sequence(PyObject* object) { return PyList_Check(object) || PyTuple_Check(object); }

// The first `count` items of a sequence, which Python code that is asked for a number may change meanwhile.
template <class Use>
void each_item(PyObject* data, int64_t count, Use use) {
    for (int64_t i = 0; i < count; ++i) {
        KILN_CHECK(is_sequence(data) && i < PySequence_Fast_GET_SIZE(data), value,
                   "tensor: the data changed while it was read");
        use(Object::borrow(PySequence_Fast_GET_ITEM(data, i)).get());
    }
}

Number number_of(PyObject* data) {
    if (PyFloat_CheckExact(data)) return Number::of(PyFloat_AS_DOUBLE(data));
    Number number;
    if (is_tensor(data)) {
        const TensorRef x(&tensor_of(data));
        KILN_CHECK(x->numel == 1, value,
                   "only one element tensors can be converted to Python scalars, got shape ",
                   shape_text(x->sizes));
        ready(*x);
        return read_element(x->dtype, x->data());
    }
    KILN_CHECK(number_from(data, &number), type, "tensor: expected numbers, got ", Py_TYPE(data)->tp_name);
    return number;
}

// Where all items are floats and ints of Python's own, which no code is asked for: the widest kind so far.
bool plain_numbers(PyObject* data, Kind* kind) {
    PyObject* const* const items = PySequence_Fast_ITEMS(data);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(data); ++i)
        if (PyFloat_CheckExact(items[i]))
            *kind = Kind::float_;
        else if (PyLong_CheckExact(items[i]))
            *kind = std::max(*kind, Kind::int_);
        else
            return false;
    return true;
}

void measure(PyObject* data, size_t depth, NestedShape& shape) {
    KILN_CHECK(depth < 64, value, "tensor: the data is nested too deeply");
    if (!is_sequence(data)) {
        Number number = number_of(data);
        KILN_CHECK(depth == shape.sizes.size(), value, "expected sequence of length ",
                   shape.sizes[std::min(depth, shape.sizes.size() - 1)], " at dim ", depth,
                   " (got a number)");
        shape.kind = std::max(shape.kind, number.kind);
        shape.any = true;
        return;
    }
    int64_t count = PySequence_Fast_GET_SIZE(data);
    if (depth == shape.sizes.size()) {
        KILN_CHECK(!shape.any, value, "tensor: a sequence where a number was expected, at depth ", depth);
        shape.sizes.push_back(count);
    }
    KILN_CHECK(shape.sizes[depth] == count, value, "expected sequence of length ", shape.sizes[depth],
               " at dim ", depth, " (got ", count, ")");
    if (Kind kind = shape.kind; count && depth + 1 == shape.sizes.size() && plain_numbers(data, &kind)) {
        shape.kind = kind;
        shape.any = true;
        return;
    }
    each_item(data, count, [&](PyObject* item) { measure(item, depth + 1, shape); });
}

// A number must lie in the range of an integer dtype; negative ints count from an unsigned one's end.
void expect_in_range(const Number& number, DType dtype) {
    if (is_float(dtype) || dtype == DType::bool_) return;
    const int bits = int(8 * itemsize(dtype)) - (dtype != DType::uint8);
    const double end = std::ldexp(1.0, bits);
    bool fits;
    if (number.kind == Kind::float_)
        fits = number.real < end && (dtype == DType::uint8 ? number.real >= 0 : number.real >= -end);
    else
        fits = bits == 63 || (double(number.integer) < end &&
                              double(number.integer) >= (dtype == DType::uint8 ? 1 - end : -end));
    KILN_CHECK(fits, runtime, "value cannot be converted to type ", name(dtype), " without overflow");
}

// Writes a number of Python's own as it is: false where its dtype or value asks for more.
bool write_plain(PyObject* item, DType dtype, std::byte* to) {
    if (PyFloat_CheckExact(item) && (dtype == DType::float32 || dtype == DType::float64)) {
        const double value = PyFloat_AS_DOUBLE(item);
        const FloatEnvironment environment;  // a conversion is arithmetic
        const auto narrow = float(value);
        dtype == DType::float32 ? std::memcpy(to, &narrow, sizeof narrow)
                                : std::memcpy(to, &value, sizeof value);
        return true;
    }
    if (!PyLong_CheckExact(item) || dtype != DType::int64) return false;
    int overflow = 0;
    const auto value = int64_t(PyLong_AsLongLongAndOverflow(item, &overflow));
    std::memcpy(to, &value, sizeof value);
    return !overflow;
}

// Writes the numbers of nested sequences of this shape, no more of them than it has.
std::byte* fill(PyObject* data, size_t depth, const Dims& sizes, DType dtype, std::byte* to) {
    if (depth < sizes.size()) {
        each_item(data, sizes[depth], [&](PyObject* item) { to = fill(item, depth + 1, sizes, dtype, to); });
        return to;
    }
    if (write_plain(data, dtype, to)) return to + itemsize(dtype);
    Number number = number_of(data);
    expect_in_range(number, dtype);
    write_element(dtype, to, number);
    return to + itemsize(dtype);
}

PyObject* from_nested(PyObject*, PyObject* args) {
    PyObject *data, *dtype;
    if (!PyArg_ParseTuple(args, "OO:from_nested", &data, &dtype)) return nullptr;
    NestedShape shape;
    measure(data, 0, shape);
    DType type = dtype != Py_None                         ? dtype_from(dtype)
                 : shape.kind == Kind::bool_ && shape.any ? DType::bool_
                 : shape.kind == Kind::int_               ? DType::int64
                                                          : default_dtype();
    TensorRef tensor = new_tensor(type, shape.sizes);
    fill(data, 0, shape.sizes, type, tensor->data());
    return wrap(tensor);
}

// ---- tolist, item ----

PyObject* nested_list(const Tensor& x, int dim, const std::byte* at) {
    if (dim == x.ndim()) return number_object(read_element(x.dtype, at));
    Object list = checked(PyList_New(Py_ssize_t(x.sizes[dim])));
    int64_t step = x.strides[dim] * int64_t(itemsize(x.dtype));
    for (int64_t i = 0; i < x.sizes[dim]; ++i)
        PyList_SET_ITEM(list.get(), i, nested_list(x, dim + 1, at + i * step));
    return list.release();
}

PyObject* tensor_tolist(PyObject* self, PyObject*) {
    // Held: making lists may run finalizers, which may replace the tensor (x.data = y).
    const TensorRef x(&tensor_of(self));
    ready_to_read(*x);
    return nested_list(*x, 0, x->data());
}

PyObject* tensor_item(PyObject* self, PyObject*) {
    const TensorRef x(&tensor_of(self));
    KILN_CHECK(x->numel == 1, runtime, "a Tensor with ", x->numel, " elements cannot be converted to Scalar");
    ready_to_read(*x);
    return number_object(read_element(x->dtype, x->data()));
}

PyObject* tensor_data_ptr(PyObject* self, PyObject*) {
    const TensorRef x(&asked(tensor_of(self), "data_ptr"));
    ready_for_others(*x);
    x->storage->below = 0;
    x->storage->outside = for_good;
    return PyLong_FromVoidPtr(x->data());
}

PyObject* values_below(PyObject*, PyObject* args) {
    PyObject* x;
    unsigned int bound;
    if (!PyArg_ParseTuple(args, "OI:values_below", &x, &bound)) return nullptr;
    if (is_tensor(x)) tensor_of(x).storage->below = bound;
    Py_RETURN_NONE;
}

PyObject* tensor_nbytes(PyObject* self, void*) {
    const Tensor& x = tensor_of(self);
    return PyLong_FromLongLong(x.numel * int64_t(itemsize(x.dtype)));
}

// ---- buffers ----

DType dtype_of_format(const Py_buffer& view) {
    const char* format = view.format ? view.format : "B";
    KILN_CHECK(
        *format != '>' && *format != '!', value,
        "from_numpy: the array's byte order is not this machine's; use a.astype(a.dtype.newbyteorder('='))");
    if (*format == '<' || *format == '=' || *format == '@') ++format;
    KILN_CHECK(format[0] && !format[1], type, "from_numpy: cannot hold elements of format '", view.format,
               "'");
    const bool any_int = *format == 'l' || *format == 'q';  // a long has as many bytes as the system says
    for (int i = 0; i < dtype_count; ++i)
        if (const char* own = buffer_format(DType(i)))
            if (any_int ? kind(DType(i)) == Kind::int_ && itemsize(DType(i)) == size_t(view.itemsize)
                        : *own == *format)
                return DType(i);
    raise(ErrorKind::type, concat("from_numpy: cannot hold elements of format '", view.format, "'"));
}

// An object's buffer.
struct Borrowed {
    Py_buffer view = {};
    // The array, its base, ... to the owner of the memory, each of which keeps the next; empty: not known
    std::vector<PyObject*> owners;

    Borrowed(PyObject* object, int flags) {
        if (PyObject_GetBuffer(object, &view, flags | PyBUF_WRITABLE) == 0) return;
        PyErr_Clear();
        if (PyObject_GetBuffer(object, &view, flags) != 0) throw Error(ErrorKind::python, "");
    }
    ~Borrowed() { PyBuffer_Release(&view); }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
};

void drop_borrowed(void* context) {
    PyGILState_STATE state = PyGILState_Ensure();
    delete static_cast<Borrowed*>(context);
    PyGILState_Release(state);
}

bool is_numpy_array(PyObject* object) {
    return std::string_view(Py_TYPE(object)->tp_name) == "numpy.ndarray";
}

// From an array to the object that allocated its memory; empty where that is not found, or others may write
// to the memory without holding one of them (a mapped file).
std::vector<PyObject*> owners_of(PyObject* object) {
    std::vector<PyObject*> owners;
    while (is_numpy_array(object)) {
        owners.push_back(object);
        const Object base = checked(PyObject_GetAttrString(object, "base"));
        if (base.get() == Py_None) {
            const Object flags = checked(PyObject_GetAttrString(object, "flags"));
            const Object owns = checked(PyObject_GetAttrString(flags.get(), "owndata"));
            return PyObject_IsTrue(owns.get()) == 1 ? owners : std::vector<PyObject*>();
        }
        object = base.get();  // the array keeps it
    }
    if (!PyBytes_CheckExact(object) && !PyByteArray_CheckExact(object)) return {};
    owners.push_back(object);
    return owners;
}

// Whether someone has a reference, also a weak one, to any of what the memory is borrowed from.
bool owners_are_held(const Storage& storage) {
    const auto& owners = static_cast<Borrowed*>(storage.context)->owners;
    if (PyBytes_CheckExact(owners.back())) return false;  // nobody can write it
    return std::any_of(owners.begin(), owners.end(), [](PyObject* owner) {
        const Py_ssize_t weak = Py_TYPE(owner)->tp_weaklistoffset;
        return Py_REFCNT(owner) > 1 ||
               (weak > 0 && *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + weak));
    });
}

// nbytes at `data`, in an object's buffer.
StorageRef borrow(std::unique_ptr<Borrowed> from, void* data, size_t nbytes) {
    from->owners = owners_of(from->view.obj);
    const bool known = !from->owners.empty(), read_only = from->view.readonly;
    StorageRef storage = adopt(data, nbytes, drop_borrowed, from.release(), read_only);
    storage->borrowed = known;
    if (known) storage->outside = 0;
    return storage;
}

PyObject* wrap_foreign(const TensorRef& tensor) {
    PyObject* object = wrap(tensor);
    if (object) track(object);
    return object;
}

// The memory of a NumPy array (or another buffer) as a tensor, not copied.
PyObject* from_buffer(PyObject*, PyObject* object) {
    auto borrowed = std::make_unique<Borrowed>(object, PyBUF_FORMAT | PyBUF_STRIDES);
    const Py_buffer& view = borrowed->view;
    DType dtype = dtype_of_format(view);
    KILN_CHECK(size_t(view.itemsize) == itemsize(dtype), type, "from_numpy: elements of ",
               int64_t(view.itemsize), " bytes where ", name(dtype), " has ", itemsize(dtype));
    Dims sizes(size_t(view.ndim)), strides(size_t(view.ndim));
    for (int d = 0; d < view.ndim; ++d) {
        sizes[d] = view.shape[d];
        strides[d] = view.strides[d] / view.itemsize;
        KILN_CHECK(view.strides[d] % view.itemsize == 0, value,
                   "from_numpy: a stride is not a multiple of the element size");
        KILN_CHECK(view.strides[d] >= 0 || sizes[d] <= 1, value,
                   "At least one stride in the given numpy array is negative, and tensors with negative "
                   "strides are not currently supported. (You can probably work around this by making a "
                   "copy of your array with array.copy().)");
    }
    KILN_CHECK(reinterpret_cast<uintptr_t>(view.buf) % size_t(view.itemsize) == 0, value,
               "from_numpy: the array's memory is not aligned to its element size; copy it first");
    auto [low, high] = extent(sizes, strides, 0);
    size_t nbytes = checked_numel(sizes) ? size_t(high - low) * itemsize(dtype) : 0;
    TensorRef flat = new_tensor(dtype, Dims(), borrow(std::move(borrowed), view.buf, nbytes));
    flat = new_view(*flat, std::move(sizes), std::move(strides), 0);
    return wrap_foreign(flat);
}

// count elements of a bytes-like object from byte `offset`, sharing its memory.
PyObject* frombuffer(PyObject*, PyObject* args) {
    PyObject *object, *dtype_arg;
    long long count, offset;
    if (!PyArg_ParseTuple(args, "OOLL:frombuffer", &object, &dtype_arg, &count, &offset)) return nullptr;
    DType dtype = dtype_from(dtype_arg);
    auto borrowed = std::make_unique<Borrowed>(object, PyBUF_STRIDES);
    const Py_buffer& view = borrowed->view;
    KILN_CHECK(PyBuffer_IsContiguous(&view, 'C'), value, "frombuffer: the buffer is not contiguous");
    KILN_CHECK(offset >= 0 && offset <= view.len, value, "offset (", offset,
               " bytes) must be non-negative and no greater than buffer length (", int64_t(view.len),
               " bytes)");
    int64_t room = (view.len - offset) / int64_t(itemsize(dtype));
    KILN_CHECK(count >= 0 || (view.len - offset) % int64_t(itemsize(dtype)) == 0, value, "buffer length (",
               int64_t(view.len - offset), " bytes) after offset must be a multiple of element size (",
               itemsize(dtype), ")");
    if (count < 0) count = room;
    KILN_CHECK(count <= room, value, "requested buffer length (", count,
               " elements) after offset must not be greater than actual buffer length (", room, " elements)");
    std::byte* at = static_cast<std::byte*>(view.buf) + offset;
    KILN_CHECK(reinterpret_cast<uintptr_t>(at) % itemsize(dtype) == 0 || count == 0, value,
               "frombuffer: byte ", offset, " of the buffer is not aligned for ", name(dtype));
    StorageRef storage = borrow(std::move(borrowed), at, size_t(count) * itemsize(dtype));
    return wrap_foreign(new_tensor(dtype, Dims{count}, std::move(storage)));
}

PyObject* view_bits(PyObject*, PyObject* args) {
    PyObject *of, *dtype, *sizes, *strides;
    long long offset;
    if (!PyArg_ParseTuple(args, "OOOOL:view_bits", &of, &dtype, &sizes, &strides, &offset)) return nullptr;
    TensorRef view =
        new_view(expect_tensor(of, "view"), dims_from(sizes, "view"), dims_from(strides, "view"), offset);
    view->dtype = dtype_from(dtype);
    return wrap(view);
}

PyObject* check_in_range(PyObject*, PyObject* args) {
    PyObject *value, *dtype;
    Number number;
    if (!PyArg_ParseTuple(args, "OO:check_in_range", &value, &dtype)) return nullptr;
    if (number_from(value, &number)) expect_in_range(number, dtype_from(dtype));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"values_below", values_below, METH_VARARGS, "Positions in [0, a number) need no look."},
    {"view_bits", guard<view_bits>, METH_VARARGS,
     "A tensor's memory as elements of a dtype: (tensor, dtype, sizes, strides, offset)."},
    {"check_in_range", guard<check_in_range>, METH_VARARGS, "RuntimeError if a number does not fit a dtype."},
    {"from_nested", guard<from_nested>, METH_VARARGS,
     "A tensor of nested lists of numbers: (data, dtype or None)."},
    {"from_buffer", guard<from_buffer>, METH_O, "A NumPy array's memory as a tensor."},
    {"frombuffer", guard<frombuffer>, METH_VARARGS, "Bytes as a tensor: (buffer, dtype, count, offset)."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef tensor_methods[] = {
    {"tolist", guard<tensor_tolist>, METH_NOARGS, "The elements as nested lists of Python numbers."},
    {"item", guard<tensor_item>, METH_NOARGS, "The one element as a Python number."},
    {"data_ptr", guard<tensor_data_ptr>, METH_NOARGS, "The address of element 0."},
};
PyGetSetDef nbytes_getset = {"nbytes", tensor_nbytes, nullptr, "Bytes of all elements.", nullptr};

}  // namespace

PyObject* exporter_of(const Storage& storage) {
    return storage.deleter == drop_borrowed ? static_cast<Borrowed*>(storage.context)->view.obj : nullptr;
}

int add_tensor_data(PyObject* module) {
    others_hold = owners_are_held;
    if (add_to_tensor(tensor_methods, {&nbytes_getset, 1}) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
