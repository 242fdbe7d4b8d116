// Operators of tensors: which function each calls, and what needs no function.
#include "binding/op.h"
#include "binding/views.h"
#include "call/trace.h"

#include <atomic>
#include <iterator>
#include <string_view>

#include "autograd/autograd.h"
#include "call/compiler.h"

namespace kiln {

namespace {

constexpr std::string_view slot_names[] = {
    "add", "sub",    "mul",    "div",     "floor_divide", "remainder", "pow", "matmul", "and", "or",
    "xor", "lshift", "rshift", "neg",     "pos",          "invert",    "abs", "eq",     "ne",  "lt",
    "le",  "gt",     "ge",     "getitem", "setitem",      "array",     "to",  "fill",   "new", "take_at"};
using Slot = size_t;  // of a name
consteval Slot slot_of(std::string_view name) {
    Slot slot = 0;
    while (slot_names[slot] != name) ++slot;
    return slot;
}
PyObject* operators[std::size(slot_names)] = {};

PyObject* set_operator(PyObject*, PyObject* args) {
    const char* name;
    PyObject* function;
    if (!PyArg_ParseTuple(args, "sO:set_operator", &name, &function)) return nullptr;
    for (Slot slot = 0; slot < std::size(slot_names); ++slot)
        if (slot_names[slot] == name) {
            operators[slot] = Py_NewRef(function);  // a call of the one before may be running: it is kept
            Py_RETURN_NONE;
        }
    PyErr_Format(PyExc_ValueError, "set_operator: no operator '%s'", name);
    return nullptr;
}

// A tensor or number as an operand; false for anything else.
inline bool take(PyObject* object, Operand& operand, Held& held) {
    if (!is_tensor(object)) return number_from(object, &operand.number);
    operand.tensor = hold(object, held);
    return true;
}

// What may stand beside a tensor: tensors and numbers as they are, an array as a tensor; else null.
Object beside(PyObject* object) {
    Number number;
    if (is_tensor(object) || number_from(object, &number)) return Object::borrow(object);
    Object tensor = checked(PyObject_CallOneArg(operators[slot_of("array")], object));
    return tensor.get() == Py_None ? Object() : std::move(tensor);
}

PyObject* binary(Slot slot, PyObject* lhs, PyObject* rhs) {
    PyObject* function = operators[slot];
    if (!function) return Py_NewRef(Py_NotImplemented);
    // a pointwise op of tensors and numbers: no argument binding at all
    Held held;
    Operand operands[2];
    Fn* fn = plain_binary(function);
    if (fn && take(lhs, operands[0], held) && take(rhs, operands[1], held))
        return wrap(call_one(*fn, operands));
    if (stand_ins) [[unlikely]] {
        PyObject* given[2] = {lhs, rhs};
        if (Object result = taken_over(function, given, 2, nullptr, slot_names[slot].data()))
            return result.release();
    }
    Object left = beside(lhs), right = beside(rhs);
    if (!left || !right) return Py_NewRef(Py_NotImplemented);
    PyObject* args[2] = {left.get(), right.get()};
    return in_python([&] { return PyObject_Vectorcall(function, args, 2, nullptr); });
}

template <Slot slot>
PyObject* binary_slot(PyObject* lhs, PyObject* rhs) {
    return binary(slot, lhs, rhs);
}

template <Slot slot>
PyObject* unary_slot(PyObject* x) {
    return operators[slot] ? PyObject_CallOneArg(operators[slot], x) : Py_NewRef(Py_NotImplemented);
}

// x op= y: the op with its result written into x.
template <Slot slot>
PyObject* inplace_slot(PyObject* lhs, PyObject* rhs) {
    if (!is_tensor(lhs) || !operators[slot]) return binary(slot, lhs, rhs);
    Held held;
    Operand operands[2];
    Fn* fn = plain_binary(operators[slot]);
    if (fn && take(lhs, operands[0], held) && take(rhs, operands[1], held))
        return write_into(*fn, operands, lhs);
    if (stand_ins) [[unlikely]] {
        PyObject* given[2] = {lhs, rhs};
        const std::string name = std::string(slot_names[slot]) + "_";
        if (Object result = taken_over(operators[slot], given, 2, nullptr, name.c_str()))
            return result.release();
    }
    Object other = is_symbolic(rhs) ? Object::borrow(rhs) : beside(rhs);
    if (!other) return Py_NewRef(Py_NotImplemented);
    static PyObject* out = Py_BuildValue("(s)", "out");
    PyObject* args[3] = {lhs, other.get(), lhs};
    return PyObject_Vectorcall(operators[slot], args, 2, out);
}

PyObject* power(PyObject* lhs, PyObject* rhs, PyObject*) { return binary(slot_of("pow"), lhs, rhs); }
PyObject* inplace_power(PyObject* lhs, PyObject* rhs, PyObject*) {
    return inplace_slot<slot_of("pow")>(lhs, rhs);
}

// The tensor as another dtype; itself if it is of that one.
PyObject* cast_to(PyObject* self, DType dtype) {
    const TensorRef x(&tensor_of(self));
    if (x->dtype == dtype) return Py_NewRef(self);
    Operand operand{x.get(), {}};
    return wrap(call_one(*core_fns().convert[int(dtype)], {&operand, 1}));
}
// Calls the method that Python has for what the core leaves to it.
PyObject* in_full(Slot slot, PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    return in_python([&]() -> PyObject* {
        Object method = Object::steal(PyMethod_New(operators[slot], self));
        return method ? PyObject_Vectorcall(method.get(), args, size_t(count), names) : nullptr;
    });
}

// x.float(): with `memory_format`, x.to(float32, memory_format=...).
template <DType dtype>
PyObject* cast(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (!count && !names) return cast_to(self, dtype);
    const bool one = !count && PyTuple_GET_SIZE(names) == 1;
    if (!one || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "memory_format") != 0)
        return PyErr_Format(PyExc_TypeError, "a cast takes no argument but memory_format, by its name");
    PyObject* given[2] = {dtype_object(dtype), args[0]};
    return in_full(slot_of("to"), self, given, 1, names);
}

PyObject* tensor_to(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (count == 1 && !names && Py_TYPE(args[0]) == dtype_type) return cast_to(self, dtype_from(args[0]));
    return in_full(slot_of("to"), self, args, count, names);
}

// A number that fits the dtype, written over a whole tensor: the rest (views with gaps, derivatives, tensors)
// is left to Python.
PyObject* tensor_fill(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const Tensor& x = tensor_of(self);
    Operand operand;
    if (count != 1 || names || !(PyFloat_Check(args[0]) || PyLong_Check(args[0])) ||
        !number_from(args[0], &operand.number) || !(is_float(x.dtype) || args[0] == Py_False) ||
        !x.contiguous || (grad_enabled() && (x.requires_grad() || x.base)))
        return in_full(slot_of("fill"), self, args, count, names);
    return write_into(*core_fns().copy, {&operand, 1}, self);
}
PyObject* tensor_zero(PyObject* self, PyObject*) {
    PyObject* const zero = Py_False;
    return tensor_fill(self, &zero, 1, nullptr);
}

// A slice whose bounds are numbers of Python's: what else has an index may be a size that varies.
bool is_plain_slice(PyObject* entry) {
    if (!PySlice_Check(entry)) return false;
    const auto* slice = reinterpret_cast<PySliceObject*>(entry);
    for (PyObject* bound : {slice->start, slice->stop, slice->step})
        if (bound != Py_None && !PyLong_Check(bound)) return false;
    return true;
}

// The dims of x that the entries of a key take up, and whether they are ints, slices, None and one Ellipsis.
bool is_basic(std::span<PyObject* const> entries, int* dims) {
    int ellipses = 0;
    *dims = 0;
    for (PyObject* entry : entries) {
        if (entry == Py_Ellipsis)
            ++ellipses;
        else if (PyLong_CheckExact(entry) || is_plain_slice(entry))
            ++*dims;
        else if (entry != Py_None)
            return false;
    }
    return ellipses <= 1;
}

// x[key] of ints, slices, None and an Ellipsis, which are the views kiln/ops/indexing/getitem.py would make;
// null (and no exception) where a key is anything else, is wrong, or changes nothing: that is told there.
TensorRef basic_item(Tensor& x, PyObject* key) {
    const bool several = PyTuple_CheckExact(key);
    const std::span<PyObject* const> entries(several ? &PyTuple_GET_ITEM(key, 0) : &key,
                                             several ? size_t(PyTuple_GET_SIZE(key)) : 1);
    int used;
    if (!is_basic(entries, &used) || used > x.ndim()) return nullptr;
    TensorRef view;
    int dim = 0;
    for (PyObject* entry : entries) {
        Tensor& from = view ? *view : x;
        if (entry == Py_Ellipsis) {
            dim += x.ndim() - used;
        } else if (entry == Py_None) {
            view = unsqueezed(from, dim++);
        } else if (const int64_t size = from.sizes[size_t(dim)]; PyLong_CheckExact(entry)) {
            int overflow = 0;
            const int64_t place = PyLong_AsLongLongAndOverflow(entry, &overflow);
            if (overflow || place < -size || place >= size) return nullptr;
            if (place < 0) note_sizes_read(from);
            view = select_view(from, dim, place < 0 ? place + size : place);
        } else {
            Py_ssize_t start, stop, step;
            if (PySlice_Unpack(entry, &start, &stop, &step) < 0) throw Error(ErrorKind::python, "");
            if (step < 1) return nullptr;
            note_sizes_read(from);
            Py_ssize_t length = PySlice_AdjustIndices(size, &start, &stop, step);
            if (start != 0 || length != size) view = slice_view(from, dim, start, length, step);
            ++dim;
        }
    }
    return view;
}

// The positions along dim 0 that a key says which is one array: a tensor of them, or a list of ints. Null,
// and no exception, for any other key.
Object positions_in(const Tensor& x, PyObject* key) {
    if (!x.ndim()) return {};
    if (is_tensor(key)) {
        const Tensor& index = tensor_of(key);
        return index.dtype == DType::int64 && index.ndim() ? Object::borrow(key) : Object();
    }
    if (!PyList_CheckExact(key) || !PyList_GET_SIZE(key)) return {};
    const TensorRef places = new_tensor(DType::int64, {int64_t(PyList_GET_SIZE(key))});
    auto* values = reinterpret_cast<int64_t*>(places->data());
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(key); ++i) {
        PyObject* place = PyList_GET_ITEM(key, i);
        int overflow = 0;
        if (!PyLong_CheckExact(place)) return {};
        values[i] = PyLong_AsLongLongAndOverflow(place, &overflow);
        if (overflow) return {};
    }
    return Object::steal(wrap(places));
}

