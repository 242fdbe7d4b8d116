// Grad mode, inference mode, autocast and hooks on saved tensors as what a `with` statement holds: entered
// and left in one C function each, so that a signal's handler, which runs between two of Python's
// instructions, finds a mode either as it was or as it is remembered.
#include "binding/bind.h"
#include "binding/holder.h"

#include <optional>
#include <vector>

#include "autograd/autograd.h"
#include "autograd/hooks.h"

namespace kiln {
namespace {

// What is not set stays as it is.
struct ModeSwitch {
    std::optional<bool> grad, inference;
    std::optional<Autocast> autocast;
    std::vector<Modes> found;     // one for each time it is entered
    std::optional<Modes> before;  // what `now` found, until it is entered
};
ModeSwitch& switch_of(PyObject* object) { return held_by<ModeSwitch>(object); }

// How often a switch of this thread has set gradients on: what a function does may then record them in modes
// in which its caller does not.
thread_local uint64_t times_enabled = 0;

void set(const ModeSwitch& self) {
    const Modes now = modes();
    times_enabled += self.grad.value_or(false);
    set_modes({self.grad.value_or(now.grad), self.inference.value_or(now.inference),
               self.autocast.value_or(now.autocast)});
}

// Casts of parameters that this thread keeps: a dict that Python fills, owned by its thread state.
constexpr char cast_cache[] = "kiln.autocast";
void drop_casts() {
    PyObject* kept = PyThreadState_GetDict();
    if (kept && PyDict_GetItemString(kept, cast_cache)) checked_ok(PyDict_DelItemString(kept, cast_cache));
}
void back_to(const Modes& found) {
    const bool ends = autocast().on && !found.autocast.on;
    set_modes(found);
    if (ends) drop_casts();
}

// Remembers the modes and switches; nothing is changed if there is no memory for that.
void enter(ModeSwitch& self) {
    self.found.push_back(self.before.value_or(modes()));
    self.before.reset();
    set(self);
}
void leave(ModeSwitch& self) {
    KILN_CHECK(!self.found.empty(), runtime, "a mode is left that was not entered");
    const Modes found = self.found.back();
    self.found.pop_back();
    back_to(found);
}

Object autocast_object(const Autocast& mode) {
    if (!mode.on) return Object::borrow(Py_None);
    return checked(Py_BuildValue("(ON)", dtype_object(mode.dtype), PyBool_FromLong(mode.cache)));
}
// Of False or None for off, or (dtype, whether casts of parameters are kept).
Autocast autocast_from(PyObject* object) {
    Autocast mode;
    if (object == Py_None || object == Py_False) return mode;
    PyObject* dtype;
    int cache;
    if (!PyArg_ParseTuple(object, "Op:autocast", &dtype, &cache)) throw Error(ErrorKind::python, "");
    return {true, bool(cache), dtype_from(dtype)};
}

// (grad, inference, autocast), None for each that stays; autocast as `autocast_from` takes it
int init_switch(ModeSwitch& self, PyObject* args) {
    PyObject *grad, *inference = Py_None, *autocast = Py_None;
    if (!PyArg_ParseTuple(args, "O|OO:ModeSwitch", &grad, &inference, &autocast)) return -1;
    if (grad != Py_None) self.grad = PyObject_IsTrue(grad);
    if (inference != Py_None) self.inference = PyObject_IsTrue(inference);
    if (autocast != Py_None) self.autocast = autocast_from(autocast);
    return 0;
}
int switch_init(PyObject* object, PyObject* args, PyObject*) {
    int result = -1;
    guarded([&]() -> PyObject* {
        result = init_switch(switch_of(object), args);
        return nullptr;
    });
    return result;
}
PyObject* switch_enter(PyObject* self, PyObject*) {
    enter(switch_of(self));
    Py_RETURN_NONE;
}
PyObject* switch_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
    leave(switch_of(self));
    Py_RETURN_NONE;
}
PyObject* switch_now(PyObject* self, PyObject*) {
    switch_of(self).before = modes();
    set(switch_of(self));
    Py_RETURN_NONE;
}
PyObject* switch_undo(PyObject* self, PyObject*) {
    std::optional<Modes>& before = switch_of(self).before;
    if (before) back_to(*before);
    before.reset();
    Py_RETURN_NONE;
}
// function(*args, **kwargs) under the mode.
PyObject* switch_call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "call: expected a function");
    const Modes found = modes();
    set(switch_of(self));
    PyObject* result =
        in_python([&] { return PyObject_Vectorcall(args[0], args + 1, size_t(count - 1), names); });
    back_to(found);
    return result;
}
PyObject* switch_mode(PyObject* self, void*) {
    const ModeSwitch& own = switch_of(self);
    return PyBool_FromLong(own.inference.value_or(own.grad.value_or(false)));
}

