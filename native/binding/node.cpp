// Nodes of the graph as Python objects. How nodes are called and what else they
// show is kiln/autograd/node.py's.
#include "binding/bind.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>

#include "autograd/node.h"

namespace kiln {

namespace {

PyTypeObject* node_type = nullptr;

struct NodeObject {
    PyObject_HEAD Node* node;  // owned; null for the accumulation into a leaf
    AutogradMeta* leaf;        // owned
};

const NodeObject& node_of(PyObject* self) { return *reinterpret_cast<NodeObject*>(self); }
std::unique_ptr<Extras>& extras_of(PyObject* self) {
    const NodeObject& object = node_of(self);
    return object.node ? object.node->extras : object.leaf->extras;
}

void node_dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    if (auto& extras = extras_of(self)) extras->object = nullptr;
    auto* object = reinterpret_cast<NodeObject*>(self);
    NodeRef node(object->node);
    MetaRef leaf(object->leaf);
    if (object->node) --object->node->refcount;
    if (object->leaf) --object->leaf->refcount;
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

// What lives and dies with the object, as nobody else holds its node.
bool holds_alone(PyObject* self) {
    const NodeObject& object = node_of(self);
    return (object.node ? object.node->refcount : object.leaf->refcount) == 1;
}
int node_traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return holds_alone(self) ? visit_extras(*extras_of(self), visit, arg) : 0;
}
int node_clear(PyObject* self) {
    if (holds_alone(self)) clear_extras(*extras_of(self));
    return 0;
}

PyObject* node_line(PyObject* self, void*) {
    return guarded([&] {
        const Node* node = node_of(self).node;
        return node ? PyUnicode_FromString(SourceLine::text(node->line).c_str()) : Py_NewRef(Py_None);
    });
}
PyObject* node_metadata(PyObject* self, void*) {
    Opaque& metadata = extras_of(self)->metadata;
    if (!metadata.object) {
        Object dict = Object::steal(PyDict_New());
        if (!dict) return nullptr;
        metadata = Opaque(dict.get());
    }
    return Py_NewRef(static_cast<PyObject*>(metadata.object));
}
PyObject* node_context(PyObject* self, void*) {
    const Node* node = node_of(self).node;
    return Py_NewRef(node && node->context.object ? static_cast<PyObject*>(node->context.object) : Py_None);
}
SavedPlace saved_place(const char* name, int index) {
    Source::Kind kind = Source::input;
    while (kind < Source::hidden && std::strcmp(name, kind_name(kind)) != 0) kind = Source::Kind(kind + 1);
    return {kind, size_t(index)};
}
PyObject* node_saved(PyObject* self, PyObject* args) {
    const char* name;
    int index;
    if (!PyArg_ParseTuple(args, "si:saved", &name, &index)) return nullptr;
    return guarded([&]() -> PyObject* {
        Node* node = node_of(self).node;
        TensorRef value = node ? saved_value(*node, saved_place(name, index)) : nullptr;
        return wrap(value && value->storage ? value : nullptr);
    });
}
PyObject* node_pack(PyObject* self, PyObject* args) {
    const char* name;
    int index;
    PyObject *pack, *unpack;
    if (!PyArg_ParseTuple(args, "siOO:pack", &name, &index, &pack, &unpack)) return nullptr;
    return guarded([&]() -> PyObject* {
        if (node_of(self).node)
            pack_at(*node_of(self).node, saved_place(name, index), Opaque(pack), Opaque(unpack));
        Py_RETURN_NONE;
    });
}
PyObject* node_variable(PyObject* self, void*) {
    const NodeObject& object = node_of(self);
    if (!object.leaf) {
        PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute 'variable'", Py_TYPE(self)->tp_name);
        return nullptr;
    }
    return guarded([&] { return wrap(TensorRef(object.leaf->owner)); });
}

template <HookKind kind>
PyObject* register_hook(PyObject* self, PyObject* function) {
    return guarded([&]() -> PyObject* {
        KILN_CHECK(PyCallable_Check(function), type, "register_hook: expected a callable");
        return hook_handle([&] { return extras_of(self)->hooks.add(kind, 0, Opaque(function)); });
    });
}

// ---- what a node knows, as plain tuples ----

Object shape_object(const Tensor* tensor) {
    return tensor ? checked(dims_object(tensor->sizes)) : Object::borrow(Py_None);
}

// A number, or (node, output index, shape or None, dtype, whether its shape is the results').
Object input_facts(const NodeInput& input) {
    if (input.is_number) return checked(number_object(input.number));
    Object next = checked(wrap_node(input.edge));
    return checked(Py_BuildValue("(OIOOO)", next.get(), input.edge.index,
                                 shape_object(input.saved.tensor.get()).get(), dtype_object(input.dtype),
                                 input.like_result ? Py_True : Py_False));
}

// (kind, index, shape, dtype, bytes, which memory) of each saved tensor: memory 0 is with hooks.
Object saved_facts(const Node& node) {
    Object list = checked(PyList_New(0));
    auto add = [&](Source::Kind kind, size_t index, const SavedTensor& saved) {
        const Tensor* x = saved.tensor.get();
        auto held = [&](const Packed& packed) { return packed.place.get() == x; };
        if (!x ||
            (!x->storage && !(node.packed && std::any_of(node.packed->begin(), node.packed->end(), held))))
            return;
        Object entry = checked(Py_BuildValue(
            "(snOOLn)", kind_name(kind), Py_ssize_t(index), shape_object(x).get(), dtype_object(x->dtype),
            int64_t(x->numel * itemsize(x->dtype)), Py_ssize_t(x->storage.get())));
        checked_ok(PyList_Append(list.get(), entry.get()));
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) add(Source::input, i, node.inputs[i].saved);
    for (size_t k = 0; k < node.saved_outputs.size(); ++k) add(Source::output, k, node.saved_outputs[k]);
    for (size_t h = 0; h < node.hidden.size(); ++h) add(Source::hidden, h, node.hidden[h]);
    return list;
}

PyObject* node_facts(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const NodeRef node(node_of(self).node);
        if (!node) Py_RETURN_NONE;
        Object inputs = checked(PyList_New(0));
        for (const NodeInput& input : node->inputs)
            checked_ok(PyList_Append(inputs.get(), input_facts(input).get()));
        const Fn& fn = *node->fn;
        auto of = [](void* known) { return known ? static_cast<PyObject*>(known) : Py_None; };
        return Py_BuildValue("(KsOOOOO)", node->order, fn.name.c_str(), of(fn.op ? fn.op->record : nullptr),
                             of(fn.structure.object), node->released ? Py_True : Py_False, inputs.get(),
                             saved_facts(*node).get());
    });
}

