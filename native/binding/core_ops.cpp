// The ops that the core itself calls: told by the table, found by what they need to know.
#include "autograd/autograd.h"
#include "binding/bind.h"

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
                 : name == "product" ? &fns.product
                 : name == "transpose" ? &fns.transpose
                 : dtype            ? &fns.convert[int(*dtype)]
                                    : nullptr;
    KILN_CHECK(place, value, "set_core_function: no role '", name, "'");
    *place = fn;
    Py_RETURN_NONE;
}

// Ops whose structure is a number: of dims (as_strided, write), which dim (slice), of sizes (reshape), of arrays
// (concat).
enum ViewOp { as_strided, write, slice, reshape, concat };
PyObject* view_ops[5] = {};

// The function of one at this number; made when first asked for.
template <ViewOp op>
Fn* view_fn(int n) {
    static SmallVector<Fn*, 8> known;
    while (int(known.size()) <= n) known.push_back(nullptr);
    if (known[size_t(n)]) return known[size_t(n)];
    const Object structure = checked(op == as_strided ? Py_BuildValue("(siii)", "t", n, n, 1)
                                     : op == write    ? Py_BuildValue("(ssii)", "t", "t", n, 1)
                                     : op == slice    ? Py_BuildValue("(s(i)i)", "t", n, 3)
                                     : op == concat   ? Py_BuildValue("(ii)", n, 0)
                                                      : Py_BuildValue("(si)", "t", n));
    return known[size_t(n)] = &fn_of(view_ops[op], structure.get());
}

PyObject* set_view_ops(PyObject*, PyObject* args) {
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!:set_view_ops", op_type, &view_ops[as_strided], op_type,
                          &view_ops[write], op_type, &view_ops[slice], op_type, &view_ops[reshape], op_type,
                          &view_ops[concat]))
        return nullptr;
    for (PyObject* op : view_ops) Py_INCREF(op);
    core_fns().as_strided = view_fn<as_strided>;
    core_fns().write = view_fn<write>;
    core_fns().concat = view_fn<concat>;
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
     "Tells the core the ops as_strided, write, slice, reshape and concat."},
    {"set_core_function", guard<set_core_function>, METH_VARARGS,
     "Tells the core which op adds, copies, sums to a shape, multiplies or transposes matrices, converts to the "
     "dtype of that name."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

TensorRef slice_view(Tensor& x, int dim, int64_t start, int64_t length, int64_t step) {
    Operand operands[4] = {
        {&x, {}}, {nullptr, Number::of(start)}, {nullptr, Number::of(length)}, {nullptr, Number::of(step)}};
    return std::move(call(*view_fn<slice>(dim), operands)[0]);
}

TensorRef select_view(Tensor& x, int dim, int64_t place) {
    TensorRef row = slice_view(x, dim, place, 1, 1);
    Operands operands;
    operands.push_back({row.get(), {}});
    for (int d = 0; d < x.ndim(); ++d)
        if (d != dim) operands.push_back({nullptr, Number::of(x.sizes[size_t(d)])});
    return std::move(call(*view_fn<reshape>(x.ndim() - 1), operands)[0]);
}

int add_core_ops(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
