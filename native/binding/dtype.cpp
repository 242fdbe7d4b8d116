// dtypes, devices, sizes and numbers as Python objects.
#include "base/dtype.h"
#include "binding/bind.h"

namespace kiln {

PyTypeObject* dtype_type = nullptr;
PyTypeObject* size_type = nullptr;

namespace {

struct DTypeObject {
    PyObject_HEAD DType dtype;
};

PyObject* dtype_objects[dtype_count];

DType value_of(PyObject* object) { return reinterpret_cast<DTypeObject*>(object)->dtype; }

PyObject* dtype_repr(PyObject* self) { return PyUnicode_FromFormat("kiln.%s", name(value_of(self))); }
// One object per name: what is compared with names is then found without looking at letters.
PyObject* dtype_name(PyObject* self, void*) { return PyUnicode_InternFromString(name(value_of(self))); }
PyObject* dtype_itemsize(PyObject* self, void*) { return PyLong_FromSize_t(itemsize(value_of(self))); }
PyObject* dtype_is_float(PyObject* self, void*) { return PyBool_FromLong(is_float(value_of(self))); }
PyObject* dtype_is_signed(PyObject* self, void*) {
    Kind k = kind(value_of(self));
    return PyBool_FromLong(k == Kind::int_ || k == Kind::float_);
}
PyObject* dtype_is_complex(PyObject*, void*) { Py_RETURN_FALSE; }
PyObject* dtype_reduce(PyObject* self, PyObject*) { return PyUnicode_FromString(name(value_of(self))); }

PyGetSetDef dtype_getset[] = {
    {"name", dtype_name, nullptr, "The dtype's name, such as \"float32\".", nullptr},
    {"itemsize", dtype_itemsize, nullptr, "Bytes per element.", nullptr},
    {"is_floating_point", dtype_is_float, nullptr, "Whether it is a float dtype.", nullptr},
    {"is_signed", dtype_is_signed, nullptr, "Whether it holds negative values.", nullptr},
    {"is_complex", dtype_is_complex, nullptr, "Always False: there are no complex dtypes.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef dtype_methods[] = {
    {"__reduce__", dtype_reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot dtype_slots[] = {
    {Py_tp_repr, reinterpret_cast<void*>(dtype_repr)},
    {Py_tp_getset, dtype_getset},
    {Py_tp_methods, dtype_methods},
    {Py_tp_doc, const_cast<char*>("The type of a tensor's elements.")},
    {0, nullptr},
};
PyType_Spec dtype_spec = {"kiln.dtype", sizeof(DTypeObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, dtype_slots};

PyObject* size_numel(PyObject* self, PyObject*) {
    Object count = Object::steal(PyLong_FromLong(1));
    for (Py_ssize_t d = 0; count && d < PyTuple_GET_SIZE(self); ++d) {
        const Object size = Object::steal(PyNumber_Index(PyTuple_GET_ITEM(self, d)));
        count = Object::steal(size ? PyNumber_Multiply(count.get(), size.get()) : nullptr);
    }
    return count.release();
}
PyObject* size_repr(PyObject* self) {
    Object list = Object::steal(PySequence_List(self));
    return list ? PyUnicode_FromFormat("kiln.Size(%R)", list.get()) : nullptr;
}
// A tuple that a size was made into, as a size.
PyObject* as_size(PyObject* made) {
    const Object tuple = Object::steal(made);
    return tuple ? PyObject_CallOneArg(reinterpret_cast<PyObject*>(size_type), tuple.get()) : nullptr;
}
PyObject* size_part(PyObject* self, PyObject* key) {
    PyObject* found = PyTuple_Type.tp_as_mapping->mp_subscript(self, key);
    return PySlice_Check(key) ? as_size(found) : found;
}
PyObject* size_add(PyObject* a, PyObject* b) {
    if (!PyTuple_Check(a) || !PyTuple_Check(b)) Py_RETURN_NOTIMPLEMENTED;
    return as_size(PyTuple_Type.tp_as_sequence->sq_concat(a, b));
}
PyObject* size_repeat(PyObject* self, Py_ssize_t times) {
    return as_size(PyTuple_Type.tp_as_sequence->sq_repeat(self, times));
}
// A tuple of numbers that count: ints, and what stands for one.
PyObject* size_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    Object made = Object::steal(PyTuple_Type.tp_new(type, args, kwargs));
    for (Py_ssize_t d = 0; made && d < PyTuple_GET_SIZE(made.get()); ++d)
        if (PyObject* item = PyTuple_GET_ITEM(made.get(), d); !PyIndex_Check(item))
            return PyErr_Format(PyExc_TypeError, "Size() takes an iterable of 'int' (item %zd is '%s')", d,
                                Py_TYPE(item)->tp_name);
    return made.release();
}
PyMethodDef size_methods[] = {
    {"numel", size_numel, METH_NOARGS, "The number of elements of a tensor of this size."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot size_slots[] = {
    {Py_tp_base, nullptr},  // tuple; filled in before use
    {Py_tp_new, reinterpret_cast<void*>(size_new)},
    {Py_tp_repr, reinterpret_cast<void*>(size_repr)},
    {Py_mp_subscript, reinterpret_cast<void*>(size_part)},
    {Py_nb_add, reinterpret_cast<void*>(size_add)},
    {Py_sq_repeat, reinterpret_cast<void*>(size_repeat)},
    {Py_tp_methods, size_methods},
    {Py_tp_doc, const_cast<char*>("The sizes of a tensor: a tuple, whose slices and sums are sizes.")},
    {0, nullptr},
};
PyType_Spec size_spec = {"kiln.Size", 0, 0, Py_TPFLAGS_DEFAULT, size_slots};

PyObject* result_type(PyObject*, PyObject* pairs) {
    ResultType type;
    Object list = checked(PySequence_Fast(pairs, "result_type: expected pairs (name, category)"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        PyObject* pair = PySequence_Fast_GET_ITEM(list.get(), i);
        const char* text = PyUnicode_AsUTF8(PyTuple_GetItem(pair, 0));
        long category = PyLong_AsLong(PyTuple_GetItem(pair, 1));
        if (PyErr_Occurred()) throw Error(ErrorKind::python, "");
        auto dtype = dtype_from_name(text);
        KILN_CHECK(dtype && category >= 0 && category <= 2, value, "result_type: not a dtype: ", text);
        type.add(*dtype, Category(category));
    }
    return PyUnicode_InternFromString(name(type.value()));
}

PyObject* promote(PyObject*, PyObject* args) {
    PyObject *a, *b;
    if (!PyArg_ParseTuple(args, "OO:promote_types", &a, &b)) return nullptr;
    return Py_NewRef(dtype_object(promote_types(dtype_from(a), dtype_from(b))));
}

PyObject* may_cast(PyObject*, PyObject* args) {
    PyObject *a, *b;
    if (!PyArg_ParseTuple(args, "OO:can_cast", &a, &b)) return nullptr;
    return PyBool_FromLong(can_cast(dtype_from(a), dtype_from(b)));
}

PyObject* get_default(PyObject*, PyObject*) { return Py_NewRef(dtype_object(default_dtype())); }
PyObject* get_default_name(PyObject*, PyObject*) { return PyUnicode_InternFromString(name(default_dtype())); }
PyObject* set_default(PyObject*, PyObject* dtype) {
    DType wanted = dtype_from(dtype);
    flush_all("the default dtype changed");  // what is recorded was meant under the old one
    change_default_dtype(wanted);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"result_type", guard<result_type>, METH_O,
     "The common dtype's name of (name, 0 array | 1 0-d array | 2 number) pairs."},
    {"promote_types", guard<promote>, METH_VARARGS, "The smallest dtype two dtypes convert to."},
    {"can_cast", guard<may_cast>, METH_VARARGS,
     "Whether values of one dtype may be stored in another by an in-place op."},
    {"get_default_dtype", get_default, METH_NOARGS, "The dtype of Python floats in new tensors."},
    {"default_dtype_name", get_default_name, METH_NOARGS, "The name of the default float dtype."},
    {"set_default_dtype", guard<set_default>, METH_O,
     "Sets the dtype of Python floats in new tensors; a float dtype."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* dtype_object(DType dtype) { return dtype_objects[int(dtype)]; }

DType dtype_from(PyObject* object) {
    if (Py_TYPE(object) == dtype_type) return value_of(object);
    if (PyUnicode_Check(object)) {
        const std::string name = text_of(object);
        auto dtype = dtype_from_name(name);
        KILN_CHECK(dtype, type, "dtype: expected a dtype, got '", name, "'");
        return *dtype;
    }
    if (object == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::bool_;
    if (object == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::int64;
    if (object == reinterpret_cast<PyObject*>(&PyFloat_Type)) return DType::float64;
    raise(ErrorKind::type,
          concat("dtype: expected a dtype such as kiln.float32, got ", Py_TYPE(object)->tp_name));
}

namespace {

// A new tuple with its items; null if one gets no memory.
PyObject* filled(PyObject* tuple, const Dims& dims) {
    for (size_t d = 0; tuple && d < dims.size(); ++d) {
        PyObject* const item = PyLong_FromLongLong(dims[d]);
        PyTuple_SET_ITEM(tuple, d, item);
        if (!item) Py_CLEAR(tuple);
    }
    return tuple;
}

}  // namespace

// By value: making the tuple may collect cycles, and a finalizer may replace the tensor whose dims these are.
PyObject* dims_object(Dims dims) { return filled(PyTuple_New(Py_ssize_t(dims.size())), dims); }

PyObject* size_object(Dims dims) {
    // A subclass of tuple without fields of its own: made as tuple.__new__ makes it.
    return filled(size_type->tp_alloc(size_type, Py_ssize_t(dims.size())), dims);
}

Dims dims_from(PyObject* object, const char* what) {
    Dims dims;
    if (PyIndex_Check(object)) {
        Py_ssize_t value = PyNumber_AsSsize_t(object, PyExc_OverflowError);
        if (value == -1 && PyErr_Occurred()) throw Error(ErrorKind::python, "");
        dims.push_back(value);
        return dims;
    }
    KILN_CHECK(PySequence_Check(object) && !PyUnicode_Check(object), type, what, ": expected ints, got ",
               Py_TYPE(object)->tp_name);
    Object list = checked(PySequence_Fast(object, "expected ints"));
    for (Py_ssize_t d = 0; d < PySequence_Fast_GET_SIZE(list.get()); ++d) {
        PyObject* item = PySequence_Fast_GET_ITEM(list.get(), d);
        KILN_CHECK(PyIndex_Check(item), type, what, ": expected ints, got ", Py_TYPE(item)->tp_name,
                   " at position ", d);
        Py_ssize_t value = PyNumber_AsSsize_t(item, PyExc_OverflowError);
        if (value == -1 && PyErr_Occurred()) throw Error(ErrorKind::python, "");
        dims.push_back(value);
    }
    return dims;
}

PyObject* stand_in_type = nullptr;

bool number_from(PyObject* object, Number* number) {
    if (PyBool_Check(object)) {
        *number = Number::of(object == Py_True);
        return true;
    }
    if (PyFloat_Check(object)) {
        *number = Number::of(PyFloat_AS_DOUBLE(object));
        return true;
    }
    if (!PyLong_Check(object) && (is_tensor(object) || is_symbolic(object))) return false;
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == stand_in_type) {
        const Object value = checked(PyObject_GetAttrString(object, "stands_in"));
        return number_from(value.get(), number);
    }
    if (PyIndex_Check(object)) {
        Object integer = Object::steal(PyNumber_Index(object));
        if (!integer) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw Error(ErrorKind::python, "");
            PyErr_Clear();
            return false;  // an array
        }
        int overflow = 0;
        long long value = PyLong_AsLongLongAndOverflow(integer.get(), &overflow);
        KILN_CHECK(!overflow, overflow, "an int outside 64 bits cannot be a tensor's element");
        *number = Number::of(int64_t(value));
        return true;
    }
    PyNumberMethods* methods = Py_TYPE(object)->tp_as_number;
    if (PyUnicode_Check(object) || !methods || !methods->nb_float || PyObject_CheckBuffer(object) == 0)
        return false;
    Object real = Object::steal(PyNumber_Float(object));  // a NumPy scalar
    if (!real) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) throw Error(ErrorKind::python, "");
        PyErr_Clear();
        return false;
    }
    *number = Number::of(PyFloat_AS_DOUBLE(real.get()));
    return true;
}

PyObject* number_object(const Number& number) {
    if (number.kind == Kind::bool_) return PyBool_FromLong(number.integer != 0);
    if (number.kind == Kind::float_) return PyFloat_FromDouble(number.real);
    return PyLong_FromLongLong(number.integer);
}

const char* buffer_format(DType dtype) {
    static const char* codes[dtype_count] = {"?", "B", "b", "h", "i", "q", "e", nullptr, "f", "d"};
    return codes[int(dtype)];
}

int add_dtypes(PyObject* module) {
    size_slots[0].pfunc = &PyTuple_Type;
    dtype_type = add_type(module, dtype_spec);
    size_type = add_type(module, size_spec);
    if (!dtype_type || !size_type) return -1;
    for (int i = 0; i < dtype_count; ++i) {
        auto* object = PyObject_New(DTypeObject, dtype_type);
        if (!object) return -1;
        object->dtype = DType(i);
        dtype_objects[i] = reinterpret_cast<PyObject*>(object);
        if (PyModule_AddObjectRef(module, name(DType(i)), dtype_objects[i]) < 0) return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
