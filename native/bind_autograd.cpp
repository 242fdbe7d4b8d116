// Gradients: modes, backward, hooks, and nodes as Python objects.
#include "bind.h"

#include <unordered_map>

#include "autograd.h"
#include "busy.h"

namespace kiln {

namespace {

PyTypeObject* node_type = nullptr;
PyTypeObject* handle_type = nullptr;
std::string package_folder;  // frames of files below it are kiln's own

// ---- places in the user's program ----

bool is_own_code(PyCodeObject* code) {
    static PyObject* last_user_file = nullptr;  // kept alive by `known`
    if (code->co_filename == last_user_file) return false;
    static auto* known = new std::unordered_map<PyObject*, bool>();
    auto found = known->find(code->co_filename);
    if (found != known->end()) {
        if (!found->second) last_user_file = code->co_filename;
        return found->second;
    }
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    bool own = !package_folder.empty() && file && std::string_view(file).starts_with(package_folder);
    Py_INCREF(code->co_filename);  // the key stays valid
    return known->emplace(code->co_filename, own).first->second;
}

SourceLine current_line() {
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame) {
        PyCodeObject* code = PyFrame_GetCode(frame);
        if (!is_own_code(code)) {
            SourceLine line{Opaque(code), PyFrame_GetLasti(frame)};
            Py_DECREF(code);
            Py_DECREF(frame);
            return line;
        }
        Py_DECREF(code);
        PyFrameObject* back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return {};
}

std::string line_text(const SourceLine& given) {
    const SourceLine line = given;  // another thread may note another one in its place meanwhile
    auto* code = static_cast<PyCodeObject*>(line.code.object);
    if (!code) return "an unknown line";
    Away here;
    const int number = PyCode_Addr2Line(code, line.instruction);
    Object module = checked(in_python([] { return PyImport_ImportModule("kiln.errors"); }));
    Object text = checked(in_python(
        [&] { return PyObject_CallMethod(module.get(), "place", "Oi", code->co_filename, number); }));
    return PyUnicode_AsUTF8(text.get());
}

// ---- nodes ----

struct NodeObject {
    PyObject_HEAD Node* node;  // owned; null for the accumulation into a leaf
    AutogradMeta* leaf;        // owned
};

PyObject* wrap_node(Node* node, AutogradMeta* leaf) {
    auto* object = PyObject_New(NodeObject, node_type);
    if (!object) return nullptr;
    object->node = node;
    object->leaf = leaf;
    if (node) ++node->refcount;
    if (leaf) ++leaf->refcount;
    return reinterpret_cast<PyObject*>(object);
}

void node_dealloc(PyObject* self) {
    auto* object = reinterpret_cast<NodeObject*>(self);
    NodeRef node(object->node);
    MetaRef leaf(object->leaf);
    if (object->node) --object->node->refcount;
    if (object->leaf) --object->leaf->refcount;
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

// "cross_entropy" -> "CrossEntropyBackward0", the way PyTorch names nodes.
std::string node_title(const Node* node) {
    if (!node) return "AccumulateGrad";
    if (node->fn->op == core_fns().write(0)->op) return "CopySlices";  // what a write through a view left
    std::string title;
    bool upper = true;
    for (char c : node->fn->name) {
        if (c == '_') {
            upper = true;
            continue;
        }
        title += upper ? char(std::toupper(c)) : c;
        upper = false;
    }
    return node->context.object ? node->fn->name + "Backward" : title + "Backward0";
}

const NodeObject& node_of(PyObject* self) { return *reinterpret_cast<NodeObject*>(self); }
PyObject* node_name(PyObject* self, PyObject*) {
    return PyUnicode_FromString(node_title(node_of(self).node).c_str());
}
PyObject* node_repr(PyObject* self) {
    const Node* node = node_of(self).node;
    std::string at = node ? " at " + line_text(node->line) : "";
    return PyUnicode_FromFormat("<%s%s>", node_title(node).c_str(), at.c_str());
}
PyObject* node_next(PyObject* self, void*) {
    return guarded([&]() -> PyObject* {
        const Node* node = node_of(self).node;
        size_t count = 0;
        if (node)
            for (const NodeInput& input : node->inputs) count += !input.is_number;
        Object tuple = checked(PyTuple_New(Py_ssize_t(count)));
        Py_ssize_t at = 0;
        for (size_t i = 0; node && i < node->inputs.size(); ++i) {
            const NodeInput& input = node->inputs[i];
            if (input.is_number) continue;
            PyObject* next =
                input.edge ? wrap_node(input.edge.node.get(), input.edge.leaf.get()) : Py_NewRef(Py_None);
            PyTuple_SET_ITEM(tuple.get(), at++, Py_BuildValue("(Ni)", next, int(input.edge.index)));
        }
        return tuple.release();
    });
}
PyObject* node_line(PyObject* self, void*) {
    const Node* node = node_of(self).node;
    return node ? PyUnicode_FromString(line_text(node->line).c_str()) : Py_NewRef(Py_None);
}
PyObject* node_saved(PyObject* self, PyObject* args) {
    int kind, index;
    if (!PyArg_ParseTuple(args, "ii:saved", &kind, &index)) return nullptr;
    return guarded(
        [&] { return wrap(saved_value(*node_of(self).node, {Source::Kind(kind), size_t(index)})); });
}
PyObject* node_equal(PyObject* a, PyObject* b, int operation) {
    if (Py_TYPE(b) != node_type || (operation != Py_EQ && operation != Py_NE))
        return Py_NewRef(Py_NotImplemented);
    bool same = node_of(a).node == node_of(b).node && node_of(a).leaf == node_of(b).leaf;
    return PyBool_FromLong(same == (operation == Py_EQ));
}
Py_hash_t node_hash(PyObject* self) {
    const NodeObject& object = node_of(self);
    return _Py_HashPointer(object.node ? static_cast<const void*>(object.node) : object.leaf);
}

PyGetSetDef node_getset[] = {
    {"next_functions", node_next, nullptr, "The nodes the gradient goes to: pairs (node, output index).",
     nullptr},
    {"line", node_line, nullptr, "The line that recorded the op: \"file:line\".", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef node_methods[] = {
    {"name", node_name, METH_NOARGS, "The node's name, such as \"MulBackward0\"."},
    {"saved", node_saved, METH_VARARGS, "What a user's function saved at a place record_user gave."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot node_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)},
    {Py_tp_repr, reinterpret_cast<void*>(node_repr)},
    {Py_tp_richcompare, reinterpret_cast<void*>(node_equal)},
    {Py_tp_hash, reinterpret_cast<void*>(node_hash)},
    {Py_tp_getset, node_getset},
    {Py_tp_methods, node_methods},
    {Py_tp_doc, const_cast<char*>("One recorded op, as backward will pass it.")},
    {0, nullptr},
};
PyType_Spec node_spec = {"kiln.autograd.Node", sizeof(NodeObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, node_slots};

// ---- hooks ----

struct HandleObject {
    PyObject_HEAD uint64_t id;
};

void handle_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}
PyObject* handle_remove(PyObject* self, PyObject*) {
    Hooks::remove(reinterpret_cast<HandleObject*>(self)->id);
    Py_RETURN_NONE;
}
PyMethodDef handle_methods[] = {
    {"remove", handle_remove, METH_NOARGS, "Removes the hook."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot handle_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(handle_dealloc)},
    {Py_tp_methods, handle_methods},
    {0, nullptr},
};
PyType_Spec handle_spec = {"kiln.autograd.HookHandle", sizeof(HandleObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, handle_slots};

Object call_function(const Opaque& function, PyObject* argument) {
    return checked(
        in_python([&] { return PyObject_CallOneArg(static_cast<PyObject*>(function.object), argument); }));
}

TensorRef run_hook(const Opaque& hook, const TensorRef& gradient) {
    Object given = checked(wrap(gradient));
    Object result = call_function(hook, given.get());
    if (result.get() == Py_None) return nullptr;
    Tensor& changed = expect_tensor(result.get(), "hook: the result");
    KILN_CHECK(changed.sizes == gradient->sizes, runtime, "hook: it returned a gradient of shape ",
               shape_text(changed.sizes), " for one of shape ", shape_text(gradient->sizes));
    return TensorRef(&changed);
}

// Runs without recording gradients: what hooks compute of a saved tensor is not part of the graph.
Opaque run_pack(const Opaque& hook, const TensorRef& tensor) {
    struct Mode {
        bool before = set_grad_enabled(false);
        ~Mode() { set_grad_enabled(before); }
    } mode;
    Object given = checked(wrap(tensor));
    return Opaque(call_function(hook, given.get()).get());
}

TensorRef run_unpack(const Opaque& hook, const Opaque& value) {
    Object result = call_function(hook, static_cast<PyObject*>(value.object));
    return TensorRef(&expect_tensor(result.get(), "saved_tensors_hooks: the result of unpack"));
}

PyObject* get_saved_hooks(PyObject*, PyObject*) {
    const SavedHooks& hooks = saved_hooks();
    if (!hooks.pack.object) Py_RETURN_NONE;
    return PyTuple_Pack(2, hooks.pack.object, hooks.unpack.object);
}
PyObject* put_saved_hooks(PyObject*, PyObject* hooks) {
    SavedHooks made;
    if (hooks != Py_None) {
        PyObject *pack, *unpack;
        if (!PyArg_ParseTuple(hooks, "OO:set_saved_tensors_hooks", &pack, &unpack)) return nullptr;
        made = {Opaque(pack), Opaque(unpack)};
    }
    std::swap(saved_hooks(), made);  // the old ones go when the new are in place
    Py_RETURN_NONE;
}

PyObject* register_hook(PyObject* self, PyObject* function) {
    return guarded([&]() -> PyObject* {
        KILN_CHECK(PyCallable_Check(function), type, "register_hook: expected a callable");
        uint64_t id = add_hook(tensor_of(self), Opaque(function));
        track(self);
        auto* handle = PyObject_New(HandleObject, handle_type);
        if (!handle) return nullptr;
        handle->id = id;
        return reinterpret_cast<PyObject*>(handle);
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
        Node* node = up_to_date_grad_fn(tensor_of(self));
        if (node) return wrap_node(node, nullptr);
        Py_RETURN_NONE;
    });
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

// context(node, gradients) -> one gradient or None per input.
Results run_context(Node& node) {
    Object gradients = checked(PyTuple_New(Py_ssize_t(node.grads.size())));
    for (size_t k = 0; k < node.grads.size(); ++k)
        PyTuple_SET_ITEM(gradients.get(), Py_ssize_t(k), checked(wrap(node.grads[k])).release());
    Object place = checked(wrap_node(&node, nullptr));
    auto* context = static_cast<PyObject*>(node.context.object);
    Object given = checked(in_python(
        [&] { return PyObject_CallFunctionObjArgs(context, place.get(), gradients.get(), nullptr); }));
    Results results;
    Object list = checked(PySequence_Fast(given.get(), "backward: gradients"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(list.get(), i);
        results.push_back(item == Py_None ? nullptr : TensorRef(&expect_tensor(item, "backward: gradient")));
    }
    return results;
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
            Object place = checked(Py_BuildValue("(in)", int(kind), Py_ssize_t(index)));
            checked_ok(PyList_Append(places.get(), place.get()));
        }
        return places.release();
    });
}

// ---- the engine ----

PyObject* backward(PyObject*, PyObject* args) {
    return guarded([&]() -> PyObject* {
        PyObject *roots, *gradients, *inputs;
        int retain, create, accumulate;
        if (!PyArg_ParseTuple(args, "OOppOp:run_backward", &roots, &gradients, &retain, &create, &inputs,
                              &accumulate))
            return nullptr;
        auto root_tensors = tensors_from(roots, "backward: tensors", false);
        auto seeds = tensors_from(gradients, "backward: gradients", true);
        auto wanted = tensors_from(inputs, "backward: inputs", false);
        auto results =
            run_backward(root_tensors, seeds, wanted, {bool(retain), bool(create), bool(accumulate)});
        Object tuple = checked(PyTuple_New(Py_ssize_t(results.size())));
        for (size_t i = 0; i < results.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, wrap(results[i]));
        return tuple.release();
    });
}

PyObject* get_enabled(PyObject*, PyObject*) { return PyBool_FromLong(grad_enabled()); }
PyObject* put_enabled(PyObject*, PyObject* value) {
    int wanted = PyObject_IsTrue(value);
    if (wanted < 0) return nullptr;
    return PyBool_FromLong(set_grad_enabled(wanted));
}
PyObject* set_package_folder(PyObject*, PyObject* folder) {
    const char* text = PyUnicode_AsUTF8(folder);
    if (!text) return nullptr;
    package_folder = text;
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"run_backward", backward, METH_VARARGS,
     "run_backward(tensors, gradients, retain_graph, create_graph, inputs, accumulate)"},
    {"grad_enabled", get_enabled, METH_NOARGS, "Whether ops record gradients on this thread."},
    {"set_grad_enabled", put_enabled, METH_O, "Sets whether ops record gradients; returns what it was."},
    {"saved_tensors_hooks", get_saved_hooks, METH_NOARGS, "This thread's (pack, unpack), or None."},
    {"set_saved_tensors_hooks", put_saved_hooks, METH_O, "Sets this thread's (pack, unpack), or None."},
    {"record_user", record_user_call, METH_VARARGS,
     "record_user(name, context, inputs, results, saved, dirty): where each saved tensor is kept."},
    {"set_package_folder", set_package_folder, METH_O,
     "Where kiln's own files are: their lines are not shown to users."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef tensor_methods[] = {
    {"register_hook", register_hook, METH_O,
     "Calls a function on this tensor's gradient; returns a handle with remove()."},
    {"retain_grad", tensor_retain_grad, METH_NOARGS, "Keeps .grad though the tensor is no leaf."},
};
PyGetSetDef grad_fn_getset = {"grad_fn", tensor_grad_fn, nullptr,
                              "The node that computed this tensor, or None.", nullptr};

}  // namespace

int add_autograd(PyObject* module) {
    SourceLine::current = current_line;
    SourceLine::text = line_text;
    call_hook = run_hook;
    call_pack = run_pack;
    call_unpack = run_unpack;
    call_context = run_context;
    node_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_spec));
    handle_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&handle_spec));
    if (!node_type || !handle_type || add_to_tensor(tensor_methods, &grad_fn_getset) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
