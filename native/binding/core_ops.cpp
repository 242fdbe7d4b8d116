// The ops that the core itself calls: told by the table, found by what they need to know.
#include <iterator>
#include <unordered_map>

#include "autograd/autograd.h"
#include "binding/op.h"
#include "binding/views.h"

namespace kiln {

namespace {

PyObject* set_core_function(PyObject*, PyObject* args) {
    const char* role;
    PyObject *op, *structure;
    if (!PyArg_ParseTuple(args, "sO!O!:set_core_function", &role, op_type, &op, &PyTuple_Type, &structure))
        return nullptr;
    Fn* fn = &fn_of(op, structure);
    CoreFns& fns = core_fns();
    std::string name = role;
    const auto dtype = dtype_from_name(name.c_str());
    Fn** place = name == "add"         ? &fns.add
                 : name == "copy"      ? &fns.copy
                 : name == "sum_to"    ? &fns.sum_to
                 : name == "product"   ? &fns.product
                 : name == "transpose" ? &fns.transpose
                 : dtype               ? &fns.convert[int(*dtype)]
                                       : nullptr;
    KILN_CHECK(place, value, "set_core_function: no role '", name, "'");
    *place = fn;
    Py_RETURN_NONE;
}

constexpr const char* op_names[] = {"as_strided", "write",  "slice", "reshape",          "permute", "expand",
                                    "select",     "unbind", "split", "split_with_sizes", "concat",  "stack"};
PyObject* core_ops[std::size(op_names)] = {};

PyObject* set_core_ops(PyObject*, PyObject* ops) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ops); ++i) {
        PyObject* op = PyTuple_GET_ITEM(ops, i);
        if (Py_TYPE(op) != op_type) return PyErr_Format(PyExc_TypeError, "set_core_ops: expected ops");
        for (size_t k = 0; k < std::size(op_names); ++k)
            if (op_of(op).op->name == op_names[k]) Py_XSETREF(core_ops[k], Py_NewRef(op));
    }
    core_fns().as_strided = [](int ndim) { return &view_fn(CoreOp::as_strided, ndim); };
    core_fns().write = [](int ndim) { return &view_fn(CoreOp::write, ndim); };
    core_fns().slice = [](int dim) { return &view_fn(CoreOp::slice, dim); };
    core_fns().select = [](int dim) { return &view_fn(CoreOp::select, dim); };
    core_fns().concat = [](int count) { return &view_fn(CoreOp::concat, 0, size_t(count)); };
    Py_RETURN_NONE;
}

// The op itself; brought by its family if that is not imported yet.
PyObject* core_op(CoreOp op) {
    PyObject*& known = core_ops[size_t(op)];
    if (!known) known = ask("op", "(s)", op_names[size_t(op)]).release();
    return known;
}

PyObject* expect_writable_from(PyObject*, PyObject* args) {
    PyObject *source, *target;
    if (!PyArg_ParseTuple(args, "OO:expect_writable", &source, &target)) return nullptr;
    expect_copy(expect_tensor(source, "out"), TensorRef(&expect_tensor(target, "out")));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"expect_writable", guard<expect_writable_from>, METH_VARARGS,
     "Raises what writing the first tensor into the second would raise, and writes nothing."},
    {"set_core_ops", set_core_ops, METH_VARARGS, "Tells the core ops that make views or join arrays."},
    {"set_core_function", guard<set_core_function>, METH_VARARGS,
     "Tells the core which op adds, copies, sums to a shape, multiplies or transposes matrices, converts to "
     "the "
     "dtype of that name."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Fn& view_fn(CoreOp op, int n) {
    static SmallVector<Fn*, 8> known[std::size(op_names)];
    SmallVector<Fn*, 8>& fns = known[size_t(op)];
    while (int(fns.size()) <= n) fns.push_back(nullptr);
    if (fns[size_t(n)]) return *fns[size_t(n)];
    const Object structure = checked(op == CoreOp::as_strided ? Py_BuildValue("(siii)", "t", n, n, 1)
                                     : op == CoreOp::write    ? Py_BuildValue("(ssii)", "t", "t", n, 1)
                                     : op == CoreOp::slice    ? Py_BuildValue("(s(i)i)", "t", n, 3)
                                     : op == CoreOp::select   ? Py_BuildValue("(sii)", "t", n, 1)
                                                              : Py_BuildValue("(si)", "t", n));
    return *(fns[size_t(n)] = &fn_of(core_op(op), structure.get()));
}

namespace {

// What was found for a number that says all; `structure` makes the structure otherwise.
template <class Structure>
Fn& known_fn(CoreOp op, uint64_t key, Structure&& structure) {
    static auto* known = new std::unordered_map<uint64_t, Fn*>();
    Fn*& fn = (*known)[key << 4 | uint64_t(op)];
    if (!fn) fn = &fn_of(core_op(op), checked(structure()).get());
    return *fn;
}

}  // namespace

Fn& view_fn(CoreOp op, int dim, size_t count) {
    return known_fn(op, uint64_t(count) << 8 | uint64_t(dim), [&] {
        return op == CoreOp::concat || op == CoreOp::stack
                   ? Py_BuildValue("(ni)", Py_ssize_t(count), dim)
                   : Py_BuildValue("(sin)", "t", dim, Py_ssize_t(count));
    });
}

Fn& permute_fn(const Dims& order) {
    auto structure = [&] { return Py_BuildValue("(sN)", "t", dims_object(order)); };
    if (order.size() > 12) return fn_of(core_op(CoreOp::permute), checked(structure()).get());
    uint64_t key = order.size();
    for (int64_t dim : order) key = key << 4 | uint64_t(dim);
    return known_fn(CoreOp::permute, key, structure);
}

namespace {

TensorRef view_of(Fn& fn, Tensor& x, const Dims& numbers = {}) {
    Operands operands;
    operands.reserve(numbers.size() + 1);
    operands.push_back({&x, {}});
    for (int64_t number : numbers) operands.push_back({nullptr, Number::of(number)});
    return call_one(fn, {operands.data(), operands.size()});
}

}  // namespace

TensorRef slice_view(Tensor& x, int dim, int64_t start, int64_t length, int64_t step) {
    return view_of(view_fn(CoreOp::slice, dim), x, {start, length, step});
}
TensorRef select_view(Tensor& x, int dim, int64_t place) {
    return view_of(view_fn(CoreOp::select, dim), x, {place});
}
TensorRef reshaped(Tensor& x, const Dims& sizes) {
    return view_of(view_fn(CoreOp::reshape, sizes.ndim()), x, sizes);
}
TensorRef expanded(Tensor& x, const Dims& sizes) {
    return view_of(view_fn(CoreOp::expand, sizes.ndim()), x, sizes);
}
TensorRef permuted(Tensor& x, const Dims& order) { return view_of(permute_fn(order), x); }
TensorRef unsqueezed(Tensor& x, int dim) {
    Dims sizes(x.sizes.size() + 1);
    for (int d = 0; d < sizes.ndim(); ++d) sizes[size_t(d)] = d == dim ? 1 : x.sizes[size_t(d - (d > dim))];
    return reshaped(x, sizes);
}

int add_core_ops(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
