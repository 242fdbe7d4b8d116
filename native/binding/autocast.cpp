// Automatic mixed precision: calls of the functions it names, their arguments cast by Python (kiln/amp).
#include "binding/bind.h"

namespace kiln {
namespace {

PyObject* knows = nullptr;      // callable -> whether its arguments are cast
PyObject* arguments = nullptr;  // (callable, args, kwargs) -> (args, kwargs) as they are cast

PyObject* set_autocast(PyObject*, PyObject* args) {
    PyObject *first, *second;
    if (!PyArg_ParseTuple(args, "OO:set_autocast", &first, &second)) return nullptr;
    Py_XSETREF(knows, Py_NewRef(first));
    Py_XSETREF(arguments, Py_NewRef(second));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"set_autocast", set_autocast, METH_VARARGS,
     "What autocast asks: (callable -> bool, whether its arguments are cast; (callable, args, kwargs) -> "
     "(args, kwargs))."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool ask_casts(PyObject* callable, Casts& known) {
    const AutocastOff uncast;
    const Object answer = checked(in_python([&] { return PyObject_CallOneArg(knows, callable); }));
    known = answer.get() == Py_True ? Casts::yes : Casts::no;
    return known == Casts::yes;
}

PyObject* call_cast(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
    const auto [positional, keywords] = python_arguments(args, PyVectorcall_NARGS(flags), names);
    const Object cast = checked(in_python([&] {
        return PyObject_CallFunctionObjArgs(arguments, callable, positional.get(), keywords.get(), nullptr);
    }));
    PyObject *cast_positional, *cast_keywords;
    if (!PyArg_ParseTuple(cast.get(), "OO", &cast_positional, &cast_keywords)) return nullptr;
    const AutocastOff uncast;
    return in_python([&] { return PyObject_Call(callable, cast_positional, cast_keywords); });
}

int add_autocast(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
