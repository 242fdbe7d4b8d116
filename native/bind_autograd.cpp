// Gradients: modes, backward, and what is called on its way.
#include "bind.h"

#include <cstring>
#include <unordered_map>

#include "autograd.h"
#include "busy.h"
#include "hooks.h"

namespace kiln {

namespace {

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
    if (!file) return PyErr_Clear(), false;
    bool own = !package_folder.empty() && std::string_view(file).starts_with(package_folder);
    Py_INCREF(code->co_filename);  // the key stays valid
    return known->emplace(code->co_filename, own).first->second;
}

SourceLine current_line() {
    const auto object = [](auto* found) { return Object::steal(reinterpret_cast<PyObject*>(found)); };
    Object frame = object(PyThreadState_GetFrame(PyThreadState_Get()));
    while (frame) {
        auto* const here = reinterpret_cast<PyFrameObject*>(frame.get());
        const Object code = object(PyFrame_GetCode(here));
        if (!is_own_code(reinterpret_cast<PyCodeObject*>(code.get())))
            return {Opaque(code.get()), PyFrame_GetLasti(here)};
        frame = object(PyFrame_GetBack(here));
    }
    if (PyErr_Occurred()) PyErr_Clear();  // no memory for a frame's object: the line stays unknown
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

Object call_function(const Opaque& function, PyObject* argument) {
    return checked(
        in_python([&] { return PyObject_CallOneArg(static_cast<PyObject*>(function.object), argument); }));
}

Object tuple_of(std::span<const TensorRef> tensors) {
    Object tuple = checked(PyTuple_New(Py_ssize_t(tensors.size())));
    for (size_t i = 0; i < tensors.size(); ++i)
        PyTuple_SET_ITEM(tuple.get(), i, checked(wrap(tensors[i])).release());
    return tuple;
}

Results results_from(PyObject* given, const char* what) {
    Results results;
    Object list = checked(PySequence_Fast(given, what));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(list.get(), i);
        results.push_back(item == Py_None ? nullptr : TensorRef(&expect_tensor(item, what)));
    }
    return results;
}

// ---- batches of gradients: what the interpreter does of a pass ----

PyObject* batched_functions[3] = {};  // derivative(handle, operands), sum_to(gradient, sizes), call(f, args)

PyObject* set_batched(PyObject*, PyObject* args) {
    auto& [derivative, sum, call] = batched_functions;
    if (!PyArg_ParseTuple(args, "OOO:set_batched", &derivative, &sum, &call)) return nullptr;
    for (PyObject* function : batched_functions) Py_INCREF(function);
    Py_RETURN_NONE;
}

Results batched_derivative(const Fn& fn, std::span<const Operand> operands) {
    Object given = checked(PyTuple_New(Py_ssize_t(operands.size())));
    for (size_t i = 0; i < operands.size(); ++i) {
        const Operand& x = operands[i];
        PyTuple_SET_ITEM(given.get(), Py_ssize_t(i),
                         checked(x.tensor ? wrap(x.tensor) : number_object(x.number)).release());
    }
    auto* handle = static_cast<PyObject*>(fn.handle.object);
    Object found = checked(in_python(
        [&] { return PyObject_CallFunctionObjArgs(batched_functions[0], handle, given.get(), nullptr); }));
    return results_from(found.get(), "backward: gradients");
}

TensorRef batched_sum(const TensorRef& gradient, const Tensor& like) {
    Object given = checked(wrap(gradient)), sizes = checked(dims_object(like.sizes));
    Object found = checked(in_python([&] {
        return PyObject_CallFunctionObjArgs(batched_functions[1], given.get(), sizes.get(), nullptr);
    }));
    return TensorRef(&expect_tensor(found.get(), "backward: gradient"));
}

// A call with gradients, each a batch of them if the pass under way is of such.
Object call_with(const Opaque& callable, PyObject* args) {
    auto* function = static_cast<PyObject*>(callable.object);
    const bool batched = own_pass()->options.batched;
    return checked(in_python([&] {
        return batched ? PyObject_CallFunctionObjArgs(batched_functions[2], function, args, nullptr)
                       : PyObject_CallObject(function, args);
    }));
}

// ---- hooks ----

std::string hook_name(const Opaque& hook) {
    auto* function = static_cast<PyObject*>(hook.object);
    Object name = Object::steal(PyObject_GetAttrString(function, "__name__"));
    if (!name) PyErr_Clear();
    const char* text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
    if (!text) PyErr_Clear();
    return text ? text : Py_TYPE(function)->tp_name;
}

// "Tensor", without its module.
const char* type_name(PyObject* object) {
    const char* name = Py_TYPE(object)->tp_name;
    const char* dot = std::strrchr(name, '.');
    return dot ? dot + 1 : name;
}

// What a hook gave in place of a gradient: a tensor like it.
TensorRef replacement(const Opaque& hook, PyObject* result, const TensorRef& gradient) {
    KILN_CHECK(is_tensor(result), type, "expected Variable, but hook returned '", type_name(result),
               "'; a hook returns None or a gradient");
    TensorRef changed(&tensor_of(result));
    KILN_CHECK(gradient, runtime, "can't replace a None gradient with a non-None value");
    KILN_CHECK(changed->sizes == gradient->sizes, runtime, "hook '", hook_name(hook),
               "' has changed the size of value: it returned a gradient of shape ",
               shape_text(changed->sizes), " for one of shape ", shape_text(gradient->sizes));
    KILN_CHECK(changed->dtype == gradient->dtype, runtime, "hook '", hook_name(hook),
               "' has changed the type of value (was ", name(gradient->dtype), " got ", name(changed->dtype),
               ")");
    return changed;
}

TensorRef run_hook(const Opaque& hook, const TensorRef& gradient) {
    Object result = call_with(hook, tuple_of({&gradient, 1}).get());
    return result.get() == Py_None ? nullptr : replacement(hook, result.get(), gradient);
}

void run_node_hook(const Opaque& hook, std::span<TensorRef> gradients, const std::span<TensorRef>* got) {
    Object first = tuple_of(gradients), second = got ? tuple_of(*got) : Object();
    Object result = call_with(hook, checked(PyTuple_Pack(got ? 2 : 1, first.get(), second.get())).get());
    if (result.get() == Py_None) return;
    KILN_CHECK(PyTuple_Check(result.get()), type, "expected tuple, but hook returned '",
               type_name(result.get()), "'; a node's hook returns None or a tuple of gradients");
    const size_t count = size_t(PyTuple_GET_SIZE(result.get()));
    KILN_CHECK(count == gradients.size(), runtime, "hook '", hook_name(hook),
               "' has returned an incorrect number of values (got ", count, ", but expected ",
               gradients.size(), ")");
    for (size_t i = 0; i < count; ++i) {
        PyObject* item = PyTuple_GET_ITEM(result.get(), i);
        gradients[i] = item == Py_None ? nullptr : replacement(hook, item, gradients[i]);
    }
}

// Runs without recording gradients: what hooks compute of a saved tensor is not part of the graph.
Opaque run_pack(const Opaque& hook, const TensorRef& tensor) {
    struct Mode {
        bool before = set_grad_enabled(false);
        ~Mode() { set_grad_enabled(before); }
    } mode;
    const uint32_t version = tensor->storage->version;
    Object given = checked(wrap(tensor));
    Object packed = call_function(hook, given.get());
    KILN_CHECK(tensor->storage->version == version, runtime,
               "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack "
               "hook can not be modified by in-place operations; change a clone() instead");
    return Opaque(packed.get());
}

TensorRef run_unpack(const Opaque& hook, const Opaque& value) {
    Object result = call_function(hook, static_cast<PyObject*>(value.object));
    KILN_CHECK(is_tensor(result.get()), type,
               "Output of saved tensor unpack_hook expected to be a Tensor but got result of type ",
               type_name(result.get()));
    return TensorRef(&tensor_of(result.get()));
}

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
        const uint64_t id = add_hook(tensor_of(self), kind, Opaque(function));
        track(self);
        return hook_handle(id);
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
        return Py_BuildValue("(Oi)", node.get(), int(edge.index));
    });
}
PyObject* tensor_output_nr(PyObject* self, void*) {
    return guarded([&] { return PyLong_FromLong(int(edge_of(tensor_of(self)).index)); });
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
    Object place = checked(wrap_node({NodeRef(&node), nullptr, 0}));
    Object gradients = tuple_of({node.grads.data(), node.grads.size()});
    Object given = call_with(node.context, checked(PyTuple_Pack(2, place.get(), gradients.get())).get());
    return results_from(given.get(), "backward: gradients");
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

// The plain case of Tensor.backward.
PyObject* tensor_backward(PyObject* self, PyObject* retain) {
    return guarded([&]() -> PyObject* {
        if (nested_too_deeply()) [[unlikely]]
            return deeper(checked(PyObject_GetAttrString(self, "_backward")),
                          checked(PyTuple_Pack(1, retain)).get());
        const Root root = root_of(tensor_of(self), nullptr, 0, false);
        run_backward({&root, 1}, {}, {retain == Py_True});
        Py_RETURN_NONE;
    });
}

void run_callback(const Opaque& callback) {
    checked(in_python([&] { return PyObject_CallNoArgs(static_cast<PyObject*>(callback.object)); }));
}
PyObject* queue_callback(PyObject*, PyObject* callback) {
    return guarded([&]() -> PyObject* {
        KILN_CHECK(own_pass(), runtime, "Final callbacks can only be installed during backward pass.");
        own_pass()->callbacks.emplace_back(callback);
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
PyObject* get_will_visit(PyObject*, PyObject* item) {
    return guarded([&] { return PyBool_FromLong(will_visit(edge_from(item, "will_visit"))); });
}

// ---- modes ----

// Calls a function of kiln.autograd.anomaly_mode, which is imported when anomaly mode is first used.
void call_anomaly(const char* name, Node& node, const Object& argument) {
    Object place = checked(wrap_node({NodeRef(&node), nullptr, 0}));
    Object module = checked(in_python([] { return PyImport_ImportModule("kiln.autograd.anomaly_mode"); }));
    checked(in_python(
        [&] { return PyObject_CallMethod(module.get(), name, "OO", place.get(), argument.get()); }));
}

void on_new_node(Node& node, Node* parent) {
    call_anomaly("note", node,
                 checked(parent ? wrap_node({NodeRef(parent), nullptr, 0}) : Py_NewRef(Py_None)));
}
void on_gradients(Node& node, std::span<const TensorRef> gradients) {
    call_anomaly("check", node, tuple_of(gradients));
}
// What failed stays the error: here it is only said where that was recorded.
void on_failure(Node& node) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    try {
        call_anomaly("tell", node, Object::borrow(Py_None));
    } catch (const Error&) { PyErr_Clear(); }
    PyErr_Restore(type, value, trace);
}

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
PyObject* set_package_folder(PyObject*, PyObject* folder) {
    const char* text = PyUnicode_AsUTF8(folder);
    if (!text) return nullptr;
    package_folder = text;
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"run_backward", backward, METH_VARARGS,
     "run_backward(tensors, gradients, retain_graph, create_graph, inputs, accumulate, batched=False)"},
    {"set_batched", set_batched, METH_VARARGS, "Sets who does the derivatives of a batch of gradients."},
    {"saved_tensors_hooks", get_saved_hooks, METH_NOARGS, "This thread's (pack, unpack), or None."},
    {"set_saved_tensors_hooks", put_saved_hooks, METH_O, "Sets this thread's (pack, unpack), or None."},
    {"refuse_saved_tensors_hooks", refuse_saved_hooks, METH_O,
     "Sets why this thread may not set such hooks, or None: it may; returns what it was."},
    {"current_run", get_run, METH_NOARGS, "The number of this thread's innermost backward pass, or 0."},
    {"work_for", put_owner, METH_O, "This thread's passes are another's, which waits for it, by its number."},
    {"queue_callback", queue_callback, METH_O, "Calls a function when that pass is over."},
    {"will_visit", get_will_visit, METH_O, "Whether that pass comes to a tensor's or GradientEdge's node."},
    {"anomaly_enabled", get_anomaly, METH_NOARGS, "Whether anomaly mode is on."},
    {"set_anomaly", put_anomaly, METH_O, "Switches anomaly mode; returns what it was."},
    {"increment_version", increment_version, METH_O, "Counts a write to a tensor's memory."},
    {"record_user", record_user_call, METH_VARARGS,
     "record_user(name, context, inputs, results, saved, dirty): where each saved tensor is kept."},
    {"set_package_folder", set_package_folder, METH_O,
     "Where kiln's own files are: their lines are not shown to users."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef tensor_methods[] = {
    {"register_hook", register_hook<HookKind::tensor>, METH_O,
     "Calls a function on this tensor's gradient; returns a handle with remove()."},
    {"register_post_accumulate_grad_hook", register_hook<HookKind::accumulated>, METH_O,
     "Calls a function on this leaf when backward has added to its .grad; returns a handle with remove()."},
    {"_edge", tensor_edge, METH_NOARGS, "The node its gradient goes to (None for nowhere) and which result."},
    {"_backward", tensor_backward, METH_O, "backward(retain_graph) from a gradient of 1."},
    {"retain_grad", tensor_retain_grad, METH_NOARGS, "Keeps .grad though the tensor is no leaf."},
};
PyGetSetDef tensor_properties[] = {
    {"grad_fn", tensor_grad_fn, nullptr, "The node that computed this tensor, or None.", nullptr},
    {"output_nr", tensor_output_nr, nullptr, "Which of that node's results it is.", nullptr},
};

}  // namespace

int add_autograd(PyObject* module) {
    SourceLine::current = current_line;
    SourceLine::text = line_text;
    call_back = run_callback;
    call_hook = run_hook;
    call_node_hook = run_node_hook;
    note_node = on_new_node;
    check_node = on_gradients;
    node_failed = on_failure;
    call_pack = run_pack;
    call_unpack = run_unpack;
    call_context = run_context;
    batched_calls = {batched_derivative, batched_sum};
    if (add_nodes(module) < 0 || add_to_tensor(tensor_methods, tensor_properties) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
