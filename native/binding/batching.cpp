// Automatic batching as Python calls it, and what is asked of Python for it.
#include "batch/list.h"

#include "autograd/hooks.h"
#include "binding/bind.h"
#include "binding/holder.h"
#include "call/op_list.h"

namespace kiln {
namespace {

PyObject* rule = nullptr;  // kiln.batching.rules.rows

// rule(entry, structure, ((ndim or -1 for a number, whether it has rows, dtype), ...)) -> (op, structure,
// whether its numbers begin with the count of rows), or why there is no such function.
RowsFn ask_for_rows(Fn& fn, std::span<const Operand> operands, const BitSet& rows) {
    RowsFn way;
    if (!rule) {
        Object module = checked(in_python([] { return PyImport_ImportModule("kiln.batching.rules"); }));
        rule = checked(PyObject_GetAttrString(module.get(), "rows")).release();
    }
    Object looks = checked(PyTuple_New(Py_ssize_t(operands.size())));
    for (size_t i = 0; i < operands.size(); ++i) {
        const Tensor* x = operands[i].tensor;
        const DType dtype = x ? x->dtype : dtype_of(operands[i].number.kind);
        PyObject* look =
            Py_BuildValue("(iOs)", x ? x->ndim() : -1, rows.has(i) ? Py_True : Py_False, name(dtype));
        PyTuple_SET_ITEM(looks.get(), Py_ssize_t(i), checked(look).release());
    }
    const Away here;
    Object found = checked(in_python([&] {
        return PyObject_CallFunction(rule, "OOO", static_cast<PyObject*>(fn.op->record),
                                     static_cast<PyObject*>(fn.structure.object), looks.get());
    }));
    if (PyUnicode_Check(found.get())) {
        way.why = text_of(found.get());
        return way;
    }
    PyObject *op, *structure;
    int counted;
    if (!PyArg_ParseTuple(found.get(), "O!O!p:rows", op_type, &op, &PyTuple_Type, &structure, &counted))
        throw Error(ErrorKind::python, "");
    way.fn = &fn_of(op, structure);
    way.counted = counted;
    return way;
}

Object call_rule(const char* name, const Object& args) {
    Object module = checked(in_python([] { return PyImport_ImportModule("kiln.batching.rules"); }));
    Object function = checked(PyObject_GetAttrString(module.get(), name));
    return checked(in_python([&] { return PyObject_CallObject(function.get(), args.get()); }));
}

// stacked((gradients of rows or None, ..., of the whole or None), like): one gradient.
TensorRef stacked(std::span<const TensorRef> gradients, const Tensor& like) {
    const Away here;
    Object args = checked(
        Py_BuildValue("(NNs)", tuple_of(gradients).release(), dims_object(like.sizes), name(like.dtype)));
    return TensorRef(&expect_tensor(call_rule("stacked", args).get(), "stacked"));
}

// unstacked(gradient): its rows.
Results unstacked(const TensorRef& gradient) {
    const Away here;
    Object rows = call_rule("unstacked", checked(Py_BuildValue("(N)", wrap(gradient))));
    Results results;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows.get()); ++i)
        results.emplace_back(&expect_tensor(PyTuple_GET_ITEM(rows.get(), i), "unstacked"));
    return results;
}

// Kept by the thread's state, so that it goes with the thread, under the lock.
void make_list() {
    static constexpr char key[] = "kiln.batching";
    Object capsule = checked(PyCapsule_New(&make_list_of_thread(), key, [](PyObject* object) {
        drop_list(static_cast<CallList*>(PyCapsule_GetPointer(object, key)));
    }));
    PyObject* kept = PyThreadState_GetDict();
    KILN_CHECK(kept, internal, "batching: a thread without state");
    checked_ok(PyDict_SetItemString(kept, key, capsule.get()));
}

// What a `with` statement holds, as in modes.cpp: entered and left in one C function each.
struct BatchingSwitch {};
PyObject* enter(PyObject*, PyObject*) {
    if (!list_of_thread()) make_list();
    begin_batching();
    Py_RETURN_NONE;
}
PyObject* leave(PyObject*, PyObject* const* args, Py_ssize_t count) {
    end_batching(!count || args[0] == Py_None);
    Py_RETURN_NONE;
}
PyMethodDef switch_methods[] = {
    {"__enter__", guard<enter>, METH_NOARGS, "From here on this thread's calls are put on its list."},
    {"__exit__", method<leave>(), METH_FASTCALL,
     "Ends it. The outermost block runs the list, unless an exception ends it."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot switch_slots[] = {
    {Py_tp_new, slot<holder_new<BatchingSwitch>>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(holder_dealloc<BatchingSwitch>)},
    {Py_tp_methods, switch_methods},
    {0, nullptr},
};
PyType_Spec switch_spec = {"kiln._core.BatchingSwitch", sizeof(Holder<BatchingSwitch>), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, switch_slots};

PyObject* run_pending(PyObject*, PyObject*) {
    if (CallList* list = list_of_thread()) list->run();
    Py_RETURN_NONE;
}
PyObject* batching(PyObject*, PyObject*) { return PyBool_FromLong(is_batching()); }

PyObject* count(uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

// (runs, [(name, calls, launches, calls that ran alone, why)], [(name, why, calls that ran at once)])
PyObject* statistics(PyObject*, PyObject*) {
    Object launched = checked(PyList_New(0)), refused = checked(PyList_New(0));
    CallList* list = list_of_thread();
    if (!list) return Py_BuildValue("(iOO)", 0, launched.get(), refused.get());
    for (const auto& pattern : list->patterns) {
        if (!pattern->calls) continue;
        Object item = checked(Py_BuildValue("(sNNNs)", pattern->fn->name.c_str(), count(pattern->calls),
                                            count(pattern->launches), count(pattern->alone),
                                            pattern->why_alone.c_str()));
        checked_ok(PyList_Append(launched.get(), item.get()));
    }
    for (const auto& [what, calls] : list->statistics.at_once) {
        Object item = checked(Py_BuildValue("(ssN)", what.first.c_str(), what.second.c_str(), count(calls)));
        checked_ok(PyList_Append(refused.get(), item.get()));
    }
    return Py_BuildValue("(NOO)", count(list->statistics.runs), launched.get(), refused.get());
}
PyObject* clear_statistics(PyObject*, PyObject*) {
    if (CallList* list = list_of_thread()) {
        list->statistics = {};
        for (const auto& pattern : list->patterns) {
            pattern->calls = pattern->launches = pattern->alone = 0;
            pattern->why_alone.clear();
        }
    }
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"run_pending", guard<run_pending>, METH_NOARGS, "Runs what is on this thread's list."},
    {"is_batching", batching, METH_NOARGS, "Whether this thread's calls are put on its list."},
    {"batching_statistics", guard<statistics>, METH_NOARGS,
     "(runs, [(function, calls, launches, calls alone, why)], [(function, why, calls run at once)])."},
    {"clear_batching_statistics", clear_statistics, METH_NOARGS, "Starts batching_statistics anew."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_batching(PyObject* module) {
    rows_of = ask_for_rows;
    is_interrupt = [] { return PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt); };
    callbacks.stacked = stacked;
    callbacks.unstacked = unstacked;
    if (!add_type(module, switch_spec)) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
