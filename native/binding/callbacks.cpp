// What the core calls of Python's on its way: hooks, users' functions, batches of gradients, anomaly mode,
// and the line of the user's program.
#include "binding/bind.h"

#include <cstring>
#include <unordered_map>

#include "autograd/autograd.h"
#include "autograd/engine.h"
#include "autograd/hooks.h"
#include "call/busy.h"

namespace kiln {

namespace {

// ---- places in the user's program ----

std::string package_folder;  // frames of files below it are kiln's own

bool is_own_code(PyCodeObject* code) {
    static PyObject* last_user_file = nullptr;  // kept alive by `known`
    if (code->co_filename == last_user_file) return false;
    static auto* known = new std::unordered_map<PyObject*, bool>();
    auto found = known->find(code->co_filename);
    if (found != known->end()) {
        if (!found->second) last_user_file = code->co_filename;
        return found->second;
    }
    bool own = !package_folder.empty() && text_of(code->co_filename).starts_with(package_folder);
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
            return {Opaque(code.get()), PyFrame_GetLasti(here), call_numbers.call};
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
    return text_of(text.get());
}

PyObject* set_package_folder(PyObject*, PyObject* folder) {
    return guarded([&]() -> PyObject* {
        package_folder = text_of(folder);
        Py_RETURN_NONE;
    });
}

// ---- calls ----

Object call_function(const Opaque& function, PyObject* argument) {
    return checked(
        in_python([&] { return PyObject_CallOneArg(static_cast<PyObject*>(function.object), argument); }));
}

// Gradients from a sequence of tensors and None.
Results gradients_from(PyObject* given) {
    const char* what = "backward: gradients";
    Results gradients;
    Object list = checked(PySequence_Fast(given, what));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(list.get(), i);
        gradients.push_back(item == Py_None ? nullptr : TensorRef(&expect_tensor(item, what)));
    }
    return gradients;
}

// Tensors and numbers.
Object objects_of(std::span<const Operand> operands) {
    Object given = checked(PyTuple_New(Py_ssize_t(operands.size())));
    for (size_t i = 0; i < operands.size(); ++i) {
        const Operand& x = operands[i];
        PyTuple_SET_ITEM(given.get(), Py_ssize_t(i),
                         checked(x.tensor ? wrap(x.tensor) : number_object(x.number)).release());
    }
    return given;
}

// ---- who watches calls ----

PyObject* watcher = nullptr;

// The watcher gives the call's number, with a function that takes the results, or other results. It is told
// whether hidden ones are among them; -1: it writes.
Results tell_watcher(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    const Object function = Object::borrow(watcher), given = objects_of(operands);
    const Object answer = checked(in_python([&] {
        return PyObject_CallFunction(function.get(), "sOOIOi", fn.name.c_str(), handle_of(fn), given.get(),
                                     call_numbers.forward, current_recording() ? Py_True : Py_False,
                                     out.empty() ? int(hidden) : -1);
    }));
    Results results;
    if (PyTuple_Check(answer.get())) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(answer.get()); ++i)
            results.push_back(alias(tensor_of(PyTuple_GET_ITEM(answer.get(), i))));
        return results;
    }
    PyObject* const number = PyList_Check(answer.get()) ? PyList_GET_ITEM(answer.get(), 0) : answer.get();
    call_numbers.call = uint32_t(PyLong_AsUnsignedLongMask(number));
    results = run_told(fn, operands, out, hidden);
    if (number != answer.get()) {
        const Object came = tuple_of({results.data(), results.size()});
        checked(in_python([&] { return PyObject_CallOneArg(PyList_GET_ITEM(answer.get(), 1), came.get()); }));
    }
    return results;
}

PyObject* set_watcher(PyObject*, PyObject* function) {
    on_call = function == Py_None ? nullptr : tell_watcher;
    Py_XSETREF(watcher, Py_NewRef(function));
    Py_RETURN_NONE;
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
    Object given = objects_of(operands);
    auto* handle = static_cast<PyObject*>(fn.handle.object);
    Object found = checked(in_python(
        [&] { return PyObject_CallFunctionObjArgs(batched_functions[0], handle, given.get(), nullptr); }));
    return gradients_from(found.get());
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
    const bool batched = gradients_are_batched();
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
    return name && PyUnicode_Check(name.get()) ? text_of(name.get()) : Py_TYPE(function)->tp_name;
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
    const GradMode off(false);
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

// context(node, gradients) -> one gradient or None per input.
Results run_context(Node& node) {
    Object place = checked(wrap_node({NodeRef(&node), nullptr, 0}));
    Object got = tuple_of({node.grads.data(), node.grads.size()});
    Object given = call_with(node.context, checked(PyTuple_Pack(2, place.get(), got.get())).get());
    return gradients_from(given.get());
}

void run_callback(const Opaque& callback) {
    checked(in_python([&] { return PyObject_CallNoArgs(static_cast<PyObject*>(callback.object)); }));
}
// ---- anomaly mode ----

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

PyMethodDef functions[] = {
    {"set_watcher", set_watcher, METH_O,
     "Who is told of calls: (name, handle, operands, number of the forward or 0, recorded) -> a number."},
    {"set_batched", set_batched, METH_VARARGS, "Sets who does the derivatives of a batch of gradients."},
    {"set_package_folder", set_package_folder, METH_O,
     "Where kiln's own files are: their lines are not shown to users."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Object tuple_of(std::span<const TensorRef> tensors) {
    Object tuple = checked(PyTuple_New(Py_ssize_t(tensors.size())));
    for (size_t i = 0; i < tensors.size(); ++i)
        PyTuple_SET_ITEM(tuple.get(), i, checked(wrap(tensors[i])).release());
    return tuple;
}

int add_callbacks(PyObject* module) {
    SourceLine::current = current_line;
    SourceLine::text = line_text;
    callbacks = {.at_end = run_callback,
                 .hook = run_hook,
                 .node_hook = run_node_hook,
                 .pack = run_pack,
                 .unpack = run_unpack,
                 .context = run_context,
                 .new_node = on_new_node,
                 .check_node = on_gradients,
                 .node_failed = on_failure,
                 .batched_derivative = batched_derivative,
                 .batched_sum = batched_sum};
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
