// Nodes of the graph as Python objects, and the handles of hooks.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "autograd.h"
#include "bind.h"

namespace kiln {

namespace {

PyTypeObject* node_type = nullptr;
PyTypeObject* handle_type = nullptr;

struct NodeObject {
    PyObject_HEAD Node* node;  // owned; null for the accumulation into a leaf
    AutogradMeta* leaf;        // owned
};

const NodeObject& node_of(PyObject* self) { return *reinterpret_cast<NodeObject*>(self); }
std::unique_ptr<Extras>& extras_of(PyObject* self) {
    const NodeObject& object = node_of(self);
    return object.node ? object.node->extras : object.leaf->extras;
}

PyObject* titles =
    nullptr;  // names of ops -> titles that the rule does not give, or what makes one of structure

// "cross_entropy" -> "CrossEntropyBackward0", "log1p" -> "Log1PBackward0", the way PyTorch names nodes.
std::string title_of(const std::string& name) {
    std::string title;
    bool upper = true;
    for (char c : name) {
        const bool letter = std::isalpha(static_cast<unsigned char>(c));
        if (c != '_' && c != '.') title += upper && letter ? char(std::toupper(c)) : c;
        upper = !letter;
    }
    return title + "Backward0";
}

std::string node_title(const Node* node) {
    if (!node) return "AccumulateGrad";
    const Fn& fn = *node->fn;
    if (node->context.object) return fn.name + "Backward";
    PyObject* own = titles ? PyDict_GetItemString(titles, fn.name.c_str()) : nullptr;
    if (!own) return title_of(fn.name);
    Object made = Object::borrow(own);
    if (!PyUnicode_Check(own)) {
        auto* structure = static_cast<PyObject*>(fn.structure.object);
        made = checked(in_python([&] { return PyObject_CallOneArg(own, structure ? structure : Py_None); }));
    }
    const char* text = PyUnicode_AsUTF8(made.get());
    if (!text) throw Error(ErrorKind::python, "");
    return text;
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

PyObject* node_name(PyObject* self, PyObject*) {
    return guarded([&] { return PyUnicode_FromString(node_title(node_of(self).node).c_str()); });
}
PyObject* node_repr(PyObject* self) {
    return guarded([&] {
        const Node* node = node_of(self).node;
        const AutogradMeta* leaf = node_of(self).leaf;
        std::string at = node ? " at " + SourceLine::text(node->line) : "";
        if (!node && leaf && leaf->owner)
            at = std::string(" of a ") + name(leaf->owner->dtype) + " tensor of shape " +
                 shape_text(leaf->owner->sizes);
        return PyUnicode_FromFormat("<%s%s>", node_title(node).c_str(), at.c_str());
    });
}
PyObject* node_next(PyObject* self, void*) {
    return guarded([&]() -> PyObject* {
        const Node* node = node_of(self).node;
        Object list = checked(PyList_New(0));
        for (size_t i = 0; node && i < node->inputs.size(); ++i) {
            const Edge& edge = node->inputs[i].edge;
            if (node->inputs[i].is_number) continue;
            Object next = checked(wrap_node(edge));
            Object pair = checked(Py_BuildValue("(Oi)", next.get(), int(edge.index)));
            checked_ok(PyList_Append(list.get(), pair.get()));
        }
        return PyList_AsTuple(list.get());
    });
}
PyObject* node_line(PyObject* self, void*) {
    return guarded([&] {
        const Node* node = node_of(self).node;
        return node ? PyUnicode_FromString(SourceLine::text(node->line).c_str()) : Py_NewRef(Py_None);
    });
}
PyObject* node_order(PyObject* self, PyObject*) {
    const Node* node = node_of(self).node;
    return PyLong_FromUnsignedLongLong(node ? node->order : UINT64_MAX);  // a leaf's comes as soon as it can
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
PyObject* node_op(PyObject* self, void*) {
    const Node* node = node_of(self).node;
    if (!node || node->context.object) Py_RETURN_NONE;
    return PyUnicode_FromString(node->fn->name.c_str());
}
PyObject* node_context(PyObject* self, void*) {
    const Node* node = node_of(self).node;
    return Py_NewRef(node && node->context.object ? static_cast<PyObject*>(node->context.object) : Py_None);
}
PyObject* node_saved(PyObject* self, PyObject* args) {
    int kind, index;
    if (!PyArg_ParseTuple(args, "ii:saved", &kind, &index)) return nullptr;
    return guarded([&]() -> PyObject* {
        Node* node = node_of(self).node;
        TensorRef value = node ? saved_value(*node, {Source::Kind(kind), size_t(index)}) : nullptr;
        return wrap(value && value->storage ? value : nullptr);
    });
}
// (kind, index) of what is saved: of operands, of results.
PyObject* node_places(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        Object list = checked(PyList_New(0));
        const Node* node = node_of(self).node;
        auto add = [&](const SavedTensor& saved, Source::Kind kind, size_t i) {
            bool packed =
                node->packed && std::any_of(node->packed->begin(), node->packed->end(),
                                            [&](const Packed& p) { return p.place == saved.tensor; });
            if (!saved.tensor || !(saved.tensor->storage || packed)) return;
            Object place = checked(Py_BuildValue("(in)", int(kind), Py_ssize_t(i)));
            checked_ok(PyList_Append(list.get(), place.get()));
        };
        for (size_t i = 0; node && i < node->inputs.size(); ++i) add(node->inputs[i].saved, Source::input, i);
        for (size_t i = 0; node && i < node->saved_outputs.size(); ++i)
            add(node->saved_outputs[i], Source::output, i);
        return list.release();
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
        return hook_handle(extras_of(self)->hooks.add(kind, 0, Opaque(function)));
    });
}

// What is no attribute of nodes may be one of the user's context, or something saved: Python knows.
PyObject* node_getattro(PyObject* self, PyObject* name) {
    PyObject* found = PyObject_GenericGetAttr(self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return guarded([&] {
        Object module = checked(in_python([] { return PyImport_ImportModule("kiln.autograd.graph"); }));
        return in_python([&] { return PyObject_CallMethod(module.get(), "attribute_of", "OO", self, name); });
    });
}

PyGetSetDef node_getset[] = {
    {"next_functions", node_next, nullptr, "The nodes the gradient goes to: pairs (node, output index).",
     nullptr},
    {"line", node_line, nullptr, "The line that recorded the op: \"file:line\".", nullptr},
    {"metadata", node_metadata, nullptr, "A dict of the user's, which lives as long as the node.", nullptr},
    {"variable", node_variable, nullptr, "Of a leaf's node: the leaf, or None if it is gone.", nullptr},
    {"_op", node_op, nullptr, "The op's name, or None.", nullptr},
    {"_context", node_context, nullptr, "The context of a user's function, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef node_methods[] = {
    {"name", node_name, METH_NOARGS, "The node's name, such as \"MulBackward0\"."},
    {"register_hook", register_hook<HookKind::after>, METH_O,
     "Calls fn(grad_inputs, grad_outputs) when backward has passed the node; returns a handle."},
    {"register_prehook", register_hook<HookKind::before>, METH_O,
     "Calls fn(grad_outputs) before backward passes the node; returns a handle."},
    {"_sequence_nr", node_order, METH_NOARGS, "Later nodes have larger numbers, and are passed earlier."},
    {"saved", node_saved, METH_VARARGS, "What a node saved at a place (see places()), or None."},
    {"places", node_places, METH_NOARGS, "Where it saved something: pairs (kind, index)."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot node_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(node_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(node_clear)},
    {Py_tp_repr, reinterpret_cast<void*>(node_repr)},
    {Py_tp_getattro, reinterpret_cast<void*>(node_getattro)},
    {Py_tp_getset, node_getset},
    {Py_tp_methods, node_methods},
    {Py_tp_doc, const_cast<char*>("One recorded op, as backward will pass it.")},
    {0, nullptr},
};
PyType_Spec node_spec = {"kiln.autograd.graph.Node", sizeof(NodeObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                             Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         node_slots};

// One type for each title, made when the first such node is looked at.
PyTypeObject* type_of(const std::string& title) {
    static auto* types = new std::unordered_map<std::string, PyTypeObject*>();
    auto [found, added] = types->try_emplace(title, nullptr);
    if (!added) return found->second;
    static auto* names = new std::vector<std::unique_ptr<std::string>>();  // a type keeps only the pointer
    names->push_back(std::make_unique<std::string>("kiln.autograd.graph." + title));
    PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(node_dealloc)}, {0, nullptr}};
    PyType_Spec spec = {names->back()->c_str(), sizeof(NodeObject), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    Object made = Object::steal(PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(node_type)));
    if (!made) {
        types->erase(found);
        throw Error(ErrorKind::python, "");
    }
    return found->second = reinterpret_cast<PyTypeObject*>(made.release());
}

// ---- handles ----

struct HandleObject {
    PyObject_HEAD uint64_t id;
};

uint64_t id_of(PyObject* handle) { return reinterpret_cast<HandleObject*>(handle)->id; }
void handle_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}
PyObject* handle_remove(PyObject* self, PyObject*) {
    Hooks::remove(id_of(self));
    Py_RETURN_NONE;
}
PyObject* handle_enter(PyObject* self, PyObject*) { return Py_NewRef(self); }
PyObject* handle_id(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(id_of(self)); }
PyGetSetDef handle_getset[] = {
    {"id", handle_id, nullptr, "The hook's number.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef handle_methods[] = {
    {"remove", handle_remove, METH_NOARGS, "Removes the hook."},
    {"__enter__", handle_enter, METH_NOARGS, nullptr},
    {"__exit__", handle_remove, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot handle_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(handle_dealloc)},
    {Py_tp_getset, handle_getset},
    {Py_tp_methods, handle_methods},
    {0, nullptr},
};
PyType_Spec handle_spec = {"kiln.autograd.HookHandle", sizeof(HandleObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, handle_slots};

PyObject* set_titles(PyObject*, PyObject* dict) {
    if (!PyDict_Check(dict)) return PyErr_Format(PyExc_TypeError, "set_node_titles: expected a dict");
    Py_XSETREF(titles, Py_NewRef(dict));
    Py_RETURN_NONE;
}
PyMethodDef functions[] = {
    {"set_node_titles", set_titles, METH_O,
     "Titles of nodes by the name of their op, where the rule's differ."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

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
    auto* object = PyObject_GC_New(NodeObject, type_of(node_title(edge.node.get())));
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

PyObject* hook_handle(uint64_t id) {
    auto* handle = PyObject_New(HandleObject, handle_type);
    if (handle) handle->id = id;
    return reinterpret_cast<PyObject*>(handle);
}

int add_nodes(PyObject* module) {
    node_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_spec));
    handle_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&handle_spec));
    if (!node_type || !handle_type) return -1;
    if (PyModule_AddFunctions(module, functions) < 0) return -1;
    return PyModule_AddObjectRef(module, "Node", reinterpret_cast<PyObject*>(node_type));
}

}  // namespace kiln
