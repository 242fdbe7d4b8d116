// From the arguments of a call to operands and a function.
#include "binding/op.h"

namespace kiln {
namespace {

PyObject* symbolic_types = nullptr;
PyObject* take_over = nullptr;  // (callable, args, kwargs, method's name or None) -> result or NotImplemented

// A list as a tuple, so that it can be part of a key, and that no Python code can change it meanwhile.
Object fixed(PyObject* value) {
    if (!PyList_Check(value)) return Object::borrow(value);
    return checked(PySequence_Tuple(value));
}

// What stands for an operand in the structure of a function.
enum Code { array_code, float_code, bool_code, int_code };
Object code_text(Code code) {
    static PyObject* const texts[] = {PyUnicode_InternFromString("t"), PyUnicode_InternFromString("f"),
                                      PyUnicode_InternFromString("b"), PyUnicode_InternFromString("i")};
    return Object::borrow(texts[code]);
}

Object count_of(Py_ssize_t count) { return checked(PyLong_FromSsize_t(count)); }

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

PyObject* set_symbolic_types(PyObject*, PyObject* types) {
    Py_XSETREF(symbolic_types, Py_NewRef(types));
    Py_RETURN_NONE;
}

// (types, take_over)
PyObject* set_stand_ins(PyObject*, PyObject* args) {
    PyObject *types, *function;
    if (!PyArg_ParseTuple(args, "O!O:set_stand_ins", &PyTuple_Type, &types, &function)) return nullptr;
    Py_XSETREF(take_over, Py_NewRef(function));
    Py_XSETREF(stand_ins, Py_NewRef(types));
    Py_RETURN_NONE;
}

bool has_stand_in(PyObject* value, int depth) {
    if (is_stand_in(value)) return true;
    if (depth == 0 || !(PyTuple_Check(value) || PyList_Check(value))) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
        if (has_stand_in(PySequence_Fast_GET_ITEM(value, i), depth - 1)) return true;
    return false;
}

thread_local bool all_taken = false;  // this thread's calls, with whatever arguments

// Whether from here on all calls of this thread are offered; whether they were before.
PyObject* take_all(PyObject*, PyObject* flag) {
    const bool before = all_taken;
    all_taken = stand_ins && PyObject_IsTrue(flag);
    return PyBool_FromLong(before);
}

PyObject* attribute_hook = nullptr;

// `__getattribute__` of a hooked class: where all calls are taken, what may hold tensors goes by the hook.
PyObject* hooked_attribute(PyObject* self, PyObject* name) {
    Object found = Object::steal(PyObject_GenericGetAttr(self, name));
    if (!all_taken || !found ||
        !(is_tensor(found.get()) || PyDict_Check(found.get()) || PyMethod_Check(found.get())))
        return found.release();
    const Object hook = Object::borrow(attribute_hook);
    return PyObject_CallFunctionObjArgs(hook.get(), self, name, found.get(), nullptr);
}
PyMethodDef hooked_method = {"__getattribute__", hooked_attribute, METH_O, "The attribute of a name."};

PyObject* hook_attributes(PyObject*, PyObject* args) {
    PyObject *type, *hook;
    if (!PyArg_ParseTuple(args, "O!O:hook_attributes", &PyType_Type, &type, &hook)) return nullptr;
    const Object method =
        Object::steal(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type), &hooked_method));
    if (!method || PyObject_SetAttrString(type, "__getattribute__", method.get()) < 0) return nullptr;
    Py_XSETREF(attribute_hook, Py_NewRef(hook));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"hook_attributes", hook_attributes, METH_VARARGS,
     "hook_attributes(type, hook): while all calls of a thread are taken, attributes of the type's objects "
     "that are tensors, dicts or methods are what hook(object, name, attribute) gives."},
    {"take_all", take_all, METH_O,
     "take_all(flag): whether all calls of this thread go to take_over; gives what was so before."},
    {"set_symbolic_types", set_symbolic_types, METH_O, "Types whose arguments make a call be traced."},
    {"set_stand_ins", set_stand_ins, METH_VARARGS,
     "set_stand_ins(types, take_over): calls of public functions with objects of these types are made by "
     "take_over(callable, args, kwargs, name), unless it gives NotImplemented; name is that of a tensor's "
     "operator, or None."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* stand_ins = nullptr;

bool is_stand_in(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stand_ins); ++i)
        if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(stand_ins, i))))
            return true;
    return false;
}

