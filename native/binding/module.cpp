// The module: threads, memory, random state, profiling, and the order things are set up in.
#include "binding/bind.h"

#include <csignal>
#include <cstring>

#include <unistd.h>

#include "base/cpu.h"
#include "base/invariants.h"
#include "base/threads.h"
#include "call/busy.h"

namespace kiln {

void set_python_error(const Error& error) {
    if (error.kind == ErrorKind::python) return;  // already set
    PyObject* const types[] = {PyExc_ValueError,    PyExc_TypeError,           PyExc_IndexError,
                               PyExc_RuntimeError,  PyExc_NotImplementedError, PyExc_MemoryError,
                               PyExc_OverflowError, PyExc_BufferError,         PyExc_SystemError};
    PyErr_SetString(types[int(error.kind)], error.message.c_str());
    // So that what the core refuses is told from what happens to Python code that was given something unfit.
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (PyObject_SetAttrString(value, "_of_core", Py_True)) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

void set_unknown_error(const std::exception& error) {
    if (dynamic_cast<const std::bad_alloc*>(&error))
        PyErr_NoMemory();
    else
        PyErr_SetString(PyExc_SystemError, error.what());
}

PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
    auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    return type && PyModule_AddType(module, type) == 0 ? type : nullptr;
}

void stay() {
    for (;;) pause();
}

namespace {

// ---- recordings ----

PyObject* flush(PyObject*, PyObject*) {
    if (Recording* recording = current_recording()) recording->flush("it was asked for");
    Py_RETURN_NONE;
}
PyObject* fork_begins(PyObject*, PyObject*) {
    before_fork();
    Py_RETURN_NONE;
}
PyObject* fork_ended(PyObject*, PyObject* in_child) {
    after_fork(in_child == Py_True);
    Py_RETURN_NONE;
}
// Ctrl-C that waits for Python to go on comes before a function's first instruction.
PyObject* call_whole(PyObject*, PyObject* function) {
    PyObject* answer = PyObject_CallNoArgs(function);
    bool interrupted = false;
    for (; !answer && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt); interrupted = true) {
        PyErr_Clear();
        answer = PyObject_CallNoArgs(function);
    }
    Py_XDECREF(answer);
    if (answer && interrupted) PyErr_SetNone(PyExc_KeyboardInterrupt);
    return answer && !interrupted ? Py_NewRef(Py_None) : nullptr;
}

// ---- the interpreter lock ----

void* let_go() { return PyEval_SaveThread(); }

void take_back(void* thread) {
    in_python([&] { return PyEval_RestoreThread(static_cast<PyThreadState*>(thread)); });
}

bool ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

// A handler that is not Python's own may do anything, and so waits until the call is over.
bool interrupted() {
    if (!PyOS_InterruptOccurred()) return false;
    Object module = checked(PyImport_ImportModule("_signal"));
    Object handler = checked(PyObject_CallMethod(module.get(), "getsignal", "i", SIGINT));
    Object own = checked(PyObject_GetAttrString(module.get(), "default_int_handler"));
    const bool raises = handler.get() == own.get();
    raises ? PyErr_SetNone(PyExc_KeyboardInterrupt) : PyErr_SetInterrupt();
    return raises;
}
PyObject* is_checking(PyObject*, PyObject*) { return PyBool_FromLong(check_mode); }
PyObject* set_check(PyObject*, PyObject* on) {
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0) return nullptr;
    return PyBool_FromLong(std::exchange(check_mode, bool(wanted)));
}
PyObject* recording(PyObject*, PyObject*) { return PyBool_FromLong(current_recording() != nullptr); }

// ---- random state ----

}  // namespace

std::pair<int64_t, int64_t> reserve_random(int64_t count) {
    return {int64_t(random_state.seed), std::exchange(random_state.position, random_state.position + count)};
}

namespace {

PyObject* next_random(PyObject*, PyObject* count) {
    long long amount = PyLong_AsLongLong(count);
    if (amount < 0)
        return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_ValueError, "next_random: a negative count");
    const auto [seed, position] = reserve_random(amount);
    return Py_BuildValue("(LL)", (long long)seed, (long long)position);
}
PyObject* get_random(PyObject*, PyObject*) {
    return Py_BuildValue("(LL)", (long long)random_state.seed, (long long)random_state.position);
}
PyObject* set_random(PyObject*, PyObject* args) {
    long long seed, position;
    if (!PyArg_ParseTuple(args, "LL:set_random_state", &seed, &position)) return nullptr;
    random_state.seed = uint64_t(seed);
    random_state.position = position;
    Py_RETURN_NONE;
}

// ---- threads, memory, profile ----

PyObject* get_threads(PyObject*, PyObject*) { return PyLong_FromLong(get_num_threads()); }
PyObject* set_threads(PyObject*, PyObject* count) {
    long value = PyLong_AsLong(count);
    if (value == -1 && PyErr_Occurred()) return nullptr;
    set_num_threads(value);
    Py_RETURN_NONE;
}
PyObject* call_outside(PyObject*, PyObject* function) {
    expect_stack(6 << 20);  // OpenBLAS took 4.5 MiB, beyond which it writes elsewhere
    const FloatEnvironment environment;
    return PyObject_CallNoArgs(function);
}
PyObject* memory(PyObject*, PyObject*) {
    MemoryStats s = memory_stats();
    return Py_BuildValue("{snsnsnsKsK}", "allocated_bytes", Py_ssize_t(s.allocated_bytes), "reserved_bytes",
                         Py_ssize_t(s.reserved_bytes), "peak_allocated_bytes", Py_ssize_t(s.peak_allocated),
                         "allocations", (unsigned long long)s.allocations, "cache_hits",
                         (unsigned long long)s.cache_hits);
}
PyObject* reset_peak(PyObject*, PyObject*) {
    reset_peak_allocated();
    Py_RETURN_NONE;
}
PyObject* give_back(PyObject*, PyObject*) { return PyLong_FromSize_t(empty_cache()); }
PyObject* tiles(PyObject*, PyObject*) { return PyBool_FromLong(ask_for_tiles()); }
PyObject* identity(PyObject*, PyObject*) { return PyUnicode_FromString(cpu_identity().c_str()); }