PyGetSetDef node_getset[] = {
    {"line", node_line, nullptr, "The line that recorded the op: \"file:line\".", nullptr},
    {"metadata", node_metadata, nullptr, "A dict of the user's, which lives as long as the node.", nullptr},
    {"variable", node_variable, nullptr, "Of a leaf's node: the leaf, or None if it is gone.", nullptr},
    {"_context", node_context, nullptr, "The context of a user's function, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef node_methods[] = {
    {"register_hook", register_hook<HookKind::after>, METH_O,
     "Calls fn(grad_inputs, grad_outputs) when backward has passed the node; returns a handle."},
    {"register_prehook", register_hook<HookKind::before>, METH_O,
     "Calls fn(grad_outputs) before backward passes the node; returns a handle."},
    {"pack", node_pack, METH_VARARGS, "Gives what a node saved to hooks: (kind, index, pack, unpack)."},
    {"saved", node_saved, METH_VARARGS, "What a node saved at a place (kind, index), or None."},
    {"facts", node_facts, METH_NOARGS,
     "(order, name, record, structure, freed, inputs, saved) of an op's node, None of a leaf's."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot node_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(node_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(node_clear)},
    {Py_tp_getset, node_getset},
    {Py_tp_methods, node_methods},
    {Py_tp_doc, const_cast<char*>("What the core knows of a node.")},
    {0, nullptr},
};
PyType_Spec node_spec = {"kiln._core.Node", sizeof(NodeObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                             Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         node_slots};

// A class of nodes: name, base. Made here, so that its objects end in `node_dealloc` at once: until then
// their node would give out an object that is about to go.
PyObject* node_class(PyObject*, PyObject* args) {
    static auto* names = new std::deque<std::string>();  // a class keeps only the pointer
    const char* name;
    PyObject* base;
    if (!PyArg_ParseTuple(args, "sO:node_class", &name, &base)) return nullptr;
    return guarded([&] {
        names->emplace_back(name);
        PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)}, {0, nullptr}};
        PyType_Spec spec = {names->back().c_str(), sizeof(NodeObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
        return PyType_FromSpecWithBases(&spec, base);
    });
}

// The class of a function's nodes, of a leaf's: Python says which.
PyTypeObject* class_of(const Node* node) {
    static auto* classes = new std::unordered_map<const Fn*, PyTypeObject*>();
    const Fn* fn = node ? node->fn : nullptr;
    auto found = classes->find(fn);
    if (found != classes->end()) return found->second;
    Object module = checked(in_python([] { return PyImport_ImportModule("kiln.autograd.node"); }));
    auto* structure = fn ? static_cast<PyObject*>(fn->structure.object) : nullptr;
    Object made = checked(in_python([&] {
        return PyObject_CallMethod(module.get(), "class_of", "zOO", fn ? fn->name.c_str() : nullptr,
                                   structure ? structure : Py_None, fn && !fn->op ? Py_True : Py_False);
    }));
    return (*classes)[fn] = reinterpret_cast<PyTypeObject*>(made.release());
}

PyObject* remove_hook(PyObject*, PyObject* id) {
    const uint64_t number = PyLong_AsUnsignedLongLong(id);
    if (number == uint64_t(-1) && PyErr_Occurred()) return nullptr;
    Hooks::remove(number);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"remove_hook", remove_hook, METH_O, "Removes the hook of a number, if it is still there."},
    {"node_class", node_class, METH_VARARGS, "A class of nodes, by its name and what it is derived from."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const char* kind_name(Source::Kind kind) {
    return kind == Source::input ? "input" : kind == Source::output ? "output" : "hidden";
}

int visit_extras(const Extras& extras, visitproc visit, void* arg) {
    for (const Hook& hook : extras.hooks.list()) Py_VISIT(static_cast<PyObject*>(hook.function.object));
    Py_VISIT(static_cast<PyObject*>(extras.metadata.object));
    return 0;
}

void clear_extras(Extras& extras) {
    extras.hooks.clear();
    Opaque dropped = std::exchange(extras.metadata, {});
}

PyObject* wrap_node(const Edge& edge) {
    if (!edge) Py_RETURN_NONE;
    Extras& extras = edge.node ? ensure_extras(*edge.node) : ensure_extras(*edge.leaf);
    if (extras.object) return Py_NewRef(static_cast<PyObject*>(extras.object));
    PyTypeObject* type = class_of(edge.node.get());
    if (extras.object) return Py_NewRef(static_cast<PyObject*>(extras.object));  // made by another thread
    auto* object = PyObject_GC_New(NodeObject, type);
    if (!object) return nullptr;
    object->node = edge.node.get();
    object->leaf = edge.leaf.get();
    if (object->node) ++object->node->refcount;
    if (object->leaf) ++object->leaf->refcount;
    extras.object = object;
    PyObject_GC_Track(object);
    if (Tensor* owner = edge.leaf ? edge.leaf->owner : nullptr; owner && owner->wrapper)
        track(static_cast<PyObject*>(owner->wrapper));  // it may get hooks
    return reinterpret_cast<PyObject*>(object);
}

bool is_node(PyObject* object) { return PyObject_TypeCheck(object, node_type); }

Edge edge_of_node(PyObject* node) { return {NodeRef(node_of(node).node), MetaRef(node_of(node).leaf), 0}; }

PyObject* hook_handle(FunctionRef<uint64_t()> add) {
    Object module = checked(in_python([] { return PyImport_ImportModule("kiln.autograd.node"); }));
    Object type = checked(PyObject_GetAttrString(module.get(), "HookHandle"));
    // No Python code runs from here on: a signal's handler finds the hook and its handle, or neither.
    auto* handle_type = reinterpret_cast<PyTypeObject*>(type.get());
    Object handle = checked(handle_type->tp_alloc(handle_type, 0));
    Object id = checked(PyLong_FromUnsignedLongLong(add()));
    checked_ok(PyObject_SetAttrString(handle.get(), "id", id.get()));
    return handle.release();
}

int add_nodes(PyObject* module) {
    node_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_spec));
    if (!node_type) return -1;
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    return PyModule_AddObjectRef(module, "Node", reinterpret_cast<PyObject*>(node_type));
}

}  // namespace kiln
