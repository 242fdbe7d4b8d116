// Ops as Python callables: arguments are bound to parameters and go straight to dispatch.
#include "binding/op.h"

#include <structmember.h>

#include <cmath>

#include "call/compiler.h"

namespace kiln {

PyTypeObject* op_type = nullptr;

PyObject* required = nullptr;

namespace {

PyObject* trace(OpObject& self, PyObject* const* args, size_t count, PyObject* names) {
    const auto [positional, keywords] = python_arguments(args, count, names);
    if (self.in_place) checked_ok(PyDict_SetItemString(keywords.get(), "out", args[0]));
    return in_python(
        [&] { return PyObject_CallMethod(self.record, "trace", "OO", positional.get(), keywords.get()); });
}

// All operands given in order, tensors and numbers only: nothing to bind. False if it is not so.
bool take_operands(OpObject& self, PyObject* const* args, size_t count, Operands& operands, Held& held) {
    if (!self.operands_only || count != self.params->size()) return false;
    for (size_t i = 0; i < count; ++i) {
        Operand& operand = operands.emplace_back();
        if (is_tensor(args[i]))
            operand.tensor = hold(args[i], held);
        else if (PyFloat_CheckExact(args[i]))
            operand.number = Number::of(PyFloat_AS_DOUBLE(args[i]));
        else if (!PyLong_Check(args[i]) || !number_from(args[i], &operand.number))
            return false;
    }
    return true;
}

// Whether a call says more than the op's parameters do, or less: then a form's function is called.
bool goes_beyond(OpObject& self, PyObject* const* args, size_t count, PyObject* names) {
    const auto& params = *self.params;
    if (names || count > params.size()) return true;
    for (size_t i = 0; i < count; ++i)
        if (args[i] == Py_None) return true;
    return count < params.size() && params[count].default_value == required;
}

PyObject* call_plain(Fn& fn, std::span<const Operand> operands) {
    bool simple = fn.outputs == 1 && fn.cls != FnClass::unknown && !of_numbers(operands);
    return simple ? wrap(call_one(fn, operands)) : wrap_results(call_of_program(fn, operands));
}

PyObject* op_vectorcall(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
    PyObject* result = guarded([&]() -> PyObject* {
        OpObject& self = op_of(object);
        if (stand_ins) [[unlikely]]
            if (Object result = taken_over(object, args, flags, names)) return result.release();
        if (autocasts(object, self.casts)) [[unlikely]]
            return call_cast(object, args, flags, names);
        size_t count = size_t(PyVectorcall_NARGS(flags));
        if (self.in_place && (count == 0 || !(is_tensor(args[0]) || is_symbolic(args[0]))))
            raise(ErrorKind::type, concat(self.op->name, "_(): the first argument must be a Tensor"));
        Held held;
        if (Operands operands; !names && take_operands(self, args, count, operands, held)) {
            return self.in_place ? write_into(plain_fn(self), operands, args[0])
                                 : call_plain(plain_fn(self), operands);
        }
        if (self.general && goes_beyond(self, args, count, names))
            return in_python([&] { return PyObject_Vectorcall(self.general, args, flags, names); });
        Arguments arguments(self);
        arguments.bind(args, count, names);
        if (self.in_place && is_tensor(args[0])) arguments.out.assign(1, TensorRef(&tensor_of(args[0])));
        if (!arguments.collect()) return trace(self, args, count, names);
        Fn& fn = arguments.fn();
        const Operands& operands = arguments.operands;
        if (!arguments.out.empty() && !self.in_place) refuse_history(fn, operands, arguments.out);
        fit_out(fn, operands, arguments.out);
        Results results = call_of_program(fn, operands, arguments.out);
        if (gives_several(fn)) return tuple_of({results.data(), results.size()}).release();
        return self.in_place ? Py_NewRef(args[0]) : wrap_results(results);
    });
    return result ? result : describe_error(object, args, flags, names);
}

void op_dealloc(PyObject* object) {
    // Ops live as long as the process: functions and keys refer to them.
    PyTypeObject* type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

OpKind op_kind(const std::string& kind, ViewKind* view, JoinKind* join) {
    static const std::pair<const char*, ViewKind> views[] = {
        {"reshape", ViewKind::reshape},       {"permute", ViewKind::permute},
        {"expand", ViewKind::expand},         {"slice", ViewKind::slice},
        {"as_strided", ViewKind::as_strided}, {"select", ViewKind::select},
        {"unbind", ViewKind::unbind},         {"split", ViewKind::split}};
    for (const auto& [text, code] : views)
        if (kind == text) {
            *view = code;
            return OpKind::view;
        }
    *join = kind == "concat" ? JoinKind::concat : kind == "stack" ? JoinKind::stack : JoinKind::none;
    return kind == "pointwise" ? OpKind::pointwise : OpKind::general;
}

PyObject* op_new(PyTypeObject* type, PyObject* args, PyObject*) {
    const char *name, *kind;
    PyObject *params, *record;
    if (!PyArg_ParseTuple(args, "ssOO:Op", &name, &kind, &params, &record)) return nullptr;
    PyObject* object = type->tp_alloc(type, 0);
    if (!object) return nullptr;
    OpObject& self = op_of(object);
    self.vectorcall = op_vectorcall;
    self.op = new Op();
    self.op->name = name;
    self.op->kind = op_kind(kind, &self.op->view, &self.op->join);
    self.op->record = Py_NewRef(record);
    self.record = record;
    self.functions = checked(PyDict_New()).release();
    self.params = new std::vector<Param>();
    Object list = checked(PySequence_Fast(params, "Op: params"));
    KILN_CHECK(PySequence_Fast_GET_SIZE(list.get()) <= Arguments::most, value, "Op: too many parameters");
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        PyObject *param_name, *default_value;
        const char* letter;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(list.get(), i), "UsO", &param_name, &letter,
                              &default_value))
            throw Error(ErrorKind::python, "");
        Py_INCREF(param_name);
        PyUnicode_InternInPlace(&param_name);
        self.params->push_back({param_name, letter[0], Py_NewRef(default_value)});
    }
    self.operands_only = self.op->kind == OpKind::pointwise;
    for (const Param& param : *self.params) self.operands_only &= param.kind == 'V';
    return object;
}

