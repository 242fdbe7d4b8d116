// Turns: what an item of kiln.batching.map has as its own where several take turns on a thread, and how it
// waits where a value is needed that is pending. Each step is one C function, so that no signal's handler
// comes between.
#include <array>
#include <optional>

#include "autograd/autograd.h"
#include "autograd/hooks.h"
#include "batch/list.h"
#include "binding/bind.h"
#include "binding/holder.h"

namespace kiln {
namespace {

constexpr int streams = 2;  // sys.stdout and sys.stderr
PyObject* stream_names[streams];
PyObject* sys_names;  // the dict of sys
// While any thread runs an item, sys has in the place of each stream one that asks `stream_here`.
PyObject* standing[streams] = {};
Object beneath[streams];  // what was there,
int entered = 0;          // and how many items run

struct Turn {
    Modes modes;
    DType default_dtype = DType::float32;
    RandomState random;
    SavedHooks hooks;
    Listing listing;
    std::optional<Item> item;
    Object own[streams];                       // what it writes to
    Object inside[streams], outside[streams];  // what it, and who calls it, has set in its place; or none
    Object wait;            // lets others go on until its next turn; none: it does not wait
    Object strand, here;    // what it runs in, and a function that gives what runs; none: it is this one
    Turn* outer = nullptr;  // whose turn it is outside, on the same thread
};
Turn& turn_of(PyObject* object) { return held_by<Turn>(object); }

constinit thread_local Turn* current = nullptr;
constinit thread_local int64_t held = 0;  // > 0: nobody waits on this thread

void exchange(Turn& own) {
    const Modes now = modes();
    set_modes(own.modes);
    own.modes = now;
    if (const DType dtype = default_dtype(); dtype != own.default_dtype) {
        change_default_dtype(own.default_dtype);
        own.default_dtype = dtype;
    }
    std::swap(own.random, random_state);
    std::swap(own.hooks, saved_hooks());
    std::swap(own.listing, listing_of_thread());
}

void set_stream(int k, PyObject* stream) {
    if (stream)
        checked_ok(PyDict_SetItem(sys_names, stream_names[k], stream));
    else if (PyDict_GetItemWithError(sys_names, stream_names[k]))
        checked_ok(PyDict_DelItem(sys_names, stream_names[k]));
}
// What somebody has set in a stream's place; null: nobody has.
Object set_by_program(int k) {
    PyObject* now = PyDict_GetItemWithError(sys_names, stream_names[k]);
    return Object::borrow(now == standing[k] || now == beneath[k].get() ? nullptr : now);
}
void enter(Turn& own) {
    own.outer = std::exchange(current, &own);
    exchange(own);
    for (int k = 0; k < streams; ++k) {
        if (!entered) beneath[k] = Object::borrow(PyDict_GetItemWithError(sys_names, stream_names[k]));
        own.outside[k] = set_by_program(k);
        set_stream(k, own.inside[k].get() ? own.inside[k].get() : standing[k]);
    }
    ++entered;
}
void leave(Turn& own) {
    current = std::exchange(own.outer, nullptr);
    exchange(own);
    --entered;
    for (int k = 0; k < streams; ++k) {
        own.inside[k] = set_by_program(k);
        PyObject* before = entered ? standing[k] : beneath[k].get();
        set_stream(k, own.outside[k].get() ? own.outside[k].get() : before);
        if (!entered) const Object dropped = std::move(beneath[k]);
    }
}

// A copy of what is there now, but for the random state: (seed, position, index of the item, sys.stdout,
// sys.stderr)
int turn_init(PyObject* object, PyObject* args, PyObject*) {
    long long seed, position, index;
    PyObject *out, *err;
    if (!PyArg_ParseTuple(args, "LLLOO:Turn", &seed, &position, &index, &out, &err)) return -1;
    Turn& own = turn_of(object);
    own.modes = modes();
    own.default_dtype = default_dtype();
    own.random = {uint64_t(seed), position};
    own.hooks = saved_hooks();
    own.listing = listing_of_thread();
    own.listing.item = &own.item.emplace(index, own.listing.item);
    own.own[0] = Object::borrow(out);
    own.own[1] = Object::borrow(err);
    return 0;
}
// function(item), while what is held and what is there have changed places.
PyObject* turn_call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "call: expected a function and an item");
    Turn& own = turn_of(self);
    enter(own);
    Object result = Object::steal(in_python([&] { return PyObject_CallOneArg(args[0], args[1]); }));
    leave(own);
    return result.release();
}
// How it waits: (function, strand or None, function that gives the strand that runs)
PyObject* turn_waits(PyObject* self, PyObject* args) {
    PyObject *wait, *strand, *here;
    if (!PyArg_ParseTuple(args, "OOO:waits", &wait, &strand, &here)) return nullptr;
    Turn& own = turn_of(self);
    own.wait = Object::borrow(wait);
    own.strand = Object::borrow(strand == Py_None ? nullptr : strand);
    own.here = Object::borrow(here);
    Py_RETURN_NONE;
}
PyObject* turn_stop(PyObject* self, PyObject*) {
    const Object dropped = std::move(turn_of(self).wait);
    Py_RETURN_NONE;
}
std::array<Object*, 9> objects_of(Turn& own) {
    return {&own.wait,      &own.strand,    &own.here,       &own.own[0],    &own.own[1],
            &own.inside[0], &own.inside[1], &own.outside[0], &own.outside[1]};
}
// What it waits by leads back to it. A map that Ctrl-C ends may leave it so, for the garbage collector.
int turn_traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    for (Object* own : objects_of(turn_of(object))) Py_VISIT(own->get());
    return 0;
}
int turn_clear(PyObject* object) {
    for (Object* own : objects_of(turn_of(object))) const Object dropped = std::move(*own);
    return 0;
}
// What it read and wrote is nobody's.
PyObject* turn_end(PyObject* self, PyObject*) {
    turn_of(self).item.reset();
    turn_of(self).hooks = {};
    turn_clear(self);
    Py_RETURN_NONE;
}