Object taken_over(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names,
                  const char* method) {
    const Py_ssize_t count = PyVectorcall_NARGS(flags), all = count + (names ? PyTuple_GET_SIZE(names) : 0);
    bool found = all_taken;
    for (Py_ssize_t i = 0; i < all && !found; ++i) found = has_stand_in(args[i], 3);
    if (!found) return {};
    const auto [positional, keywords] = python_arguments(args, count, names);
    Object result = checked(in_python([&] {
        return PyObject_CallFunction(take_over, "OOOz", callable, positional.get(), keywords.get(), method);
    }));
    return result.get() == Py_NotImplemented ? Object() : std::move(result);
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

// ---- binding to parameters ----

void Arguments::bind_out(PyObject* value) {
    if (value == Py_None) return;
    if (is_tensor(value)) {
        out.emplace_back(&tensor_of(value));
        return;
    }
    if ((symbolic_out_ = is_symbolic(value))) return;
    Object list = checked(PySequence_Fast(value, "out: expected a tensor or a sequence of tensors"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i)
        out.emplace_back(&expect_tensor(PySequence_Fast_GET_ITEM(list.get(), i), self_.op->name.c_str()));
}

void Arguments::bind_keyword(PyObject* name, PyObject* value) {
    const auto& params = *self_.params;
    for (size_t p = 0; p < params.size(); ++p) {
        if (params[p].name != name && PyUnicode_Compare(params[p].name, name) != 0) continue;
        KILN_CHECK(!values_[p], type, self_.op->name, "() got multiple values for argument '", text_of(name),
                   "'");
        values_[p] = value;
        return;
    }
    if (PyUnicode_CompareWithASCIIString(name, "out") == 0) return bind_out(value);
    // another spelling of a name (`axis`), which the table knows
    Object own = checked(in_python([&] { return PyObject_CallMethod(self_.record, "own_name", "O", name); }));
    if (own.get() != Py_None) return bind_keyword(own.get(), value);
    raise(ErrorKind::type,
          concat(self_.op->name, "() got an unexpected keyword argument '", text_of(name), "'"));
}

void Arguments::bind(PyObject* const* args, size_t count, PyObject* names) {
    const auto& params = *self_.params;
    if (count > params.size()) {
        bool sizes = !params.empty() && params.back().kind == 'Z';
        KILN_CHECK(sizes, type, self_.op->name, "() takes ", params.size(),
                   params.size() == 1 ? " positional argument but " : " positional arguments but ", count,
                   " were given");
    }
    size_t last = params.size();
    if (last && params.back().kind == 'Z' && count >= last &&
        (count > last || PyIndex_Check(args[last - 1]))) {
        more_ = checked(PyTuple_New(Py_ssize_t(count - last + 1)));
        for (size_t i = last - 1; i < count; ++i)
            PyTuple_SET_ITEM(more_.get(), i - last + 1, Py_NewRef(args[i]));
        values_[last - 1] = more_.get();
        count = last - 1;
    }
    for (size_t i = 0; i < count; ++i) values_[i] = args[i];
    if (names) {
        PyObject* const* values =
            args + (more_ ? PyTuple_GET_SIZE(more_.get()) + Py_ssize_t(count) : Py_ssize_t(count));
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); ++k)
            bind_keyword(PyTuple_GET_ITEM(names, k), values[k]);
    }
    for (size_t p = 0; p < params.size(); ++p) {
        if (!values_[p]) values_[p] = params[p].default_value;
        KILN_CHECK(values_[p] != required, type, self_.op->name, "() missing required argument: '",
                   PyUnicode_AsUTF8(params[p].name), "'");
    }
}

// ---- operands and structure ----

void Arguments::wrong_argument(const Param& param, PyObject* value, const char* expected) const {
    raise(ErrorKind::type, concat(self_.op->name, "(): argument '", PyUnicode_AsUTF8(param.name),
                                  "' must be ", expected, ", not ", Py_TYPE(value)->tp_name));
}

bool Arguments::collect() {
    if (symbolic_out_) return false;
    const auto& params = *self_.params;
    for (size_t p = 0; p < params.size(); ++p)
        if (!collect_one(params[p], values_[p])) return false;
    return true;
}

Fn& Arguments::fn() {
    if (pointwise_ && structure_.empty()) return plain_fn(self_);
    if (self_.last && is_structure_of(*self_.last)) return *self_.last;
    Object tuple = checked(PyTuple_New(Py_ssize_t(structure_.size())));
    for (size_t i = 0; i < structure_.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, structure_[i].release());
    return *(self_.last = &fn_of(reinterpret_cast<PyObject*>(&self_), tuple.get()));
}

