// Public functions that are written in Python, as callables of the core: what they are given is made Python's
// own, and what goes wrong in them is told in terms of the call.
#include "binding/views.h"

#include <structmember.h>

#include <cstring>

namespace kiln {
namespace {

PyObject* describer = nullptr;  // (callable, args, kwargs, error) -> the error to raise; kiln.table.mistakes

struct FunctionObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* function;
    bool raw;           // of data: a NumPy scalar has a dtype
    Py_ssize_t places;  // parameters that are given by place
    // Null, or a tuple: for each place its name if it takes a flag, else None; then other parameters' names.
    PyObject* flags;
    const QuickForm* quick;  // null, or how calls of its usual form are made without Python
    Casts casts;
};

FunctionObject& function_of(PyObject* object) { return *reinterpret_cast<FunctionObject*>(object); }

constexpr size_t most_arguments = 32;  // of a call that is looked through

// Whether a NumPy scalar is a bool, which no protocol says.
bool is_numpy_bool(PyObject* value) { return !std::strncmp(Py_TYPE(value)->tp_name, "numpy.bool", 10); }

// Whether a value stands for an int, a float or a bool, but is no int, float or bool of Python's.
bool stands_for_number(PyObject* value) {
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value) || value == Py_None ||
        PyUnicode_CheckExact(value) || is_tensor(value))
        return false;
    // Arrays of other libraries have items; so have NumPy's scalars, but those are buffers too.
    const bool array = PySequence_Check(value) || (PyMapping_Check(value) && !PyObject_CheckBuffer(value));
    return PyFloat_Check(value) || is_numpy_bool(value) || (PyIndex_Check(value) && !array);
}

bool is_list(PyObject* value) { return PyTuple_CheckExact(value) || PyList_CheckExact(value); }

// Whether `plain` makes something else of a value. A list in a list in a list is left to the function.
bool is_odd(PyObject* value, int depth = 0) {
    if (!is_list(value)) return stands_for_number(value);
    for (Py_ssize_t i = 0; depth < 2 && i < PySequence_Fast_GET_SIZE(value); ++i)
        if (is_odd(PySequence_Fast_GET_ITEM(value, i), depth + 1)) return true;
    return false;
}

// TypeError for a text, a list, an array, a float or a function where a flag is taken.
void check_flag(const FunctionObject& self, PyObject* flag, PyObject* value) {
    if (flag == Py_None || !is_no_flag(value)) return;
    Object name = checked(PyObject_GetAttrString(self.function, "__kiln_name__"));
    PyErr_Format(PyExc_TypeError, "%U(): argument '%U' must be bool, not %s", name.get(), flag,
                 Py_TYPE(value)->tp_name);
    throw Error(ErrorKind::python, "");
}

void check_flags(const FunctionObject& self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const Py_ssize_t flags = PyTuple_GET_SIZE(self.flags);
    for (Py_ssize_t i = 0; i < count && i < self.places; ++i)
        check_flag(self, PyTuple_GET_ITEM(self.flags, i), args[i]);
    for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); ++k)
        for (Py_ssize_t i = 0; i < flags; ++i)  // names of keywords are interned
            if (PyTuple_GET_ITEM(self.flags, i) == PyTuple_GET_ITEM(names, k))
                check_flag(self, PyTuple_GET_ITEM(self.flags, i), args[count + k]);
}

PyObject* call_in_python(const FunctionObject& self, PyObject* const* args, size_t flags, PyObject* names) {
    const size_t count = size_t(PyVectorcall_NARGS(flags)) + size_t(names ? PyTuple_GET_SIZE(names) : 0);
    if (self.flags) check_flags(self, args, PyVectorcall_NARGS(flags), names);
    bool odd = false;
    for (size_t i = 0; i < count && !self.raw && count <= most_arguments; ++i) odd |= is_odd(args[i]);
    if (!odd) return in_python([&] { return PyObject_Vectorcall(self.function, args, flags, names); });
    Object held[most_arguments];
    PyObject* given[most_arguments];
    for (size_t i = 0; i < count; ++i) {
        held[i] = plain(args[i]);
        given[i] = held[i].get();
    }
    return in_python(
        [&] { return PyObject_Vectorcall(self.function, given, size_t(PyVectorcall_NARGS(flags)), names); });
}

PyObject* function_vectorcall(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
    PyObject* result = guarded([&]() -> PyObject* {
        FunctionObject& self = function_of(object);
        if (stand_ins) [[unlikely]]
            if (Object result = taken_over(object, args, flags, names)) return result.release();
        if (autocasts(object, self.casts)) [[unlikely]]
            return call_cast(object, args, flags, names);
        if (self.quick)
            if (PyObject* made = call_quick(*self.quick, args, PyVectorcall_NARGS(flags), names)) return made;
        return call_in_python(self, args, flags, names);
    });
    return result ? result : describe_error(object, args, flags, names);
}

void function_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    Py_DECREF(function_of(object).function);
    Py_XDECREF(function_of(object).flags);
    type->tp_free(object);
    Py_DECREF(type);
}

// The same callable, whose calls with tensors and plain ints the core makes.
PyObject* quicken(PyObject*, PyObject* args) {
    PyObject* object;
    const char* name;
    if (!PyArg_ParseTuple(args, "Os:quicken", &object, &name)) return nullptr;
    KILN_CHECK(Py_TYPE(object)->tp_dealloc == function_dealloc, type, "quicken: expected a Function");
    function_of(object).quick = &quick_form(name);
    return Py_NewRef(object);
}