PyObject* profile_start(PyObject*, PyObject* each) {
    std::lock_guard lock(profile().mutex);
    profile().each = each == Py_True;
    profile().lines.clear();
    profile().on = true;
    Py_RETURN_NONE;
}
PyObject* profile_stop(PyObject*, PyObject*) {
    profile().on = false;
    std::lock_guard lock(profile().mutex);
    Object list = checked(PyList_New(0));
    for (const auto& line : profile().lines) {
        Object item = checked(Py_BuildValue("(sKddIn)", line.name.c_str(), (unsigned long long)line.launches,
                                            line.seconds, line.start, line.call, Py_ssize_t(line.allocated)));
        checked_ok(PyList_Append(list.get(), item.get()));
    }
    return list.release();
}

PyMethodDef functions[] = {
    {"flush", guard<flush>, METH_NOARGS, "Runs what is pending on this thread."},
    {"before_fork", guard<fork_begins>, METH_NOARGS,
     "Waits for other threads' kernels and runs what is pending anywhere."},
    {"after_fork", fork_ended, METH_O, "Ends what before_fork began; the argument: whether in the child."},
    {"call_whole", call_whole, METH_O,
     "Calls a function, again if Ctrl-C ends it; raises that when the function is done."},
    {"recording", recording, METH_NOARGS, "Whether ops are being recorded on this thread."},
    {"checking", is_checking, METH_NOARGS,
     "Whether passes are verified, and recorded programs compared with their ops, bit by bit."},
    {"set_check", set_check, METH_O, "Sets that; gives what it was."},
    {"next_random", next_random, METH_O, "Reserves random numbers: (seed, first position)."},
    {"random_state", get_random, METH_NOARGS, "(seed, position)."},
    {"set_random_state", set_random, METH_VARARGS, "Sets (seed, position)."},
    {"get_num_threads", get_threads, METH_NOARGS, "How many threads a kernel may use."},
    {"set_num_threads", guard<set_threads>, METH_O, "Sets how many threads a kernel may use."},
    {"call_outside", guard<call_outside>, METH_O,
     "Calls what computes with other libraries, with the stack they need, rounding to nearest, with "
     "denormals."},
    {"memory_stats", memory, METH_NOARGS, "The allocator's counts, in bytes."},
    {"reset_peak_memory_stats", reset_peak, METH_NOARGS, "Starts peak_allocated_bytes anew."},
    {"empty_cache", give_back, METH_NOARGS, "Gives kept memory back to the system; returns the bytes."},
    {"ask_for_tiles", tiles, METH_NOARGS, "Whether kernels may use AMX tiles; the system is asked once."},
    {"cpu_identity", guard<identity>, METH_NOARGS, "What decides which machine code runs here, as text."},
    {"profile_start", profile_start, METH_O,
     "Starts counting launches and their time: of each launch, or by name."},
    {"profile_stop", guard<profile_stop>, METH_NOARGS,
     "(kernel, launches, seconds, start, call's number, allocated bytes at its end) since profile_start."},
    {nullptr, nullptr, 0, nullptr},
};

// One module, filled once: the core's state is the process's. Whoever imports it anew (after `del
// sys.modules[...]`) gets the same one; a subinterpreter, whose objects the core would mix with the main
// one's, gets an error.
PyObject* the_module = nullptr;

PyObject* create_module(PyObject* spec, PyModuleDef*) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main())
        return PyErr_Format(
            PyExc_ImportError,
            "kiln: expected the main interpreter, got a subinterpreter; use processes instead");
    if (the_module) return Py_NewRef(the_module);
    Object name = Object::steal(PyObject_GetAttrString(spec, "name"));
    return name ? PyModule_NewObject(name.get()) : nullptr;
}

int fill_module(PyObject* module) {
    if (module == the_module) return 0;
    expect_stack(0);  // allocates this thread's exception state
    Interpreter::let_go = let_go;
    Interpreter::take_back = take_back;
    Interpreter::ending = ending;
    Interpreter::interrupted = interrupted;
    Invariants::locked = [] { return PyGILState_Check() != 0 || ending(); };
    Opaque::retain = [](void* object) { Py_INCREF(static_cast<PyObject*>(object)); };
    Opaque::drop = [](void* object) { Py_DECREF(static_cast<PyObject*>(object)); };
    for (auto add : {add_dtypes,    add_ops,      add_arguments, add_functions,   add_modes,  add_autocast,
                     add_core_ops,  add_tensor,   add_operators, add_tensor_data, add_dlpack, add_autograd,
                     add_callbacks, add_compiler, add_regions,   add_traces,      add_guards, add_cells,
                     add_shared,    add_batching, add_turns})
        if (add(module) < 0) return -1;
    the_module = Py_NewRef(module);
    return 0;
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_create, reinterpret_cast<void*>(create_module)},
    {Py_mod_exec, reinterpret_cast<void*>(fill_module)},
    {0, nullptr},
};
PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "kiln._core", "kiln's core.", 0, functions,
                                 module_slots};

}  // namespace
}  // namespace kiln

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&kiln::module_definition); }