// Another way of calling the same op.
PyObject* op_form(PyObject* object, PyObject* args) {
    PyObject* general;
    int in_place = 0;
    if (!PyArg_ParseTuple(args, "O|p:form", &general, &in_place)) return nullptr;
    PyObject* form = op_type->tp_alloc(op_type, 0);
    if (!form) return nullptr;
    const OpObject& self = op_of(object);
    OpObject& made = op_of(form);
    made.vectorcall = op_vectorcall;
    made.op = self.op;
    made.params = self.params;
    made.record = Py_NewRef(self.record);
    made.functions = Py_NewRef(self.functions);
    made.operands_only = self.operands_only;
    made.general = general == Py_None ? nullptr : Py_NewRef(general);
    made.in_place = in_place;
    return form;
}

PyObject* op_name(PyObject* self, void*) {
    return PyUnicode_FromFormat("%s%s", op_of(self).op->name.c_str(), op_of(self).in_place ? "_" : "");
}
PyObject* op_doc(PyObject* self, void*) {
    if (op_of(self).general) return PyObject_GetAttrString(op_of(self).general, "__doc__");
    return PyObject_GetAttrString(op_of(self).record, op_of(self).in_place ? "doc_in_place" : "doc");
}
PyObject* op_wrapped(PyObject* self, void*) {
    if (op_of(self).general) return Py_NewRef(op_of(self).general);
    PyErr_SetString(PyExc_AttributeError, "__wrapped__");
    return nullptr;
}
PyObject* op_signature(PyObject* self, void*) {
    return PyObject_GetAttrString(op_of(self).record,
                                  op_of(self).in_place ? "signature_in_place" : "signature");
}
PyObject* op_record(PyObject* self, void*) { return Py_NewRef(op_of(self).record); }
PyObject* op_repr(PyObject* self) { return PyUnicode_FromFormat("<op %s>", op_of(self).op->name.c_str()); }