PyObject* get_item(PyObject* x, PyObject* key) {
    if (TensorRef view = basic_item(*TensorRef(&tensor_of(x)), key)) return wrap(view);
    if (const Object places = positions_in(tensor_of(x), key)) {
        static PyObject* const first = PyLong_FromLong(0);
        PyObject* args[3] = {x, first, places.get()};
        PyObject* rows =
            in_python([&] { return PyObject_Vectorcall(operators[slot_of("take_at")], args, 3, nullptr); });
        if (rows || !PyErr_ExceptionMatches(PyExc_IndexError)) return rows;
        PyErr_Clear();  // which is said in terms of the key below
    }
    PyObject* args[2] = {x, key};
    if (stand_ins) [[unlikely]]
        if (Object result = taken_over(operators[slot_of("getitem")], args, 2, nullptr, "getitem"))
            return result.release();
    return in_python([&] { return PyObject_Vectorcall(operators[slot_of("getitem")], args, 2, nullptr); });
}

// x[key] = value of such a key, and a number that fits the dtype, or a tensor of the view's shape, where
// nothing is differentiated: false where it is anything else, which is left to Python.
bool set_basic_item(Tensor& x, PyObject* key, PyObject* value) {
    Operand operand;
    const bool given = is_tensor(value);
    if (given)
        operand.tensor = &tensor_of(value);
    else if (is_float(x.dtype) ? !(PyFloat_CheckExact(value) || PyLong_CheckExact(value))
                               : !(x.dtype == DType::int64 && PyLong_CheckExact(value)))
        return false;
    const Storage* memory = x.storage.get();
    if (traces || stand_ins || !memory || memory->read_only || memory->inference || !x.contiguous ||
        (!given && !number_from(value, &operand.number)) ||
        (given && (operand.tensor->storage.get() == memory || !operand.tensor->storage)) ||
        (grad_enabled() && (takes_part(x) || (given && takes_part(*operand.tensor)))))
        return false;
    const TensorRef view = basic_item(x, key);
    if (!view || (given && !(operand.tensor->sizes == view->sizes))) return false;
    Fn& fn = given ? *core_fns().convert[int(x.dtype)] : *core_fns().copy;
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, {&operand, 1}});
    call(fn, {&operand, 1}, {&view, 1});
    return true;
}

