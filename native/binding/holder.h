// A Python object around one value of C++, as types that hold a state are made.
#pragma once

#include "binding/bind.h"

namespace kiln {

template <class Value>
struct Holder {
    PyObject_HEAD Value* value;
};
template <class Value>
Value& held_by(PyObject* object) {
    return *reinterpret_cast<Holder<Value>*>(object)->value;
}
template <class Value>
PyObject* holder_new(PyTypeObject* type, PyObject*, PyObject*) {
    Object object = checked(type->tp_alloc(type, 0));
    reinterpret_cast<Holder<Value>*>(object.get())->value = new Value();
    return object.release();
}
template <class Value>
void holder_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (PyType_IS_GC(type)) PyObject_GC_UnTrack(object);
    delete reinterpret_cast<Holder<Value>*>(object)->value;
    type->tp_free(object);
    Py_DECREF(type);
}

}  // namespace kiln
