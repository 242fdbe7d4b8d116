// The ops that the core itself calls: told by the table, found by what they need to know.
#include "autograd.h"
#include "bind.h"

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
    Fn** place = name == "add"      ? &fns.add
                 : name == "copy"   ? &fns.copy
                 : name == "sum_to" ? &fns.sum_to
                 : dtype            ? &fns.convert[int(*dtype)]
                                    : nullptr;
    KILN_CHECK(place, value, "set_core_function: no role '", name, "'");
    *place = fn;
    Py_RETURN_NONE;
}

// The functions of as_strided and write differ by how many sizes and strides are given.
PyObject* as_strided_op = nullptr;
PyObject* write_op = nullptr;

Fn* as_strided_fn(int ndim) {
    Object structure = checked(Py_BuildValue("(siii)", "t", ndim, ndim, 1));
    return &fn_of(as_strided_op, structure.get());
}
Fn* write_fn(int ndim) {
    Object structure = checked(Py_BuildValue("(ssii)", "t", "t", ndim, 1));
    return &fn_of(write_op, structure.get());
}

// The functions of slice and reshape, by dim and by number of sizes; made when first asked for.
PyObject* slice_op = nullptr;
PyObject* reshape_op = nullptr;

Fn& slice_fn(int dim) {
    static SmallVector<Fn*, 8> known;
    while (int(known.size()) <= dim) known.push_back(nullptr);
    if (!known[size_t(dim)])
        known[size_t(dim)] = &fn_of(slice_op, checked(Py_BuildValue("(s(i)i)", "t", dim, 3)).get());
    return *known[size_t(dim)];
}
Fn& reshape_fn(int ndim) {
    static SmallVector<Fn*, 8> known;
    while (int(known.size()) <= ndim) known.push_back(nullptr);
    if (!known[size_t(ndim)])
        known[size_t(ndim)] = &fn_of(reshape_op, checked(Py_BuildValue("(si)", "t", ndim)).get());
    return *known[size_t(ndim)];
}

PyObject* set_view_ops(PyObject*, PyObject* args) {
    if (!PyArg_ParseTuple(args, "O!O!O!O!:set_view_ops", op_type, &as_strided_op, op_type, &write_op, op_type,
                          &slice_op, op_type, &reshape_op))
        return nullptr;
    for (PyObject* op : {as_strided_op, write_op, slice_op, reshape_op}) Py_INCREF(op);
    core_fns().as_strided = as_strided_fn;
    core_fns().write = write_fn;
    Py_RETURN_NONE;
}

PyObject* one_of_several(PyObject*, PyObject* views) {
    for (Py_ssize_t i = 0; grad_enabled() && i < PyTuple_GET_SIZE(views); ++i)
        if (PyObject* view = PyTuple_GET_ITEM(views, i); is_tensor(view) && tensor_of(view).base)
            tensor_of(view).made = Made::one_of_several;
    return Py_NewRef(views);
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
    {"one_of_several", one_of_several, METH_O,
     "A tuple of the views that one function gives, which are not to be written where gradients are "
     "recorded."},
    {"set_view_ops", set_view_ops, METH_VARARGS,
     "Tells the core the ops as_strided, write, slice and reshape."},
    {"set_core_function", guard<set_core_function>, METH_VARARGS,
     "Tells the core which op adds, copies, sums to a shape, converts to the dtype of that name."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

TensorRef slice_view(Tensor& x, int dim, int64_t start, int64_t length, int64_t step) {
    Operand operands[4] = {
        {&x, {}}, {nullptr, Number::of(start)}, {nullptr, Number::of(length)}, {nullptr, Number::of(step)}};
    return std::move(call(slice_fn(dim), operands)[0]);
}

TensorRef select_view(Tensor& x, int dim, int64_t place) {
    TensorRef row = slice_view(x, dim, place, 1, 1);
    Operands operands;
    operands.push_back({row.get(), {}});
    for (int d = 0; d < x.ndim(); ++d)
        if (d != dim) operands.push_back({nullptr, Number::of(x.sizes[size_t(d)])});
    return std::move(call(reshape_fn(x.ndim() - 1), {operands.data(), operands.size()})[0]);
}

int add_core_ops(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
