// Ops as Python callables: arguments are bound to parameters and go straight to dispatch.
#include "bind.h"

#include <structmember.h>

#include <algorithm>
#include <cmath>

#include "autograd.h"
#include "compiler.h"
#include "pointwise.h"

namespace kiln {

PyTypeObject* op_type = nullptr;

namespace {

PyObject* required = nullptr;  // the default of a parameter that has none
PyObject* symbolic_types = nullptr;

struct Param {
    PyObject* name;
    char kind;  // T L O V N S Z, see kiln/table/record.py
    PyObject* default_value;
};

struct OpObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Op* op;
    std::vector<Param>* params;
    PyObject* record;
    PyObject* functions;  // structure tuple -> capsule of its Fn
    Fn* plain;            // the Fn of the empty structure
    Fn* last;             // the Fn of the last call that had a structure
    bool operands_only;   // pointwise, without structure: every parameter is an operand
    PyObject* general;    // of a form: what is called when parameters are missing, None or named
    bool in_place;        // of a form: the result is written into the first argument, which is returned
};

OpObject& op_of(PyObject* object) { return *reinterpret_cast<OpObject*>(object); }

constexpr int most_params = 24;

// What one call is made of, once bound.
struct Bound {
    PyObject* values[most_params] = {};
    PyObject* more = nullptr;  // owned tuple: sizes given one by one
    std::vector<TensorRef> out;
    bool symbolic = false;
    ~Bound() { Py_XDECREF(more); }
};

void bind_out(OpObject& self, PyObject* value, Bound& bound) {
    if (value == Py_None) return;
    if (is_tensor(value)) {
        bound.out.emplace_back(&tensor_of(value));
        return;
    }
    if ((bound.symbolic = is_symbolic(value))) return;
    Object list = checked(PySequence_Fast(value, "out: expected a tensor or a sequence of tensors"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i)
        bound.out.emplace_back(
            &expect_tensor(PySequence_Fast_GET_ITEM(list.get(), i), self.op->name.c_str()));
}

void bind_keyword(OpObject& self, PyObject* name, PyObject* value, Bound& bound) {
    const auto& params = *self.params;
    for (size_t p = 0; p < params.size(); ++p) {
        if (params[p].name != name && PyUnicode_Compare(params[p].name, name) != 0) continue;
        KILN_CHECK(!bound.values[p], type, self.op->name, "() got multiple values for argument '",
                   PyUnicode_AsUTF8(name), "'");
        bound.values[p] = value;
        return;
    }
    if (PyUnicode_CompareWithASCIIString(name, "out") == 0) return bind_out(self, value, bound);
    // another spelling of a name (`axis`), which the table knows
    Object own = checked(in_python([&] { return PyObject_CallMethod(self.record, "own_name", "O", name); }));
    if (own.get() != Py_None) return bind_keyword(self, own.get(), value, bound);
    raise(ErrorKind::type,
          concat(self.op->name, "() got an unexpected keyword argument '", PyUnicode_AsUTF8(name), "'"));
}

void bind(OpObject& self, PyObject* const* args, size_t count, PyObject* names, Bound& bound) {
    const auto& params = *self.params;
    if (count > params.size()) {
        bool sizes = !params.empty() && params.back().kind == 'Z';
        KILN_CHECK(sizes, type, self.op->name, "() takes ", params.size(), " positional arguments but ",
                   count, " were given");
    }
    size_t last = params.size();
    if (last && params.back().kind == 'Z' && count >= last &&
        (count > last || PyIndex_Check(args[last - 1]))) {
        bound.more = checked(PyTuple_New(Py_ssize_t(count - last + 1))).release();
        for (size_t i = last - 1; i < count; ++i)
            PyTuple_SET_ITEM(bound.more, i - last + 1, Py_NewRef(args[i]));
        bound.values[last - 1] = bound.more;
        count = last - 1;
    }
    for (size_t i = 0; i < count; ++i) bound.values[i] = args[i];
    if (names) {
        PyObject* const* values =
            args + (bound.more ? PyTuple_GET_SIZE(bound.more) + Py_ssize_t(count) : Py_ssize_t(count));
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); ++k)
            bind_keyword(self, PyTuple_GET_ITEM(names, k), values[k], bound);
    }
    for (size_t p = 0; p < params.size(); ++p) {
        if (!bound.values[p]) bound.values[p] = params[p].default_value;
        KILN_CHECK(bound.values[p] != required, type, self.op->name, "() missing required argument: '",
                   PyUnicode_AsUTF8(params[p].name), "'");
    }
}

