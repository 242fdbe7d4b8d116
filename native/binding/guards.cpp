#include "binding/guards.h"

#include <bit>
#include <memory>
#include <vector>

namespace kiln {
namespace {

// A container and what of it was there. A dict that was not written since, as its version says, is not looked
// into.
struct Guard {
    struct Entry {
        Object key, held;  // nothing held: there was no such key
    };
    Object container;
    std::vector<Entry> entries;
    bool whole = false;    // nothing else was in it
    uint64_t version = 0;  // of a dict or class, when it last held
};
using Guards = std::vector<Guard>;

struct GuardsObject {
    PyObject_HEAD Guards* guards;
};
Guards& guards_of(PyObject* object) { return *reinterpret_cast<GuardsObject*>(object)->guards; }

bool is_number_or_text(PyObject* x) {
    return PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyUnicode_CheckExact(x) || PyBytes_CheckExact(x);
}

// Python counts the writes of dicts up to 3.11, over all of them: no two states of one have the same number.
uint64_t version_of(PyObject* container) {
#if PY_VERSION_HEX < 0x030c0000
    if (PyDict_Check(container)) return reinterpret_cast<PyDictObject*>(container)->ma_version_tag;
#endif
    if (!PyType_Check(container)) return 0;
    const auto* type = reinterpret_cast<PyTypeObject*>(container);
    return PyType_HasFeature(const_cast<PyTypeObject*>(type), Py_TPFLAGS_VALID_VERSION_TAG)
               ? type->tp_version_tag
               : 0;
}

PyObject* found_in(PyObject* container, PyObject* key) {
    if (PyType_Check(container)) return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(container), key);
    PyObject* const found = PyDict_GetItemWithError(container, key);
    if (!found) PyErr_Clear();
    return found;
}

bool as_it_was(PyObject* held, PyObject* found) {
    if (!held || !found) return held == found;
    return same_object(held, found);
}

bool list_holds(const Guard& guard) {
    PyObject* const list = guard.container.get();
    if (size_t(PyList_GET_SIZE(list)) != guard.entries.size()) return false;
    for (size_t i = 0; i < guard.entries.size(); ++i)
        if (!same_object(guard.entries[i].held.get(), PyList_GET_ITEM(list, Py_ssize_t(i)))) return false;
    return true;
}

bool set_holds(const Guard& guard) {
    if (size_t(PySet_GET_SIZE(guard.container.get())) != guard.entries.size()) return false;
    for (const Guard::Entry& entry : guard.entries)
        if (PySet_Contains(guard.container.get(), entry.key.get()) != 1) return PyErr_Clear(), false;
    return true;
}

bool holds(Guard& guard) {
    PyObject* const container = guard.container.get();
    if (PyCell_Check(container)) return PyCell_GET(container) == guard.entries[0].held.get();
    if (PyList_Check(container)) return list_holds(guard);
    if (PyAnySet_Check(container)) return set_holds(guard);
    const uint64_t version = version_of(container);
    if (version && version == guard.version) return true;
    if (guard.whole && size_t(PyDict_GET_SIZE(container)) != guard.entries.size()) return false;
    for (const Guard::Entry& entry : guard.entries)
        if (!as_it_was(entry.held.get(), found_in(container, entry.key.get()))) return false;
    guard.version = version_of(container);  // that of a class may be given by the look
    return true;
}

Guards guards_from(PyObject* list) {
    Guards guards;
    const Object all = checked(PySequence_Fast(list, "guards: expected a list"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); ++i) {
        PyObject *container, *entries;
        int whole;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(all.get(), i), "OO!p", &container, &PyTuple_Type,
                              &entries, &whole))
            throw Error(ErrorKind::python, "");
        const bool keyed = PyDict_Check(container) || PyType_Check(container) || PyAnySet_Check(container);
        KILN_CHECK(keyed || PyCell_Check(container) || PyList_Check(container), type,
                   "guards: expected a dict, list, set, cell or class, got ", Py_TYPE(container)->tp_name);
        Guard& guard = guards.emplace_back();
        guard.container = Object::borrow(container);
        guard.whole = whole && PyDict_Check(container);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(entries); ++k) {
            PyObject *key, *held = nullptr;
            if (!PyArg_ParseTuple(PyTuple_GET_ITEM(entries, k), "O|O", &key, &held))
                throw Error(ErrorKind::python, "");
            guard.entries.push_back({Object::borrow(key), Object::borrow(held)});
        }
        KILN_CHECK(!PyCell_Check(container) || guard.entries.size() == 1, value,
                   "guards: a closure's cell holds one object");
    }
    return guards;
}

