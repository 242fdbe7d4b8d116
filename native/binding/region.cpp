// Regions as Python objects, and what is asked of Python for their recordings.
#include "binding/bind.h"

#include <structmember.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "autograd/source_line.h"
#include "call/compiler.h"
#include "program/answer.h"

namespace kiln {

namespace {

PyTypeObject* region_type = nullptr;

// A list of what `make` makes of each.
Object listed(const auto& items, const auto& make) {
    Object list = checked(PyList_New(0));
    for (const auto& item : items) checked_ok(PyList_Append(list.get(), checked(make(item)).get()));
    return list;
}

// [(how it looks at its value, dtype, ndim, value, slot, sizes of 1, stride classes)]
PyObject* listed_args(std::span<const ListedArg> args) {
    auto made = listed(args, [](const ListedArg& a) {
        const char* classes[] = {"number", "whole", "squeeze", "reshape", "expand", "strided"};
        return Py_BuildValue("(ssiiiKK)", classes[int(a.cls)], name(a.dtype), int(a.ndim), int(a.value),
                             int(a.slot), (unsigned long long)a.ones, (unsigned long long)a.classes);
    });
    return made.release();
}

struct RegionObject {
    PyObject_HEAD std::shared_ptr<Region>* region;  // a recording in progress keeps it too
};

const std::shared_ptr<Region>& region_of(PyObject* object) {
    return *reinterpret_cast<RegionObject*>(object)->region;
}

PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject* name;
        int wait = 0;
        if (!PyArg_ParseTuple(args, "U|p:Region", &name, &wait)) return nullptr;
        auto region = std::make_shared<Region>();
        region->name = text_of(name);
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

// What `call` gives, recorded. One C function, so that no signal's handler can run between the beginning and
// the call, or between the call and the end.
PyObject* call_in_region(PyObject* self, const auto& call, const char* returned) {
    const int begun = guarded([&] {
        wait_for_runs();
        begin_recording(region_of(self));
        return 0;
    });
    if (begun < 0) return nullptr;
    return end_call(in_python(call), returned);
}

// A whole call is timed, recorded or not, in an order that no alternation of the program's own follows.
PyObject* call_timed(PyObject* self, const auto& call, const char* returned) {
    const std::shared_ptr<Region> region = region_of(self);
    const bool records = std::popcount(region->trial.left--) % 2;
    double seconds = 0;
    Stopwatch watch(&seconds);
    PyObject* result = records ? call_in_region(self, call, returned) : call();
    watch.stop();
    RegionTrial& trial = region->trial;
    double& best = records ? trial.recorded : trial.plain;
    best = std::min(best, seconds);
    if (!result || trial.left > 0) return result;
    if (guarded([&] { return compiler::judge(*region), 0; }) < 0) Py_CLEAR(result);
    return result;
}

// A call that rests is a call of the function and nothing else.
PyObject* call_recorded(PyObject* self, const auto& call, const char* returned) {
    Region& region = *region_of(self);
    const bool outermost = recording_depth() == 0;
    if (outermost && !region.off.empty() && region.rests()) return call();
    if (outermost && region.trial.left > 0 && !on_call) return call_timed(self, call, returned);
    return call_in_region(self, call, returned);
}
PyObject* region_resume(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "Region: expected a function to call");
    auto call = [&] { return PyObject_Vectorcall(args[0], args + 1, size_t(count - 1), names); };
    return call_recorded(self, call, "the body was suspended");
}
PyObject* region_stats(PyObject* self, PyObject*) {
    const Region& region = *region_of(self);
    return Py_BuildValue("{sKsKsKsnsKsO}", "runs", (unsigned long long)region.runs, "compiles",
                         (unsigned long long)region.compiles, "replays", (unsigned long long)region.replays,
                         "programs", Py_ssize_t(region.entries.size()), "forgotten",
                         (unsigned long long)region.evicted, "off", region.off.empty() ? Py_False : Py_True);
}
// [(cause, line or None, times)]: what ended a recording.
Object ends_of(const RegionEntry& entry) {
    return listed(std::vector<RegionEnd>(entry.ends), [](const RegionEnd& end) {
        std::string line = end.line.code.object ? SourceLine::text(end.line) : "";
        return Py_BuildValue("(szK)", end.cause, line.empty() ? nullptr : line.c_str(),
                             (unsigned long long)end.times);
    });
}
// ([(name, handle, hidden, writes, arguments, results)], storages if it is known which live, slots)
Object described(const OpList& list, std::span<const RecordedStorage> storages, const LiveSet& live,
                 size_t slots) {
    const Object ops = listed(list.ops, [&](const ListedOp& op) {
        return Py_BuildValue("(sOiiNN)", op.fn->name.c_str(), handle_of(*op.fn), int(op.hidden),
                             int(op.writes), listed_args(list.args_of(op)), listed_args(list.outs_of(op)));
    });
    const Object all = listed(storages.first(live.size()), [&](const RecordedStorage& s) {
        return Py_BuildValue("(siiiiiiKK)", name(s.dtype), int(s.pending), int(s.written),
                             int(live[size_t(&s - storages.data())]), int(s.flat), int(s.ndim), int(s.slot),
                             (unsigned long long)s.ones, (unsigned long long)s.identity);
    });
    return checked(Py_BuildValue("(OOi)", ops.get(), all.get(), int(slots)));
}
// The lines of a recording's ops, and the shortest time of each step of its program, as far as known.
Object lines_of(const RegionEntry& entry) {
    return listed(std::vector<SourceLine>(entry.lines), [](const SourceLine& line) {
        return PyUnicode_FromString(SourceLine::text(line).c_str());
    });
}
Object seconds_of(const RegionEntry& entry) {
    const std::shared_ptr<RegionVariant> kept = entry.variant;
    return listed(kept ? std::span<const Step>(kept->program->steps) : std::span<const Step>(),
                  [](const Step& step) { return PyFloat_FromDouble(std::atomic_ref(step.seconds)); });
}
PyObject* truth(bool value) { return value ? Py_True : Py_False; }
Object describe_entry(const RegionEntry& entry, bool whole) {
    const int kernels = entry.variant ? int(entry.variant->program->kernels.size()) : -1;
    auto count = [](uint64_t value) { return (unsigned long long)value; };
    const LiveSet live = entry.variant ? entry.variant->live : entry.looked;
    PyObject* recorded =
        whole ? Py_BuildValue(
                    "(NNNN)", described(entry.list, entry.storages, live, entry.environment.size()).release(),
                    dims_object(entry.environment), lines_of(entry).release(), seconds_of(entry).release())
              : Py_NewRef(Py_None);
    return checked(Py_BuildValue(
        "{sKsNsisKsKsKsKsOsOsOsdsdsdsO}", "number", count(entry.number), "recorded", recorded, "kernels",
        kernels, "seen", count(entry.seen), "runs", count(entry.runs), "replays", count(entry.replays),
        "compiles", count(entry.compiles), "pending", truth(entry.pending), "failed", truth(entry.failed),
        "slower", truth(entry.slower), "program", entry.times.program, "record", entry.times.record, "replay",
        entry.times.replay, "ends", ends_of(entry).get()));
}
// A copy: Python code may run, and record, while they are looked at.
std::vector<std::shared_ptr<RegionEntry>> entries_of(const Region& region) {
    std::vector<std::shared_ptr<RegionEntry>> entries;
    for (const auto& [hash, entry] : region.entries) entries.push_back(entry);
    return entries;
}
// [(number, seen, failed, slower, program, record, replay)] of the recordings that were measured: counts, and
// the shortest times in seconds, infinite if not known.
Object times_of(const Region& region) {
    Object list = checked(PyList_New(0));
    for (const auto& entry : entries_of(region)) {
        if (!entry->decided) continue;
        Object item =
            checked(Py_BuildValue("(KKOOddd)", (unsigned long long)entry->number,
                                  (unsigned long long)entry->seen, truth(entry->failed), truth(entry->slower),
                                  entry->times.program, entry->times.record, entry->times.replay));
        checked_ok(PyList_Append(list.get(), item.get()));
    }
    return list;
}
// Everything known of a region and its recordings; if `whole`, also what was recorded, and where.
PyObject* region_describe(PyObject* self, PyObject* whole) {
    return guarded([&] {
        const Region& region = *region_of(self);
        const Object list = listed(entries_of(region), [&](const auto& entry) {
            return describe_entry(*entry, whole == Py_True).release();
        });
        return Py_BuildValue(
            "{sKsKszsKsO}", "made", (unsigned long long)region.made, "copied",
            (unsigned long long)region.copied, "off", region.off.empty() ? nullptr : region.off.c_str(),
            "rest", (unsigned long long)(region.records() ? 0 : region.rest), "recordings", list.get());
    });
}
PyMethodDef region_methods[] = {
    {"resume", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(region_resume)),
     METH_FASTCALL | METH_KEYWORDS,
     "function(*args, **kwargs), a step of a body that may be suspended, recorded, or as a part of what is "
     "being recorded; then what is pending runs."},
    {"stats", region_stats, METH_NOARGS, "Counts of runs, compiles, replays and recordings."},
    {"describe", region_describe, METH_O, "What explain() puts into words and pictures."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot region_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(region_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(region_dealloc)},
    {Py_tp_methods, region_methods},
    {0, nullptr},
};
PyType_Spec region_spec = {"kiln._core.Region", sizeof(RegionObject), 0, Py_TPFLAGS_DEFAULT, region_slots};

// ---- compiled functions ----

// What `kiln.capture.compile.Compiled` is made on: its call, so that one which is not recorded costs little.
struct RecorderObject {
    PyObject_HEAD PyObject *function, *region, *suspended;
};

// Lets Python shorten an error's traceback.
void tell_failure(PyObject* self) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(traceback);
    PyObject* told = PyObject_CallMethod(self, "_failed", "O", value);
    if (!told) return Py_DECREF(type), Py_DECREF(value);
    Py_DECREF(told);
    PyErr_Restore(type, value, PyException_GetTraceback(value));
}

