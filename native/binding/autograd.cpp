// Backward, hooks and users' functions, as Python calls them.
#include "binding/bind.h"

#include <unordered_map>

#include "autograd/autograd.h"
#include "autograd/engine.h"
#include "autograd/hooks.h"
#include "autograd/inplace.h"
#include "binding/views.h"
#include "call/trace.h"

namespace kiln {

namespace {

// ---- hooks ----

PyObject* get_saved_hooks(PyObject*, PyObject*) {
    const SavedHooks& hooks = saved_hooks();
    if (!hooks.pack.object) Py_RETURN_NONE;
    return PyTuple_Pack(2, hooks.pack.object, hooks.unpack.object);
}
PyObject* put_saved_hooks(PyObject*, PyObject* hooks) {
    PyObject *pack, *unpack;
    if (hooks == Py_None) {
        set_saved_hooks({});
    } else {
        if (!PyArg_ParseTuple(hooks, "OO:set_saved_tensors_hooks", &pack, &unpack)) return nullptr;
        if (!set_saved_hooks({Opaque(pack), Opaque(unpack), {}})) return nullptr;
    }
    Py_RETURN_NONE;
}
PyObject* refuse_saved_hooks(PyObject*, PyObject* message) {
    Opaque refusal = message == Py_None ? Opaque() : Opaque(message);
    std::swap(saved_hooks().refusal, refusal);
    return Py_NewRef(refusal.object ? static_cast<PyObject*>(refusal.object) : Py_None);
}

template <HookKind kind>
PyObject* register_hook(PyObject* self, PyObject* function) {
    return guarded([&]() -> PyObject* {
        KILN_CHECK(PyCallable_Check(function), type, "register_hook: expected a callable");
        PyObject* handle = hook_handle([&] { return add_hook(tensor_of(self), kind, Opaque(function)); });
        track(self);
        return handle;
    });
}

PyObject* tensor_retain_grad(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        retain_grad(tensor_of(self));
        Py_RETURN_NONE;
    });
}

PyObject* tensor_grad_fn(PyObject* self, void*) {
    return guarded([&]() -> PyObject* {
        Node* node = up_to_date_grad_fn(asked(tensor_of(self), "grad_fn"));
        if (node) track(self);  // it may get hooks
        if (node) return wrap_node({NodeRef(node), nullptr, 0});
        Py_RETURN_NONE;
    });
}

PyObject* tensor_edge(PyObject* self, PyObject*) {
    return guarded([&] {
        const Edge edge = edge_of(tensor_of(self));
        track(self);
        Object node = checked(wrap_node(edge));
        return Py_BuildValue("(OIn)", node.get(), edge.index, Py_ssize_t(tensor_of(self).storage.get()));
    });
}
PyObject* tensor_output_nr(PyObject* self, void*) {
    return guarded([&] { return PyLong_FromLong(int(edge_of(asked(tensor_of(self), "output_nr")).index)); });
}

// ---- functions of the user's ----

std::vector<TensorRef> tensors_from(PyObject* sequence, const char* what, bool may_be_none) {
    std::vector<TensorRef> tensors;
    if (sequence == Py_None) return tensors;
    Object list = checked(PySequence_Fast(sequence, what));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(list.get(), i);
        if (may_be_none && item == Py_None)
            tensors.emplace_back();
        else
            tensors.emplace_back(&expect_tensor(item, what));
    }
    return tensors;
}

Fn* user_fn(const char* name) {
    static auto* known = new std::unordered_map<std::string, Fn*>();
    Fn*& fn = (*known)[name];
    if (!fn) fn = new_fn(nullptr, name);
    return fn;
}

PyObject* record_user_call(PyObject*, PyObject* args) {
    const char* name;
    PyObject *context, *inputs, *results, *saved, *dirty;
    if (!PyArg_ParseTuple(args, "sOOOOO:record_user", &name, &context, &inputs, &results, &saved, &dirty))
        return nullptr;
    return guarded([&]() -> PyObject* {
        refuse_in_trace("calls an autograd.Function, whose backward is Python");
        UserCall call{user_fn(name),
                      Opaque(context),
                      tensors_from(inputs, "record_user", false),
                      tensors_from(results, "record_user", false),
                      tensors_from(saved, "record_user", false),
                      tensors_from(dirty, "record_user", false)};
        Object places = checked(PyList_New(0));
        for (const TensorRef& y : call.results)  // which their context may hold
            if (y->wrapper) track(static_cast<PyObject*>(y->wrapper));
        for (const auto& [kind, index] : record_user(call)) {
            Object place = checked(Py_BuildValue("(sn)", kind_name(kind), Py_ssize_t(index)));
            checked_ok(PyList_Append(places.get(), place.get()));
        }
        return places.release();
    });
}