[[gnu::noinline]] Fn& first_plain_fn(OpObject& self) {
    const Object empty = checked(PyTuple_New(0));
    return *(self.plain = &fn_of(reinterpret_cast<PyObject*>(&self), empty.get()));
}
inline Fn& plain_fn(OpObject& self) { return self.plain ? *self.plain : first_plain_fn(self); }

[[noreturn]] void wrong_argument(const OpObject& self, const Param& param, PyObject* value,
                                 const char* expected) {
    raise(ErrorKind::type, concat(self.op->name, "(): argument '", PyUnicode_AsUTF8(param.name), "' must be ",
                                  expected, ", not ", Py_TYPE(value)->tp_name));
}

// A list as a tuple, so that it can be part of a key, and that no Python code can change it meanwhile.
Object fixed(PyObject* value) {
    if (!PyList_Check(value)) return Object::borrow(value);
    return checked(PySequence_Tuple(value));
}

// What stands for an operand in the structure of a function.
enum Code { array_code, float_code, bool_code, int_code };
PyObject* code_text(Code code) {
    static PyObject* const texts[] = {PyUnicode_InternFromString("t"), PyUnicode_InternFromString("f"),
                                      PyUnicode_InternFromString("b"), PyUnicode_InternFromString("i")};
    return texts[code];
}

Code number_code(const Number& number) {
    return number.kind == Kind::float_ ? float_code : number.kind == Kind::bool_ ? bool_code : int_code;
}