// (function, raw=False, places=0, flags=None)
PyObject* function_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *function, *flags = nullptr;
    int raw = 0;
    Py_ssize_t places = 0;
    if (!PyArg_ParseTuple(args, "O|pnO!:Function", &function, &raw, &places, &PyTuple_Type, &flags))
        return nullptr;
    PyObject* object = type->tp_alloc(type, 0);
    if (!object) return nullptr;
    FunctionObject& self = function_of(object);
    self.vectorcall = function_vectorcall;
    self.function = Py_NewRef(function);
    self.raw = raw;
    self.places = places;
    self.flags = Py_XNewRef(flags);
    return object;
}

PyObject* function_attribute(PyObject* self, PyObject* name) {
    if (PyObject* own = PyObject_GenericGetAttr(self, name)) return own;
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
    return PyObject_GetAttr(function_of(self).function, name);
}
PyObject* function_repr(PyObject* self) { return PyObject_Repr(function_of(self).function); }

PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FunctionObject, vectorcall), READONLY, nullptr},
    {"__wrapped__", T_OBJECT, offsetof(FunctionObject, function), READONLY, "The function in Python."},
    {nullptr, 0, 0, 0, nullptr},
};
template <const char* attribute>
PyObject* of_function(PyObject* self, void*) {
    return PyObject_GetAttrString(function_of(self).function, attribute);
}
constexpr char doc_name[] = "__doc__", module_name[] = "__module__";
PyGetSetDef function_getset[] = {
    {doc_name, of_function<doc_name>, nullptr, nullptr, nullptr},
    {module_name, of_function<module_name>, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot function_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(function_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(function_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(bind_to_instance)},
    {Py_tp_getattro, reinterpret_cast<void*>(function_attribute)},
    {Py_tp_repr, reinterpret_cast<void*>(function_repr)},
    {Py_tp_members, function_members},
    {Py_tp_getset, function_getset},
    {0, nullptr},
};
PyType_Spec function_spec = {"kiln._core.Function", sizeof(FunctionObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                             function_slots};

PyObject* set_error_describer(PyObject*, PyObject* function) {
    Py_XSETREF(describer, Py_NewRef(function));
    Py_RETURN_NONE;
}

// The exception that a bare `raise` of the caller's `except` raises: its frame is added to no traceback.
PyObject* set_handled(PyObject*, PyObject* error) {
    PyErr_SetHandledException(error);
    Py_RETURN_NONE;
}

PyObject* plain_value(PyObject*, PyObject* value) { return plain(value).release(); }

PyMethodDef functions[] = {
    {"plain", guard<plain_value>, METH_O,
     "A value as Python's own: a NumPy integer as an int, in lists and tuples too."},
    {"quicken", guard<quicken>, METH_VARARGS,
     "quicken(function, form): the function, whose calls with tensors and plain ints the core makes by "
     "itself."},
    {"set_handled", set_handled, METH_O,
     "Makes an exception the one that a bare `raise` in `except` raises."},
    {"set_error_describer", set_error_describer, METH_O,
     "What puts an error into terms of the call: (callable, args, kwargs, error) -> the error to raise."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool is_no_flag(PyObject* value) {
    return PyFloat_CheckExact(value) || PyDict_Check(value) || PyCallable_Check(value) ||
           (PySequence_Check(value) && !is_tensor(value));
}

Object plain(PyObject* value) {
    if (!is_odd(value)) return Object::borrow(value);
    if (is_list(value)) {
        Object items = checked(PySequence_List(value));
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
            Object item = plain(PyList_GET_ITEM(items.get(), i));
            checked_ok(PyList_SetItem(items.get(), i, item.release()));
        }
        return PyList_CheckExact(value) ? items : checked(PyList_AsTuple(items.get()));
    }
    if (PyFloat_Check(value)) return checked(PyFloat_FromDouble(PyFloat_AS_DOUBLE(value)));
    if (is_numpy_bool(value)) return checked(PyBool_FromLong(PyObject_IsTrue(value)));
    if (PyObject* number = PyNumber_Index(value)) return Object::steal(number);
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw Error(ErrorKind::python, "");
    PyErr_Clear();
    return Object::borrow(value);
}

std::pair<Object, Object> python_arguments(PyObject* const* args, Py_ssize_t count, PyObject* names) {
    Object positional = checked(PyTuple_New(count)), keywords = checked(PyDict_New());
    for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(positional.get(), i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
        checked_ok(PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(names, i), args[count + i]));
    return {std::move(positional), std::move(keywords)};
}

PyObject* describe_error(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
    if (!describer || !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Object error = Object::steal(value);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Object raised = Object::steal(guarded([&] {
        const auto [positional, keywords] = python_arguments(args, PyVectorcall_NARGS(flags), names);
        return PyObject_CallFunctionObjArgs(describer, callable, positional.get(), keywords.get(),
                                            error.get(), nullptr);
    }));
    if (raised && PyTuple_CheckExact(raised.get()))  // the arguments in today's order, and keywords
        return PyObject_Call(callable, PyTuple_GET_ITEM(raised.get(), 0), PyTuple_GET_ITEM(raised.get(), 1));
    if (!raised) PyErr_Clear();  // the error as it was
    if (!raised || !PyExceptionInstance_Check(raised.get())) raised = std::move(error);
    PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(raised.get()))), Py_NewRef(raised.get()),
                  PyException_GetTraceback(raised.get()));
    return nullptr;
}

int add_functions(PyObject* module) {
    return add_type(module, function_spec) ? PyModule_AddFunctions(module, functions) : -1;
}

}  // namespace kiln