int set_item(PyObject* x, PyObject* index, PyObject* value) {
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "Tensor does not support deleting items");
        return -1;
    }
    if (set_basic_item(*TensorRef(&tensor_of(x)), index, value)) return 0;
    PyObject* args[3] = {x, index, value};
    Object result = Object::steal(PyObject_Vectorcall(operators[slot_of("setitem")], args, 3, nullptr));
    return result ? 0 : -1;
}

// The one element, for bool(x), int(x), float(x).
Number single(PyObject* self, const char* what) {
    const TensorRef x(&tensor_of(self));
    KILN_CHECK(x->numel == 1, value, what,
               ": only one element tensors can be converted to Python scalars, got shape ",
               shape_text(x->sizes));
    ready_to_read(*x);
    return read_element(x->dtype, x->data());
}

int tensor_bool(PyObject* self) {
    const Tensor& x = tensor_of(self);
    KILN_CHECK(x.numel == 1, runtime, "Boolean value of Tensor with ",
               x.numel ? "more than one value" : "no values", " is ambiguous (shape ", shape_text(x.sizes),
               ")");
    Number n = single(self, "bool()");
    return int(n.kind == Kind::float_ ? n.real != 0 : n.integer != 0);
}
PyObject* tensor_int(PyObject* self) {
    Number n = single(self, "int()");
    return n.kind == Kind::float_ ? PyLong_FromDouble(n.real) : PyLong_FromLongLong(n.integer);
}
PyObject* tensor_float(PyObject* self) {
    static std::atomic<bool> warned =
        false;  // once in a process: in a loop the number is often what is meant
    Number n = single(self, "float()");
    if (grad_enabled() && tensor_of(self).requires_grad() && !warned.exchange(true) &&
        PyErr_WarnEx(PyExc_UserWarning,
                     "Converting a tensor with requires_grad=True to a scalar may lead to unexpected "
                     "behavior.\nConsider using tensor.detach() first.",
                     1) < 0)
        return nullptr;
    return PyFloat_FromDouble(n.as_double());
}
PyObject* tensor_index(PyObject* self) {
    const Tensor& x = tensor_of(self);
    KILN_CHECK(!is_float(x.dtype) && x.numel == 1, type,
               "only integer tensors of a single element can be converted to an index");
    return PyLong_FromLongLong(single(self, "index").integer);
}