bool runs_here(const Turn& turn) {
    if (!turn.strand.get()) return true;
    const Object now = checked(PyObject_CallNoArgs(turn.here.get()));
    return now.get() == turn.strand.get();
}
// Until the next turn of the item that runs; nothing where none runs, or may not wait.
void wait_for_turn() {
    Turn* const turn = current;
    if (!turn || held || !turn->wait.get() || !runs_here(*turn)) return;
    const Object wait = Object::borrow(turn->wait.get());
    leave(*turn);
    const Object back = Object::steal(in_python([&] { return PyObject_CallNoArgs(wait.get()); }));
    enter(*turn);
    if (!back.get()) throw Error(ErrorKind::python, "");
}
PyObject* wait_here(PyObject*, PyObject*) {
    wait_for_turn();
    Py_RETURN_NONE;
}
// So many more, or less, that keep items of this thread from waiting; how many there are.
PyObject* hold_turns(PyObject*, PyObject* more) {
    const long long by = PyLong_AsLongLong(more);
    if (by == -1 && PyErr_Occurred()) return nullptr;
    return PyLong_FromLongLong(held += by);
}

// A lock that is handed over: who gives it to another thread and waits at one of its own lets go of the
// interpreter first, so that the other wakes once, and not a second time when the interpreter is free.
struct Baton {
    PyThread_type_lock lock = PyThread_allocate_lock();
    bool down = false;  // somebody has it; known under the interpreter's lock
    ~Baton() {
        if (down) PyThread_release_lock(lock);
        PyThread_free_lock(lock);
    }
};
Baton& baton_of(PyObject* object) { return held_by<Baton>(object); }