// Reads sizes that are exact ints, as nearly all are; false for anything else, which `dims_from` reads or
// refuses.
bool plain_sizes(PyObject* value, Dims* sizes) {
    PyObject** items = &value;
    Py_ssize_t count = 1;
    if (PyTuple_Check(value) || PyList_Check(value)) {
        items = PySequence_Fast_ITEMS(value);
        count = PySequence_Fast_GET_SIZE(value);
    }
    *sizes = Dims(size_t(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (!PyLong_CheckExact(items[i])) return false;
        int overflow = 0;
        (*sizes)[i] = PyLong_AsLongLongAndOverflow(items[i], &overflow);
        if (overflow) return false;
    }
    return true;
}

// Turns bound arguments into operands and structure.
class Arguments {
public:
    Arguments(OpObject& self, Bound& bound)
        : self_(self), bound_(bound), pointwise_(self.op->kind == OpKind::pointwise) {}

    // False if an argument is symbolic: then the call is traced, not run.
    bool collect() {
        const auto& params = *self_.params;
        for (size_t p = 0; p < params.size(); ++p)
            if (!collect_one(params[p], bound_.values[p])) return false;
        return true;
    }

    Fn& fn() {
        if (pointwise_ && structure_.empty()) return plain_fn(self_);
        if (self_.last && is_structure_of(*self_.last)) return *self_.last;
        Object tuple = checked(PyTuple_New(Py_ssize_t(structure_.size())));
        for (size_t i = 0; i < structure_.size(); ++i)
            PyTuple_SET_ITEM(tuple.get(), i, structure_[i].release());
        return *(self_.last = &fn_of(reinterpret_cast<PyObject*>(&self_), tuple.get()));
    }

    Operands operands;

private:
    void note(Code code) {
        if (!pointwise_) structure_.push_back(Object::borrow(code_text(code)));
    }
    // Whether fn's structure is of the same objects: letters, None, flags and most ints exist once.
    bool is_structure_of(const Fn& fn) const {
        auto* known = static_cast<PyObject*>(fn.structure.object);
        bool same = size_t(PyTuple_GET_SIZE(known)) == structure_.size();
        for (size_t i = 0; same && i < structure_.size(); ++i)
            same = PyTuple_GET_ITEM(known, i) == structure_[i].get();
        return same;
    }
    void note(Py_ssize_t count) { structure_.push_back(checked(PyLong_FromSsize_t(count))); }

    bool collect_one(const Param& param, PyObject* value) {
        switch (param.kind) {
        case 'S':
            if (self_.op->kind == OpKind::view) return collect_view_dims(param, value);
            if (is_symbolic(value)) return false;
            if (PyBool_Check(param.default_value) && is_no_flag(value))
                wrong_argument(self_, param, value, "bool");
            structure_.push_back(is_tensor(value) ? checked(PyNumber_Index(value))
                                                  : fixed(plain(value).get()));
            return true;
        case 'Z': return collect_sizes(param, value);
        case 'L': return collect_list(param, value);
        default: return collect_operand(param, value);
        }
    }

    bool collect_operand(const Param& param, PyObject* value) {
        if (is_tensor(value)) {
            Tensor& tensor = tensor_of(value);
            if (param.kind == 'N') {  // a 0-d tensor where a number belongs is read
                KILN_CHECK(tensor.numel == 1, type, self_.op->name, "(): argument '",
                           PyUnicode_AsUTF8(param.name), "' must be a number, not a tensor of shape ",
                           shape_text(tensor.sizes));
                ready(tensor);
                return add_number(read_element(tensor.dtype, tensor.data()));
            }
            operands.push_back({hold(value, held_), {}});
            note(array_code);
            return true;
        }
        if (value == Py_None && param.kind != 'T') {
            KILN_CHECK(!pointwise_, type, self_.op->name, "(): argument '", PyUnicode_AsUTF8(param.name),
                       "' must not be None");
            structure_.push_back(Object::borrow(Py_None));
            return true;
        }
        Number number;
        if ((param.kind == 'V' || param.kind == 'N') && number_from(value, &number))
            return add_number(number);
        if (is_symbolic(value)) return false;
        wrong_argument(self_, param, value,
                       param.kind == 'N'   ? "a number"
                       : param.kind == 'V' ? "Tensor or a number"
                                           : "Tensor");
    }

    bool add_number(const Number& number) {
        operands.push_back({nullptr, number});
        note(number_code(number));
        return true;
    }

    bool collect_sizes(const Param& param, PyObject* value) {
        Dims sizes;
        if (!plain_sizes(value, &sizes) && !other_sizes(param, value, &sizes)) return false;
        for (int64_t size : sizes) operands.push_back({nullptr, Number::of(size)});
        note(Py_ssize_t(sizes.size()));
        return true;
    }

    // Sizes that are not exact ints; false if one is symbolic.
    bool other_sizes(const Param& param, PyObject* value, Dims* sizes) {
        if (PyTuple_Check(value) || PyList_Check(value)) {
            for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
                if (is_symbolic(PySequence_Fast_GET_ITEM(value, i))) return false;
        } else if (is_symbolic(value)) {
            return false;
        }
        *sizes = dims_from(value,
                           (self_.op->name + "(): argument '" + PyUnicode_AsUTF8(param.name) + "'").c_str());
        return true;
    }

    // A view's structure (a permutation, a dim) is part of its function.
    bool collect_view_dims(const Param& param, PyObject* value) {
        Dims dims;
        if (!plain_sizes(value, &dims) && !other_sizes(param, value, &dims)) return false;
        structure_.push_back(Object::steal(dims_object(dims)));
        return true;
    }

    bool collect_list(const Param& param, PyObject* value) {
        KILN_CHECK(PyList_Check(value) || PyTuple_Check(value), type, self_.op->name, "(): argument '",
                   PyUnicode_AsUTF8(param.name), "' must be a tuple of Tensors, not ",
                   Py_TYPE(value)->tp_name);
        list_ = fixed(value);
        Py_ssize_t count = PyTuple_GET_SIZE(list_.get());
        for (Py_ssize_t i = 0; i < count; ++i) {
            PyObject* item = PyTuple_GET_ITEM(list_.get(), i);
            if (is_symbolic(item)) return false;
            if (!is_tensor(item)) wrong_argument(self_, param, item, "a tuple of Tensors");
            operands.push_back({hold(item, held_), {}});
        }
        note(count);
        return true;
    }

    OpObject& self_;
    Bound& bound_;
    bool pointwise_;
    SmallVector<Object, 8> structure_;
    Object list_;  // of tensors, as it was
    Held held_;
};

PyObject* trace(OpObject& self, PyObject* const* args, size_t count, PyObject* names) {
    Object positional = checked(PyTuple_New(Py_ssize_t(count)));
    for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(positional.get(), i, Py_NewRef(args[i]));
    Object keywords = checked(PyDict_New());
    if (names)
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); ++k)
            checked_ok(PyDict_SetItem(keywords.get(), PyTuple_GET_ITEM(names, k), args[count + k]));
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
        size_t count = size_t(PyVectorcall_NARGS(flags));
        if (self.in_place && (count == 0 || !(is_tensor(args[0]) || is_symbolic(args[0]))))
            raise(ErrorKind::type, concat(self.op->name, "_(): the first argument must be a Tensor"));
        Held held;
        if (Operands operands; !names && take_operands(self, args, count, operands, held)) {
            std::span<const Operand> given(operands.data(), operands.size());
            return self.in_place ? write_into(plain_fn(self), given, args[0])
                                 : call_plain(plain_fn(self), given);
        }
        if (self.general && goes_beyond(self, args, count, names))
            return in_python([&] { return PyObject_Vectorcall(self.general, args, flags, names); });
        Bound bound;
        bind(self, args, count, names, bound);
        if (self.in_place && is_tensor(args[0])) bound.out.assign(1, TensorRef(&tensor_of(args[0])));
        Arguments arguments(self, bound);
        if (bound.symbolic || !arguments.collect()) return trace(self, args, count, names);
        Fn& fn = arguments.fn();
        std::span<const Operand> operands(arguments.operands.data(), arguments.operands.size());
        if (!bound.out.empty() && !self.in_place) refuse_history(fn, operands, bound.out);
        fit_out(fn, operands, bound.out);
        Results results = call_of_program(fn, operands, bound.out);
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