PyObject* compare(PyObject* lhs, PyObject* rhs, int operation) {
    static constexpr Slot slots[] = {slot_of("lt"), slot_of("le"), slot_of("eq"),
                                     slot_of("ne"), slot_of("gt"), slot_of("ge")};
    return binary(slots[operation], lhs, rhs);
}

PyMethodDef casts[] = {
    {"bool", method<cast<DType::bool_>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as bool; itself if it is."},
    {"byte", method<cast<DType::uint8>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as uint8; itself if it is."},
    {"char", method<cast<DType::int8>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as int8; itself if it is."},
    {"short", method<cast<DType::int16>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as int16; itself if it is."},
    {"int", method<cast<DType::int32>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as int32; itself if it is."},
    {"long", method<cast<DType::int64>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as int64; itself if it is."},
    {"half", method<cast<DType::float16>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as float16; itself if it is."},
    {"bfloat16", method<cast<DType::bfloat16>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as bfloat16; itself if it is."},
    {"float", method<cast<DType::float32>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as float32; itself if it is."},
    {"double", method<cast<DType::float64>>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as float64; itself if it is."},
    {"fill_", method<tensor_fill>(), METH_FASTCALL | METH_KEYWORDS,
     "Writes one number (or the element of a 0-d array) everywhere in the tensor; returns it."},
    {"zero_", guard<tensor_zero>, METH_NOARGS, "Writes 0 everywhere in the tensor; returns it."},
    {"to", method<tensor_to>(), METH_FASTCALL | METH_KEYWORDS,
     "The tensor as another dtype (an argument of its own, or that of a tensor given); itself if nothing\n"
     "changes.\n\n>>> kiln.tensor([1, 2]).to(kiln.float32)\ntensor([1., 2.])"},
};

// Tensor(...): what the class is called with goes up whole.
PyObject* construct(PyTypeObject* type, PyObject* args, PyObject* named) {
    return in_python([&] {
        return PyObject_CallFunction(operators[slot_of("new")], "OOO", type, args, named ? named : Py_None);
    });
}

PyMethodDef functions[] = {
    {"set_operator", set_operator, METH_VARARGS, "Sets what an operator of Tensor calls."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::span<const PyType_Slot> operator_slots() {
    static const PyType_Slot slots[] = {
        {Py_nb_add, slot<binary_slot<slot_of("add")>>()},
        {Py_nb_subtract, slot<binary_slot<slot_of("sub")>>()},
        {Py_nb_multiply, slot<binary_slot<slot_of("mul")>>()},
        {Py_nb_remainder, slot<binary_slot<slot_of("remainder")>>()},
        {Py_nb_power, slot<power>()},
        {Py_nb_negative, slot<unary_slot<slot_of("neg")>>()},
        {Py_nb_positive, slot<unary_slot<slot_of("pos")>>()},
        {Py_nb_absolute, slot<unary_slot<slot_of("abs")>>()},
        {Py_nb_bool, slot<tensor_bool>()},
        {Py_nb_invert, slot<unary_slot<slot_of("invert")>>()},
        {Py_nb_and, slot<binary_slot<slot_of("and")>>()},
        {Py_nb_xor, slot<binary_slot<slot_of("xor")>>()},
        {Py_nb_or, slot<binary_slot<slot_of("or")>>()},
        {Py_nb_int, slot<tensor_int>()},
        {Py_nb_float, slot<tensor_float>()},
        {Py_nb_inplace_add, slot<inplace_slot<slot_of("add")>>()},
        {Py_nb_inplace_subtract, slot<inplace_slot<slot_of("sub")>>()},
        {Py_nb_inplace_multiply, slot<inplace_slot<slot_of("mul")>>()},
        {Py_nb_floor_divide, slot<binary_slot<slot_of("floor_divide")>>()},
        {Py_nb_true_divide, slot<binary_slot<slot_of("div")>>()},
        {Py_nb_inplace_true_divide, slot<inplace_slot<slot_of("div")>>()},
        {Py_nb_inplace_floor_divide, slot<inplace_slot<slot_of("floor_divide")>>()},
        {Py_nb_inplace_remainder, slot<inplace_slot<slot_of("remainder")>>()},
        {Py_nb_inplace_power, slot<inplace_power>()},
        {Py_nb_inplace_and, slot<inplace_slot<slot_of("and")>>()},
        {Py_nb_inplace_or, slot<inplace_slot<slot_of("or")>>()},
        {Py_nb_inplace_xor, slot<inplace_slot<slot_of("xor")>>()},
        {Py_nb_inplace_lshift, slot<inplace_slot<slot_of("lshift")>>()},
        {Py_nb_inplace_rshift, slot<inplace_slot<slot_of("rshift")>>()},
        {Py_nb_lshift, slot<binary_slot<slot_of("lshift")>>()},
        {Py_nb_rshift, slot<binary_slot<slot_of("rshift")>>()},
        {Py_nb_index, slot<tensor_index>()},
        {Py_nb_matrix_multiply, slot<binary_slot<slot_of("matmul")>>()},
        {Py_mp_subscript, slot<get_item>()},
        {Py_mp_ass_subscript, slot<set_item>()},
        {Py_tp_richcompare, slot<compare>()},
        {Py_tp_new, slot<construct>()},
    };
    return slots;
}

int add_operators(PyObject* module) {
    return add_to_tensor(casts, {}) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