PyObject* guards_new(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject* list;
        if (!PyArg_ParseTuple(args, "O:Guards", &list)) return nullptr;
        auto guards = std::make_unique<Guards>(guards_from(list));
        PyObject* const object = type->tp_alloc(type, 0);
        if (object) reinterpret_cast<GuardsObject*>(object)->guards = guards.release();
        return object;
    });
}
int guards_traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    if (!reinterpret_cast<GuardsObject*>(object)->guards) return 0;
    for (const Guard& guard : guards_of(object)) {
        Py_VISIT(guard.container.get());
        for (const Guard::Entry& entry : guard.entries) {
            Py_VISIT(entry.key.get());
            Py_VISIT(entry.held.get());
        }
    }
    return 0;
}
int guards_clear(PyObject* object) {
    if (Guards* const guards = std::exchange(reinterpret_cast<GuardsObject*>(object)->guards, nullptr))
        delete guards;
    return 0;
}
void guards_dealloc(PyObject* object) {
    PyObject_GC_UnTrack(object);
    guards_clear(object);
    PyTypeObject* const type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}
PyObject* guards_hold(PyObject* self, PyObject*) { return PyBool_FromLong(hold(self)); }

// What is in a list or set now, or under the keys of another container.
void renew(Guard& guard) {
    PyObject* const container = guard.container.get();
    if (PyCell_Check(container)) {
        guard.entries[0].held = Object::borrow(PyCell_GET(container));
    } else if (PyList_Check(container) || PyAnySet_Check(container)) {
        const Object items = checked(PySequence_List(container));
        std::vector<Guard::Entry> now;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i)
            now.push_back({Object::borrow(PyList_GET_ITEM(items.get(), i)),
                           Object::borrow(PyList_GET_ITEM(items.get(), i))});
        std::swap(guard.entries, now);
    } else if (guard.whole) {
        std::vector<Guard::Entry> now;
        Py_ssize_t at = 0;
        PyObject *key, *value;
        while (PyDict_Next(container, &at, &key, &value))
            now.push_back({Object::borrow(key), Object::borrow(value)});
        std::swap(guard.entries, now);
    } else {
        for (Guard::Entry& entry : guard.entries)
            entry.held = Object::borrow(found_in(container, entry.key.get()));
    }
    guard.version = 0;
}
PyObject* guards_renew(PyObject* self, PyObject*) {
    for (Guard& guard : guards_of(self)) renew(guard);
    Py_RETURN_NONE;
}

PyMethodDef guards_methods[] = {
    {"hold", guards_hold, METH_NOARGS, "Whether all is as it was."},
    {"renew", guard<guards_renew>, METH_NOARGS, "From now on all is to be as it is now."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot guards_slots[] = {
    {Py_tp_new, slot<guards_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(guards_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(guards_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(guards_clear)},
    {Py_tp_methods, guards_methods},
    {0, nullptr},
};
PyType_Spec guards_spec = {"kiln._core.Guards", sizeof(GuardsObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, guards_slots};

}  // namespace

PyTypeObject* guards_type = nullptr;

bool same_object(PyObject* a, PyObject* b) {
    if (a == b) return true;
    if (!a || !b || Py_TYPE(a) != Py_TYPE(b) || !is_number_or_text(a)) return false;
    if (PyFloat_CheckExact(a))
        return std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(a)) == std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(b));
    const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal > 0;
}

bool hold(PyObject* guards) {
    if (!reinterpret_cast<GuardsObject*>(guards)->guards) return false;
    for (Guard& guard : guards_of(guards))
        if (!holds(guard)) return false;
    return true;
}

int add_guards(PyObject* module) {
    guards_type = add_type(module, guards_spec);
    return guards_type ? 0 : -1;
}

}  // namespace kiln
