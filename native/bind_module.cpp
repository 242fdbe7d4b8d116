// The module: recorded regions, threads, memory, random state, profiling, and the order things are set up in.
#include "bind.h"

#include <csignal>
#include <cstring>

#include <unistd.h>

#include "busy.h"
#include "cpu.h"
#include "invariants.h"
#include "threads.h"

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

// ---- recorded regions ----

PyTypeObject* region_type = nullptr;

struct RegionObject {
    PyObject_HEAD std::shared_ptr<Region>* region;  // a recording in progress keeps it too
};

const std::shared_ptr<Region>& region_of(PyObject* object) {
    return *reinterpret_cast<RegionObject*>(object)->region;
}

PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        const char* name;
        int wait = 0;
        if (!PyArg_ParseTuple(args, "s|p:Region", &name, &wait)) return nullptr;
        auto region = std::make_shared<Region>();
        region->name = name;
        region->wait = wait;
        Object object = checked(type->tp_alloc(type, 0));
        reinterpret_cast<RegionObject*>(object.get())->region = new std::shared_ptr(std::move(region));
        return object.release();
    });
}
void region_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<RegionObject*>(object)->region;
    type->tp_free(object);
    Py_DECREF(type);
}
// Ends a recording, whatever the call in it gave: what was recorded before an exception still runs. An error
// of that is raised from the call's.
PyObject* end_call(PyObject* result, const char* returned) {
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    const bool finished = !result && (PyErr_ExceptionMatches(PyExc_StopIteration) ||
                                      PyErr_ExceptionMatches(PyExc_StopAsyncIteration));
    if (!result) PyErr_Fetch(&type, &value, &traceback);
    const int ended = guarded([&] {
        end_recording(result ? returned : finished ? "the body returned" : "an exception");
        return 0;
    });
    if (result && ended < 0) Py_CLEAR(result);
    if (!type) return result;
    if (ended == 0) return PyErr_Restore(type, value, traceback), nullptr;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    PyObject *own, *failure, *line;
    PyErr_Fetch(&own, &failure, &line);
    PyErr_NormalizeException(&own, &failure, &line);
    PyException_SetContext(failure, Py_NewRef(value));
    PyException_SetCause(failure, value);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    PyErr_Restore(own, failure, line);
    return nullptr;
}