// Waits until the baton is given, for so many seconds; whether it was. `given`: another one that is given
// first.
PyObject* take_baton(Baton& own, double seconds, Baton* given) {
    const PY_TIMEOUT_T most = seconds < 0 ? -1 : static_cast<PY_TIMEOUT_T>(seconds * 1e6);
    if (given) given->down = false;
    while (true) {
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS;
        if (given) PyThread_release_lock(given->lock);
        status = PyThread_acquire_lock_timed(own.lock, most, 1);
        Py_END_ALLOW_THREADS;
        given = nullptr;
        if (status == PY_LOCK_ACQUIRED) own.down = true;
        if (status != PY_LOCK_INTR) return PyBool_FromLong(status == PY_LOCK_ACQUIRED);
        if (PyErr_CheckSignals() < 0) return nullptr;
    }
}
PyObject* baton_take(PyObject* self, PyObject* args) {
    double seconds;
    PyObject* given = nullptr;
    if (!PyArg_ParseTuple(args, "d|O!:take", &seconds, Py_TYPE(self), &given)) return nullptr;
    Baton* const other = given && baton_of(given).down ? &baton_of(given) : nullptr;
    return take_baton(baton_of(self), seconds, other);
}
PyObject* baton_give(PyObject* self, PyObject*) {
    Baton& own = baton_of(self);
    if (std::exchange(own.down, false)) PyThread_release_lock(own.lock);
    Py_RETURN_NONE;
}
PyMethodDef baton_methods[] = {
    {"take", guard<baton_take>, METH_VARARGS,
     "take(seconds, given=None): waits until somebody gives it, of a negative number without end; false: "
     "nobody did. `given` is given first, where somebody has it."},
    {"give", baton_give, METH_NOARGS, "Who waits for it goes on; nothing where nobody has it."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot baton_slots[] = {
    {Py_tp_new, slot<holder_new<Baton>>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(holder_dealloc<Baton>)},
    {Py_tp_methods, baton_methods},
    {0, nullptr},
};
PyType_Spec baton_spec = {"kiln._core.Baton", sizeof(Holder<Baton>), 0, Py_TPFLAGS_DEFAULT, baton_slots};

PyMethodDef turn_methods[] = {
    {"call", method<turn_call>(), METH_FASTCALL,
     "function(item), with what is held in the place of what is there."},
    {"waits", guard<turn_waits>, METH_VARARGS, "Sets how the item waits."},
    {"stop", guard<turn_stop>, METH_NOARGS, "The item does not wait again."},
    {"end", guard<turn_end>, METH_NOARGS, "The item is over, and all others of its map."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot turn_slots[] = {
    {Py_tp_new, slot<holder_new<Turn>>()},
    {Py_tp_init, reinterpret_cast<void*>(turn_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(holder_dealloc<Turn>)},
    {Py_tp_traverse, reinterpret_cast<void*>(turn_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(turn_clear)},
    {Py_tp_methods, turn_methods},
    {0, nullptr},
};
PyType_Spec turn_spec = {"kiln._core.Turn", sizeof(Holder<Turn>), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                         turn_slots};

// What this thread writes to: of the item that runs, or what was there before any did.
PyObject* stream_here(PyObject*, PyObject* which) {
    const long k = PyLong_AsLong(which);
    KILN_CHECK(k == 0 || k == 1, value, "stream_here: 0 for sys.stdout or 1 for sys.stderr");
    PyObject* found = current ? current->own[k].get() : beneath[k].get();
    if (!found && !entered)  // they have ended since it was asked for
        found = PyDict_GetItemWithError(sys_names, stream_names[k]);
    return Py_NewRef(found ? found : Py_None);
}
PyObject* set_standing(PyObject*, PyObject* args) {
    if (!PyArg_ParseTuple(args, "OO:set_standing", &standing[0], &standing[1])) return nullptr;
    for (PyObject* stream : standing) Py_INCREF(stream);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"wait_for_turn", guard<wait_here>, METH_NOARGS,
     "The item that runs waits for its next turn, if one does."},
    {"stream_here", guard<stream_here>, METH_O,
     "What this thread writes to where items run: 0 for sys.stdout, 1 for sys.stderr."},
    {"set_standing", set_standing, METH_VARARGS, "Sets what stands for sys.stdout and sys.stderr."},
    {"hold_turns", guard<hold_turns>, METH_O,
     "So many more, or less, that keep items of this thread from waiting; how many there are."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_turns(PyObject* module) {
    PyObject* const sys = PyImport_AddModule("sys");
    if (!sys) return -1;
    sys_names = PyModule_GetDict(sys);
    stream_names[0] = PyUnicode_InternFromString("stdout");
    stream_names[1] = PyUnicode_InternFromString("stderr");
    before_list_runs = wait_for_turn;
    if (!add_type(module, turn_spec) || !add_type(module, baton_spec)) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