OpKind op_kind(const std::string& kind, ViewKind* view) {
    static const std::pair<const char*, ViewKind> views[] = {{"reshape", ViewKind::reshape},
                                                             {"permute", ViewKind::permute},
                                                             {"expand", ViewKind::expand},
                                                             {"slice", ViewKind::slice},
                                                             {"as_strided", ViewKind::as_strided}};
    for (const auto& [text, code] : views)
        if (kind == text) {
            *view = code;
            return OpKind::view;
        }
    return kind == "pointwise" ? OpKind::pointwise : OpKind::general;
}

PyObject* op_new(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        const char *name, *kind;
        PyObject *params, *record;
        if (!PyArg_ParseTuple(args, "ssOO:Op", &name, &kind, &params, &record)) return nullptr;
        PyObject* object = type->tp_alloc(type, 0);
        if (!object) return nullptr;
        OpObject& self = op_of(object);
        self.vectorcall = op_vectorcall;
        self.op = new Op();
        self.op->name = name;
        self.op->kind = op_kind(kind, &self.op->view);
        self.op->record = Py_NewRef(record);
        self.record = record;
        self.functions = checked(PyDict_New()).release();
        self.params = new std::vector<Param>();
        Object list = checked(PySequence_Fast(params, "Op: params"));
        KILN_CHECK(PySequence_Fast_GET_SIZE(list.get()) <= most_params, value, "Op: too many parameters");
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
    });
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
    {Py_tp_new, reinterpret_cast<void*>(op_new)},
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

PyObject* set_symbolic_types(PyObject*, PyObject* types) {
    Py_XSETREF(symbolic_types, Py_NewRef(types));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"set_symbolic_types", set_symbolic_types, METH_O, "Types whose arguments make a call be traced."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* bind_to_instance(PyObject* self, PyObject* instance, PyObject*) {
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

bool is_symbolic(PyObject* object) {
    if (object == Py_None || PyUnicode_CheckExact(object) || PyLong_CheckExact(object) ||
        PyBool_Check(object))
        return false;
    Object kept = Object::borrow(object);  // its class may be asked of Python code
    const int found = symbolic_types ? PyObject_IsInstance(object, symbolic_types) : 0;
    if (found < 0) throw Error(ErrorKind::python, "");
    return found;
}

Fn* plain_binary(PyObject* function) {
    if (Py_TYPE(function) != op_type) return nullptr;
    OpObject& self = op_of(function);
    return self.op->kind == OpKind::pointwise && self.params->size() == 2 ? &plain_fn(self) : nullptr;
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
    if (self.op->kind == OpKind::view)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(structure); ++i)
            if (PyTuple_Check(PyTuple_GET_ITEM(structure, i)))
                fn->dims = dims_from(PyTuple_GET_ITEM(structure, i), "dims");
    if (first) {
        fn->twin = std::exchange(first->twin, fn);
        return *fn;
    }
    Object capsule = checked(PyCapsule_New(fn, nullptr, nullptr));
    checked_ok(PyDict_SetItem(self.functions, structure, capsule.get()));
    return *fn;
}

int add_ops(PyObject* module) {
    op_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&op_spec));
    if (!op_type) return -1;
    required = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
    if (!required || PyModule_AddObjectRef(module, "REQUIRED", required) < 0) return -1;
    if (PyModule_AddObjectRef(module, "Op", reinterpret_cast<PyObject*>(op_type)) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