PyGetSetDef op_getset[] = {
    {"__name__", op_name, nullptr, nullptr, nullptr},
    {"__doc__", op_doc, nullptr, nullptr, nullptr},
    {"__text_signature__", op_signature, nullptr, nullptr, nullptr},
    {"__wrapped__", op_wrapped, nullptr, "The function behind a form.", nullptr},
    {"record", op_record, nullptr, "The table's entry.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef op_methods[] = {
    {"form", op_form, METH_VARARGS,
     "form(general, in_place=False): the op, which calls `general` (or None) where a call says more or less "
     "than its parameters."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpObject, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot op_slots[] = {
    {Py_tp_new, slot<op_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(op_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(bind_to_instance)},
    {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
    {Py_tp_getset, op_getset},
    {Py_tp_members, op_members},
    {Py_tp_methods, op_methods},
    {0, nullptr},
};
PyType_Spec op_spec = {"kiln._core.Op", sizeof(OpObject), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                       op_slots};

}  // namespace

PyObject* bind_to_instance(PyObject* self, PyObject* instance, PyObject*) {
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

Fn& first_plain_fn(OpObject& self) {
    const Object empty = checked(PyTuple_New(0));
    return *(self.plain = &fn_of(reinterpret_cast<PyObject*>(&self), empty.get()));
}
PyObject* write_into(Fn& fn, std::span<const Operand> operands, PyObject* tensor) {
    TensorRef target(&tensor_of(tensor));
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    fit_out(fn, operands, {&target, 1});
    call(fn, operands, {&target, 1});
    return Py_NewRef(tensor);
}

namespace {

// Whether two equal objects are so in type, too, and in sign: a function of 1.0 is not that of 1.
bool same_types(PyObject* a, PyObject* b) {
    if (a == b) return true;
    if (Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PyFloat_CheckExact(a))
        return std::signbit(PyFloat_AS_DOUBLE(a)) == std::signbit(PyFloat_AS_DOUBLE(b));
    bool same = true;
    for (Py_ssize_t i = 0; same && PyTuple_Check(a) && i < PyTuple_GET_SIZE(a); ++i)
        same = same_types(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    return same;
}

}  // namespace

namespace {

// The dims of a view or a join, and how many results it gives. A permute and a slice have them in a tuple; of
// the others the second entry is the dim, and a third the count.
void read_dims(Fn& fn, PyObject* structure) {
    const bool joins = fn.op->join != JoinKind::none;
    if (fn.op->kind != OpKind::view && !joins) return;
    const Py_ssize_t entries = PyTuple_GET_SIZE(structure);
    if (joins || fn.op->view >= ViewKind::select) {
        KILN_CHECK(entries >= 2, type, fn.name, ": a dim is missing");
        fn.dims = dims_from(PyTuple_GET_ITEM(structure, 1), "dim");
        if (gives_several(fn)) fn.outputs = uint32_t(PyLong_AsLong(PyTuple_GET_ITEM(structure, 2)));
        return;
    }
    for (Py_ssize_t i = 0; i < entries; ++i)
        if (PyTuple_Check(PyTuple_GET_ITEM(structure, i)))
            fn.dims = dims_from(PyTuple_GET_ITEM(structure, i), "dims");
}

}  // namespace

Fn& fn_of(PyObject* op, PyObject* structure) {
    OpObject& self = op_of(op);
    Fn* first = nullptr;
    if (PyObject* found = PyDict_GetItemWithError(self.functions, structure))
        first = static_cast<Fn*>(PyCapsule_GetPointer(found, nullptr));
    if (!first && PyErr_Occurred()) throw Error(ErrorKind::python, "");
    for (Fn* fn = first; fn; fn = fn->twin)
        if (same_types(static_cast<PyObject*>(fn->structure.object), structure)) return *fn;
    auto says = [&](const char* what) {
        return checked(PyObject_GetAttrString(self.record, what)).get() == Py_True;
    };
    self.op->differentiable = says("differentiable");
    self.op->divides = says("divides");
    self.op->at_once = says("at_once");
    Fn* fn = new_fn(self.op, self.op->name);
    fn->structure = Opaque(structure);
    read_dims(*fn, structure);
    if (first) {
        fn->twin = std::exchange(first->twin, fn);
        return *fn;
    }
    Object capsule = checked(PyCapsule_New(fn, nullptr, nullptr));
    checked_ok(PyDict_SetItem(self.functions, structure, capsule.get()));
    return *fn;
}

int add_ops(PyObject* module) {
    required = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    if (!required || PyModule_AddObjectRef(module, "REQUIRED", required) < 0) return -1;
    return (op_type = add_type(module, op_spec)) ? 0 : -1;
}

}  // namespace kiln