PyMethodDef switch_methods[] = {
    {"__enter__", guard<switch_enter>, METH_NOARGS, "Remembers the modes and switches."},
    {"__exit__", method<switch_exit>(), METH_FASTCALL, "Back to what was found."},
    {"now", switch_now, METH_NOARGS, "Switches at once; the next entry goes back to what this found."},
    {"undo", switch_undo, METH_NOARGS, "Takes `now` back."},
    {"call", method<switch_call>(), METH_FASTCALL | METH_KEYWORDS,
     "function(*args, **kwargs) under the mode."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef switch_getset[] = {
    {"mode", switch_mode, nullptr, "What it switches to.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot switch_slots[] = {
    {Py_tp_new, slot<holder_new<ModeSwitch>>()},
    {Py_tp_init, reinterpret_cast<void*>(switch_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(holder_dealloc<ModeSwitch>)},
    {Py_tp_methods, switch_methods},
    {Py_tp_getset, switch_getset},
    {0, nullptr},
};
PyType_Spec switch_spec = {"kiln._core.ModeSwitch", sizeof(Holder<ModeSwitch>), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, switch_slots};

// ---- hooks on saved tensors: the attributes pack_hook and unpack_hook ----

using FoundHooks = std::vector<SavedHooks>;  // one for each time the object is entered

PyObject* hooks_enter(PyObject* self, PyObject*) {
    const Object pack = checked(PyObject_GetAttrString(self, "pack_hook"));
    const Object unpack = checked(PyObject_GetAttrString(self, "unpack_hook"));
    FoundHooks& found = held_by<FoundHooks>(self);
    found.push_back(saved_hooks());
    if (set_saved_hooks({Opaque(pack.get()), Opaque(unpack.get()), {}})) Py_RETURN_NONE;
    found.pop_back();
    return nullptr;
}
PyObject* hooks_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
    FoundHooks& found = held_by<FoundHooks>(self);
    if (found.empty()) Py_RETURN_NONE;
    SavedHooks before = std::move(found.back());
    found.pop_back();
    std::swap(saved_hooks().refusal, before.refusal);  // stays
    std::swap(saved_hooks(), before);                  // what these hooks hold goes when they are out
    Py_RETURN_NONE;
}
PyMethodDef hooks_methods[] = {
    {"__enter__", guard<hooks_enter>, METH_NOARGS, "Remembers this thread's hooks and sets these."},
    {"__exit__", method<hooks_exit>(), METH_FASTCALL, "Back to what was found."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot hooks_slots[] = {
    {Py_tp_new, slot<holder_new<FoundHooks>>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(holder_dealloc<FoundHooks>)},
    {Py_tp_methods, hooks_methods},
    {0, nullptr},
};
PyType_Spec hooks_spec = {"kiln._core.HooksSwitch", sizeof(Holder<FoundHooks>), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, hooks_slots};

PyObject* get_modes(PyObject*, PyObject*) {
    const Modes now = modes();
    return Py_BuildValue("(NNN)", PyBool_FromLong(now.grad), PyBool_FromLong(now.inference),
                         autocast_object(now.autocast).release());
}
PyObject* put_modes(PyObject*, PyObject* args) {
    int grad, inference;
    PyObject* autocast;
    if (!PyArg_ParseTuple(args, "ppO:set_modes", &grad, &inference, &autocast)) return nullptr;
    set_modes({bool(grad), bool(inference), autocast_from(autocast)});
    Py_RETURN_NONE;
}
PyObject* get_casts(PyObject*, PyObject*) {
    PyObject* kept = PyThreadState_GetDict();
    KILN_CHECK(kept, runtime, "autocast: this thread has no state of Python's");
    if (PyObject* casts = PyDict_GetItemString(kept, cast_cache)) return Py_NewRef(casts);
    Object made = checked(PyDict_New());
    checked_ok(PyDict_SetItemString(kept, cast_cache, made.get()));
    return made.release();
}
PyObject* get_times_enabled(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(times_enabled); }
PyObject* get_enabled(PyObject*, PyObject*) { return PyBool_FromLong(grad_enabled()); }
PyObject* put_enabled(PyObject*, PyObject* value) {
    int wanted = PyObject_IsTrue(value);
    if (wanted < 0) return nullptr;
    return PyBool_FromLong(set_grad_enabled(wanted));
}

PyMethodDef functions[] = {
    {"grad_enabled", get_enabled, METH_NOARGS, "Whether ops record gradients on this thread."},
    {"set_grad_enabled", put_enabled, METH_O, "Sets whether ops record gradients; returns what it was."},
    {"times_enabled", get_times_enabled, METH_NOARGS,
     "How often a switch (`ModeSwitch`) of this thread has set gradients on."},
    {"modes", guard<get_modes>, METH_NOARGS,
     "This thread's (grad mode, inference mode, None or autocast's (dtype, whether casts are kept))."},
    {"set_modes", guard<put_modes>, METH_VARARGS, "Sets what `modes` gives."},
    {"cast_cache", guard<get_casts>, METH_NOARGS,
     "This thread's casts of parameters: a dict, dropped where autocast ends."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool set_saved_hooks(SavedHooks hooks) {
    hooks.refusal = saved_hooks().refusal;
    if (hooks.pack.object && hooks.refusal.object) {
        PyErr_SetObject(PyExc_RuntimeError, static_cast<PyObject*>(hooks.refusal.object));
        return false;
    }
    std::swap(saved_hooks(), hooks);  // the old ones go when the new are in place
    return true;
}

int add_modes(PyObject* module) {
    for (PyType_Spec* spec : {&switch_spec, &hooks_spec})
        if (!add_type(module, *spec)) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