// ---- the engine ----

// A tensor's edge, or what a GradientEdge (node, output, ...) says.
Edge edge_from(PyObject* object, const char* what) {
    if (is_tensor(object)) return edge_of(tensor_of(object));
    KILN_CHECK(PyTuple_Check(object) && PyTuple_GET_SIZE(object) >= 2 && is_node(PyTuple_GET_ITEM(object, 0)),
               type, what, ": expected a Tensor or a GradientEdge, got ", Py_TYPE(object)->tp_name);
    Edge edge = edge_of_node(PyTuple_GET_ITEM(object, 0));
    const Py_ssize_t index = PyNumber_AsSsize_t(PyTuple_GET_ITEM(object, 1), PyExc_IndexError);
    if (index == -1 && PyErr_Occurred()) throw Error(ErrorKind::python, "");
    KILN_CHECK(index >= 0 && index < Py_ssize_t(edge.node ? edge.node->outputs : 1), index, what,
               ": a GradientEdge of output ", int64_t(index), ", which its node has not");
    edge.index = uint32_t(index);
    return edge;
}

template <class Body>
void each_item(PyObject* sequence, const char* what, Body&& body) {
    Object list = checked(PySequence_Fast(sequence, what));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i)
        body(size_t(i), PySequence_Fast_GET_ITEM(list.get(), i));
}

// A call that runs on a thread of its own, for which this one waits.
PyObject* deeper(Object call, PyObject* args) {
    Object module = checked(PyImport_ImportModule("kiln.autograd.engine"));
    return PyObject_CallMethod(module.get(), "deeper", "KOO", static_cast<unsigned long long>(this_thread()),
                               call.get(), args);
}

PyObject* backward(PyObject* core, PyObject* args) {
    return guarded([&]() -> PyObject* {
        refuse_in_trace("calls backward");
        if (nested_too_deeply()) [[unlikely]]
            return deeper(checked(PyObject_GetAttrString(core, "run_backward")), args);
        PyObject *roots, *gradients, *inputs;
        int retain, create, accumulate, batched = 0;
        if (!PyArg_ParseTuple(args, "OOppOp|p:run_backward", &roots, &gradients, &retain, &create, &inputs,
                              &accumulate, &batched))
            return nullptr;
        auto seeds = tensors_from(gradients, "backward: gradients", true);
        std::vector<Root> starts;
        each_item(roots, "backward: tensors", [&](size_t i, PyObject* item) {
            TensorRef seed = i < seeds.size() ? seeds[i] : nullptr;
            starts.push_back(is_tensor(item) ? root_of(tensor_of(item), seed, i, batched)
                                             : Root{edge_from(item, "backward: tensors"), seed});
        });
        std::vector<Edge> wanted;
        if (inputs != Py_None)
            each_item(inputs, "backward: inputs", [&](size_t, PyObject* item) {
                wanted.push_back(edge_from(item, "backward: inputs"));
                if (accumulate && is_tensor(item)) retain_grad(tensor_of(item));
            });
        const BackwardOptions options{bool(retain), bool(create), bool(accumulate), bool(batched)};
        return tuple_of(run_backward(starts, wanted, options)).release();
    });
}

PyObject* tensor_backward(PyObject* self, PyObject* retain) {
    return guarded([&]() -> PyObject* {
        refuse_in_trace("calls backward");
        return backward_from(self, retain == Py_True);
    });
}

PyObject* queue_callback(PyObject*, PyObject* callback) {
    return guarded([&]() -> PyObject* {
        call_at_end(Opaque(callback));
        Py_RETURN_NONE;
    });
}
PyObject* put_owner(PyObject*, PyObject* owner) {
    const uint64_t pass = PyLong_AsUnsignedLongLong(owner);
    if (pass == uint64_t(-1) && PyErr_Occurred()) return nullptr;
    work_for(pass);
    Py_RETURN_NONE;
}
PyObject* get_run(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(current_run()); }
PyObject* get_to_all_leaves(PyObject*, PyObject*) { return PyBool_FromLong(passes_to_all_leaves()); }
PyObject* get_will_visit(PyObject*, PyObject* item) {
    return guarded([&] { return PyBool_FromLong(will_visit(edge_from(item, "will_visit"))); });
}