// function(*args, **kwargs), recorded. One C function, so that no signal's handler can run between the
// beginning and the call, or between the call and the end.
PyObject* call_recorded(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names,
                        const char* returned) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "Region: expected a function to call");
    const int begun = guarded([&] {
        wait_for_runs();
        begin_recording(region_of(self));
        return 0;
    });
    if (begun < 0) return nullptr;
    PyObject* result =
        in_python([&] { return PyObject_Vectorcall(args[0], args + 1, size_t(count - 1), names); });
    return end_call(result, returned);
}
PyObject* region_call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    return call_recorded(self, args, count, names, "the call returned");
}
PyObject* region_resume(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    return call_recorded(self, args, count, names, "the body was suspended");
}
PyObject* region_stats(PyObject* self, PyObject*) {
    const Region& region = *region_of(self);
    return Py_BuildValue("{sKsKsKsnsKsO}", "runs", (unsigned long long)region.runs, "compiles",
                         (unsigned long long)region.compiles, "replays", (unsigned long long)region.replays,
                         "programs", Py_ssize_t(region.entries.size()), "forgotten",
                         (unsigned long long)region.evicted, "off", region.off ? Py_True : Py_False);
}
// [(cause, line or None, times)]: what ended a recording.
Object ends_of(const RegionEntry& entry) {
    Object list = checked(PyList_New(0));
    for (const RegionEnd& end : std::vector<RegionEnd>(entry.ends)) {
        std::string line = end.line.code.object ? SourceLine::text(end.line) : "";
        Object item = checked(Py_BuildValue("(szK)", end.cause, line.empty() ? nullptr : line.c_str(),
                                            (unsigned long long)end.times));
        checked_ok(PyList_Append(list.get(), item.get()));
    }
    return list;
}
Object describe_entry(const RegionEntry& entry) {
    Object ops = checked(PyList_New(0));
    for (const RecordedOp& op : entry.ops) {
        Object name = checked(PyUnicode_FromString(op.fn->name.c_str()));
        checked_ok(PyList_Append(ops.get(), name.get()));
    }
    const int kernels = entry.variant ? int(entry.variant->program->kernels.size()) : -1;
    return checked(Py_BuildValue(
        "{sKsOsisKsKsKsKsssOsOsOsdsdsO}", "number", (unsigned long long)entry.number, "ops", ops.get(),
        "kernels", kernels, "seen", (unsigned long long)entry.seen, "runs", (unsigned long long)entry.runs,
        "replays", (unsigned long long)entry.replays, "compiles", (unsigned long long)entry.compiles, "anew",
        entry.anew.c_str(), "pending", entry.pending ? Py_True : Py_False, "failed",
        entry.failed ? Py_True : Py_False, "slower", entry.slower ? Py_True : Py_False, "by_program",
        entry.times.program + entry.times.record, "by_ops", entry.times.replay, "ends",
        ends_of(entry).get()));
}
PyObject* region_describe(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const Region& region = *region_of(self);
        std::vector<std::shared_ptr<RegionEntry>> entries;  // Python code may run, and record, meanwhile
        for (const auto& [hash, entry] : region.entries) entries.push_back(entry);
        Object list = checked(PyList_New(0));
        for (const auto& entry : entries) checked_ok(PyList_Append(list.get(), describe_entry(*entry).get()));
        return Py_BuildValue("{sKszsO}", "made", (unsigned long long)region.made, "off", region.off,
                             "recordings", list.get());
    });
}
PyMethodDef region_methods[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(region_call)),
     METH_FASTCALL | METH_KEYWORDS,
     "function(*args, **kwargs), recorded, or as a part of what is being recorded; then what is pending "
     "runs."},
    {"resume", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(region_resume)),
     METH_FASTCALL | METH_KEYWORDS, "The same for a step of a body that may be suspended."},
    {"stats", region_stats, METH_NOARGS,
     "Counts of runs, compiles, replays op by op, recordings known and forgotten."},
    {"describe", region_describe, METH_NOARGS,
     "What explain() puts into words: of every recording what it is, why anew, what ended it, its times."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot region_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(region_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(region_dealloc)},
    {Py_tp_methods, region_methods},
    {0, nullptr},
};
PyType_Spec region_spec = {"kiln._core.Region", sizeof(RegionObject), 0, Py_TPFLAGS_DEFAULT, region_slots};

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
PyObject* set_check(PyObject*, PyObject* on) {
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0) return nullptr;
    bool before = checking();
    set_checking(wanted);
    return PyBool_FromLong(before);
}
PyObject* recording(PyObject*, PyObject*) { return PyBool_FromLong(current_recording() != nullptr); }

// ---- random state: seed and position give every number ----

struct {
    uint64_t seed = 0;
    int64_t position = 0;
} random_state;

PyObject* next_random(PyObject*, PyObject* count) {
    long long amount = PyLong_AsLongLong(count);
    if (amount < 0)
        return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_ValueError, "next_random: a negative count");
    PyObject* result = Py_BuildValue("(LL)", (long long)random_state.seed, (long long)random_state.position);
    random_state.position += amount;
    return result;
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

PyObject* profile_start(PyObject*, PyObject*) {
    std::lock_guard lock(profile().mutex);
    profile().lines.clear();
    profile().on = true;
    Py_RETURN_NONE;
}
PyObject* profile_stop(PyObject*, PyObject*) {
    profile().on = false;
    std::lock_guard lock(profile().mutex);
    Object list = checked(PyList_New(0));
    for (const auto& line : profile().lines) {
        Object item = checked(
            Py_BuildValue("(sKd)", line.name.c_str(), (unsigned long long)line.launches, line.seconds));
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
    {"set_check", set_check, METH_O,
     "Whether recorded programs are compared with their ops, bit by bit; gives what it was."},
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
    {"profile_start", profile_start, METH_NOARGS, "Starts counting launches and their time."},
    {"profile_stop", guard<profile_stop>, METH_NOARGS, "(kernel, launches, seconds) since profile_start."},
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
    Interpreter::let_go = let_go;
    Interpreter::take_back = take_back;
    Interpreter::ending = ending;
    Interpreter::interrupted = interrupted;
    Invariants::locked = [] { return PyGILState_Check() != 0 || ending(); };
    Opaque::retain = [](void* object) { Py_INCREF(static_cast<PyObject*>(object)); };
    Opaque::drop = [](void* object) { Py_DECREF(static_cast<PyObject*>(object)); };
    region_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&region_spec));
    if (!region_type || PyModule_AddObjectRef(module, "Region", reinterpret_cast<PyObject*>(region_type)) < 0)
        return -1;
    for (auto add : {add_dtypes, add_ops, add_arguments, add_functions, add_modes, add_core_ops, add_tensor,
                     add_operators, add_tensor_data, add_dlpack, add_autograd, add_graph, add_compiler})
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