// Whether fn's structure is of the same objects: letters, None, flags and most ints exist once.
bool Arguments::is_structure_of(const Fn& fn) const {
    auto* known = static_cast<PyObject*>(fn.structure.object);
    bool same = size_t(PyTuple_GET_SIZE(known)) == structure_.size();
    for (size_t i = 0; same && i < structure_.size(); ++i)
        same = PyTuple_GET_ITEM(known, i) == structure_[i].get();
    return same;
}

bool Arguments::collect_one(const Param& param, PyObject* value) {
    switch (param.kind) {
    case 'S':
        if (self_.op->view == ViewKind::permute || self_.op->view == ViewKind::slice)
            return collect_view_dims(param, value);
        if (is_symbolic(value)) return false;
        if (PyBool_Check(param.default_value) && is_no_flag(value)) wrong_argument(param, value, "bool");
        structure_.push_back(is_tensor(value) ? checked(PyNumber_Index(value)) : fixed(plain(value).get()));
        return true;
    case 'Z': return collect_sizes(param, value);
    case 'L': return collect_list(param, value);
    default: return collect_operand(param, value);
    }
}

bool Arguments::collect_operand(const Param& param, PyObject* value) {
    if (is_tensor(value)) {
        Tensor& tensor = tensor_of(value);
        if (param.kind == 'N') {  // a 0-d tensor where a number belongs is read
            KILN_CHECK(tensor.numel == 1, type, self_.op->name, "(): argument '",
                       PyUnicode_AsUTF8(param.name), "' must be a number, not a tensor of shape ",
                       shape_text(tensor.sizes));
            const TensorRef held(&tensor);
            ready(tensor);
            add_number(read_element(tensor.dtype, tensor.data()));
            return true;
        }
        operands.push_back({hold(value, held_), {}});
        if (!pointwise_) structure_.push_back(code_text(array_code));
        return true;
    }
    if (value == Py_None && param.kind != 'T') {
        KILN_CHECK(!pointwise_, type, self_.op->name, "(): argument '", PyUnicode_AsUTF8(param.name),
                   "' must not be None");
        structure_.push_back(Object::borrow(Py_None));
        return true;
    }
    Number number;
    if ((param.kind == 'V' || param.kind == 'N') && number_from(value, &number)) {
        add_number(number);
        return true;
    }
    if (is_symbolic(value)) return false;
    wrong_argument(param, value,
                   param.kind == 'N'   ? "a number"
                   : param.kind == 'V' ? "Tensor or a number"
                                       : "Tensor");
}

void Arguments::add_number(const Number& number) {
    operands.push_back({nullptr, number});
    if (pointwise_) return;
    structure_.push_back(code_text(number.kind == Kind::float_  ? float_code
                                   : number.kind == Kind::bool_ ? bool_code
                                                                : int_code));
}

// False if a size is symbolic.
bool Arguments::read_sizes(const Param& param, PyObject* value, Dims* sizes) {
    if (plain_sizes(value, sizes)) return true;
    if (PyTuple_Check(value) || PyList_Check(value)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
            if (is_symbolic(PySequence_Fast_GET_ITEM(value, i))) return false;
    } else if (is_symbolic(value)) {
        return false;
    }
    *sizes =
        dims_from(value, (self_.op->name + "(): argument '" + PyUnicode_AsUTF8(param.name) + "'").c_str());
    return true;
}

bool Arguments::collect_sizes(const Param& param, PyObject* value) {
    Dims sizes;
    if (!read_sizes(param, value, &sizes)) return false;
    for (int64_t size : sizes) operands.push_back({nullptr, Number::of(size)});
    structure_.push_back(count_of(Py_ssize_t(sizes.size())));
    return true;
}

// A view's structure (a permutation, a dim) is part of its function.
bool Arguments::collect_view_dims(const Param& param, PyObject* value) {
    Dims dims;
    if (!read_sizes(param, value, &dims)) return false;
    structure_.push_back(checked(dims_object(dims)));
    return true;
}

bool Arguments::collect_list(const Param& param, PyObject* value) {
    KILN_CHECK(PyList_Check(value) || PyTuple_Check(value), type, self_.op->name, "(): argument '",
               PyUnicode_AsUTF8(param.name), "' must be a tuple of Tensors, not ", Py_TYPE(value)->tp_name);
    list_ = fixed(value);
    Py_ssize_t count = PyTuple_GET_SIZE(list_.get());
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* item = PyTuple_GET_ITEM(list_.get(), i);
        if (is_symbolic(item)) return false;
        if (!is_tensor(item)) wrong_argument(param, item, "a tuple of Tensors");
        operands.push_back({hold(item, held_), {}});
    }
    structure_.push_back(count_of(count));
    return true;
}

int add_arguments(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