// function(*args, **kwargs), recorded, or as a part of what is being recorded; then what is pending runs. Of
// a body that may be suspended each step is.
PyObject* recorder_call(PyObject* object, PyObject* args, PyObject* kwargs) {
    auto* self = reinterpret_cast<RecorderObject*>(object);
    if (!self->function || !self->region || Py_TYPE(self->region) != region_type)
        return PyErr_Format(PyExc_TypeError, "a compiled function that was not initialized is called");
    const Object function = Object::borrow(self->function), region = Object::borrow(self->region);
    auto call = [&] { return PyObject_Call(function.get(), args, kwargs); };
    if (self->suspended && self->suspended != Py_None) {
        const Object suspended = Object::borrow(self->suspended), body = Object::steal(call());
        if (!body.get()) return nullptr;
        return PyObject_CallFunctionObjArgs(suspended.get(), body.get(), region.get(), nullptr);
    }
    PyObject* result = call_recorded(region.get(), call, "the call returned");
    if (!result) tell_failure(object);
    return result;
}
int recorder_traverse(PyObject* object, visitproc visit, void* arg) {
    auto* self = reinterpret_cast<RecorderObject*>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->function);
    Py_VISIT(self->region);
    Py_VISIT(self->suspended);
    return 0;
}
int recorder_clear(PyObject* object) {
    auto* self = reinterpret_cast<RecorderObject*>(object);
    Py_CLEAR(self->function);
    Py_CLEAR(self->region);
    Py_CLEAR(self->suspended);
    return 0;
}
void recorder_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    recorder_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}
PyMemberDef recorder_members[] = {
    {"_function", T_OBJECT_EX, offsetof(RecorderObject, function), 0, nullptr},
    {"_region", T_OBJECT_EX, offsetof(RecorderObject, region), 0, nullptr},
    {"_suspended", T_OBJECT_EX, offsetof(RecorderObject, suspended), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot recorder_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(recorder_call)},
    {Py_tp_traverse, reinterpret_cast<void*>(recorder_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(recorder_clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(recorder_dealloc)},
    {Py_tp_members, recorder_members},
    {0, nullptr},
};
PyType_Spec recorder_spec = {"kiln._core.Recorder", sizeof(RecorderObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, recorder_slots};

// ---- programs of recordings ----

// (hash, live set), as text: what a region's program is kept under
Object region_key(const Recording& recording, const LiveSet& live) {
    std::string text = concat(recording.hash().low, " ", recording.hash().high, " ");
    for (bool alive : live) text += alive ? '1' : '0';
    return checked(PyUnicode_FromString(text.c_str()));
}

// What reads the answer for a region of these storages: the storages of its outputs, then its program.
auto variant_reader(const Recording& recording, const LiveSet& live) {
    size_t inputs = 0, storages = live.size();
    for (const RecordedStorage& s : recording.storages()) inputs += !s.pending;
    return [inputs, storages, live](PyObject* bytes) {
        Answer answer(bytes_of(bytes));
        auto made = std::make_shared<RegionVariant>();
        made->live = live;
        made->program = read_program(answer, inputs);
        made->outputs = answer.slots(0, int64_t(storages));
        answer.end();
        return made;
    };
}

// (key, what was recorded)
Object describe_region(const Recording& recording, const LiveSet& live) {
    return checked(Py_BuildValue(
        "(ON)", region_key(recording, live).get(),
        described(recording.list(), recording.storages(), live, recording.environment().size()).release()));
}

struct Later {
    std::function<void(PyObject* answer)> deliver;
    std::shared_ptr<Region> region;
};

// Called by the compiling thread with the answer, None where there is none, or True: never mind.
PyObject* deliver(PyObject* capsule, PyObject* answer) {
    return guarded([&]() -> PyObject* {
        static_cast<Later*>(PyCapsule_GetPointer(capsule, nullptr))->deliver(answer);
        Py_RETURN_NONE;
    });
}
// Whether the region still waits for programs: it may have found meanwhile that its recordings do not repeat.
PyObject* wanted(PyObject* capsule, PyObject*) {
    return PyBool_FromLong(static_cast<Later*>(PyCapsule_GetPointer(capsule, nullptr))->region->records());
}
PyMethodDef deliver_method = {"deliver", deliver, METH_O, "Gives a region's entry its program."};
PyMethodDef wanted_method = {"wanted", wanted, METH_NOARGS, "Whether the program is waited for."};

// Takes an answer: why the region is switched off, or None.
void switch_off(Region& region, PyObject* why) {
    if (why == Py_None) return;
    region.stop(text_of(why));
}

PyObject* tell_reads(PyObject*, PyObject* listener) {
    Py_XSETREF(told_of_reads, listener == Py_None ? nullptr : Py_NewRef(listener));
    Py_RETURN_NONE;
}
PyMethodDef region_functions[] = {
    {"tell_reads", tell_reads, METH_O,
     "Calls `listener()` before bool(x), int(x), x.item(), x.tolist() ...; None: no more."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

namespace compiler {

std::shared_ptr<RegionVariant> stored_region(const Recording& recording, const LiveSet& live) {
    Object answer = ask("stored region", "(O)", region_key(recording, live).get());
    return answer.get() == Py_None ? nullptr : variant_reader(recording, live)(answer.get());
}

std::shared_ptr<RegionVariant> compile_region(const Recording& recording, const LiveSet& live) {
    Object answer = ask("region", describe_region(recording, live));
    return answer.get() == Py_None ? nullptr : variant_reader(recording, live)(answer.get());
}

void compile_region_later(const Recording& recording, const std::shared_ptr<RegionEntry>& entry,
                          const LiveSet& live) {
    Object asked = describe_region(recording, live);
    auto give = [entry, region = recording.region(),
                 read = variant_reader(recording, live)](PyObject* answer) {
        region->stop_waiting(*entry);
        if (answer == Py_True) return;
        entry->failed = true;  // should it not be readable
        entry->give(*region, answer == Py_None ? nullptr : read(answer));
    };
    auto* owned = new Later{std::move(give), recording.region()};
    Object capsule = checked(PyCapsule_New(
        owned, nullptr, [](PyObject* c) { delete static_cast<Later*>(PyCapsule_GetPointer(c, nullptr)); }));
    Object callback = checked(PyCFunction_New(&deliver_method, capsule.get()));
    Object wanted = checked(PyCFunction_New(&wanted_method, capsule.get()));
    recording.region()->wait_for(*entry);  // before: the other thread may be done when this one goes on
    try {
        ask("region later", "(OOO)", asked.get(), callback.get(), wanted.get());
    } catch (...) {
        recording.region()->stop_waiting(*entry);
        throw;
    }
}

void decide(Region& region, RegionEntry& entry) {
    Object answer = ask("decide", "(sKKN)", region.name.c_str(), (unsigned long long)region.uses,
                        (unsigned long long)entry.number, times_of(region).release());
    int slower;
    PyObject* off;
    if (!PyArg_ParseTuple(answer.get(), "pO:decide", &slower, &off)) throw Error(ErrorKind::python, "");
    entry.slower = slower;
    switch_off(region, off);
}

void judge(Region& region) {
    Object why = ask("judge", "(sdd)", region.name.c_str(), region.trial.recorded, region.trial.plain);
    region.trial = {};
    region.trial_at *= 16;
    switch_off(region, why.get());
}

void forgotten(Region& region, const RegionEntry& entry) {
    auto count = [](uint64_t value) { return (unsigned long long)value; };
    Object off = ask("forgotten", "(s(KKK)KKKKK)", region.name.c_str(), count(entry.number),
                     count(entry.list.ops.size()), count(entry.seen), count(region.entries.size()),
                     count(region.evicted), count(region.made), count(region.runs), count(region.uses));
    switch_off(region, off.get());
}

}  // namespace compiler

int add_regions(PyObject* module) {
    region_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&region_spec));
    Object recorder = Object::steal(PyType_FromSpec(&recorder_spec));
    if (!region_type || !recorder.get()) return -1;
    if (PyModule_AddFunctions(module, region_functions) < 0) return -1;
    if (PyModule_AddObjectRef(module, "Recorder", recorder.get()) < 0) return -1;
    return PyModule_AddObjectRef(module, "Region", reinterpret_cast<PyObject*>(region_type));
}

}  // namespace kiln