// ---- modes ----

PyObject* put_anomaly(PyObject*, PyObject* value) {
    int wanted = PyObject_IsTrue(value);
    if (wanted < 0) return nullptr;
    return guarded([&] {
        if (wanted) flush_all("anomaly mode");
        return PyBool_FromLong(std::exchange(anomaly_mode, bool(wanted)));
    });
}
PyObject* get_anomaly(PyObject*, PyObject*) { return PyBool_FromLong(anomaly_mode); }
PyObject* increment_version(PyObject*, PyObject* tensor) {
    return guarded([&]() -> PyObject* {
        wrote(expect_tensor(tensor, "increment_version"));
        Py_RETURN_NONE;
    });
}
PyObject* put_version(PyObject*, PyObject* args) {
    PyObject* tensor;
    unsigned version;
    if (!PyArg_ParseTuple(args, "OI:set_version", &tensor, &version)) return nullptr;
    return guarded([&]() -> PyObject* {
        expect_tensor(tensor, "set_version").storage->version = version;
        Py_RETURN_NONE;
    });
}
PyMethodDef functions[] = {
    {"run_backward", backward, METH_VARARGS,
     "run_backward(tensors, gradients, retain_graph, create_graph, inputs, accumulate, batched=False)"},
    {"saved_tensors_hooks", get_saved_hooks, METH_NOARGS, "This thread's (pack, unpack), or None."},
    {"set_saved_tensors_hooks", put_saved_hooks, METH_O, "Sets this thread's (pack, unpack), or None."},
    {"refuse_saved_tensors_hooks", refuse_saved_hooks, METH_O,
     "Sets why this thread may not set such hooks, or None: it may; returns what it was."},
    {"current_run", get_run, METH_NOARGS, "The number of this thread's innermost backward pass, or 0."},
    {"work_for", put_owner, METH_O, "This thread's passes are another's, which waits for it, by its number."},
    {"queue_callback", queue_callback, METH_O, "Calls a function when that pass is over."},
    {"passes_to_all_leaves", get_to_all_leaves, METH_NOARGS, "Whether that pass was given no `inputs`."},
    {"will_visit", get_will_visit, METH_O, "Whether that pass comes to a tensor's or GradientEdge's node."},
    {"anomaly_enabled", get_anomaly, METH_NOARGS, "Whether anomaly mode is on."},
    {"set_anomaly", put_anomaly, METH_O, "Switches anomaly mode; returns what it was."},
    {"increment_version", increment_version, METH_O, "Counts a write to a tensor's memory."},
    {"set_version", put_version, METH_VARARGS, "Says how many writes to a tensor's memory count."},
    {"record_user", record_user_call, METH_VARARGS,
     "record_user(name, context, inputs, results, saved, dirty): where each saved tensor is kept."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef tensor_methods[] = {
    {"register_hook", register_hook<HookKind::tensor>, METH_O,
     "Calls a function on this tensor's gradient; returns a handle with remove()."},
    {"register_post_accumulate_grad_hook", register_hook<HookKind::accumulated>, METH_O,
     "Calls a function on this leaf when backward has added to its .grad; returns a handle with remove()."},
    {"_edge", tensor_edge, METH_NOARGS,
     "The node its gradient goes to (None for nowhere), which result, and which memory it has."},
    {"_backward", tensor_backward, METH_O, "backward(retain_graph) from a gradient of 1."},
    {"retain_grad", tensor_retain_grad, METH_NOARGS, "Keeps .grad though the tensor is no leaf."},
};
PyGetSetDef tensor_properties[] = {
    {"grad_fn", tensor_grad_fn, nullptr, "The node that computed this tensor, or None.", nullptr},
    {"output_nr", tensor_output_nr, nullptr, "Which of that node's results it is.", nullptr},
};

}  // namespace

PyObject* backward_from(PyObject* tensor, bool retain) {
    if (nested_too_deeply()) [[unlikely]]
        return checked(deeper(checked(PyObject_GetAttrString(tensor, "_backward")),
                              checked(PyTuple_Pack(1, retain ? Py_True : Py_False)).get()))
            .release();
    const Root root = root_of(tensor_of(tensor), nullptr, 0, false);
    run_backward({&root, 1}, {}, {retain});
    Py_RETURN_NONE;
}

int add_autograd(PyObject* module) {
    if (add_nodes(module) < 0 || add_to_tensor(tensor_methods, tensor_properties) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
