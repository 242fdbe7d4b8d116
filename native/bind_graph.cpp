// What drawing a graph asks for: the facts of a node, as plain tuples.
#include "bind.h"

#include <algorithm>

#include "autograd.h"

namespace kiln {

namespace {

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

// (role, index, shape, dtype, bytes, which memory) of each saved tensor: memory 0 is with hooks.
Object saved_facts(const Node& node) {
    Object list = checked(PyList_New(0));
    auto add = [&](const char* role, size_t index, const SavedTensor& saved) {
        const Tensor* x = saved.tensor.get();
        auto held = [&](const Packed& packed) { return packed.place.get() == x; };
        if (!x ||
            (!x->storage && !(node.packed && std::any_of(node.packed->begin(), node.packed->end(), held))))
            return;
        Object entry = checked(Py_BuildValue("(snOOLn)", role, Py_ssize_t(index), shape_object(x).get(),
                                             dtype_object(x->dtype), int64_t(x->numel * itemsize(x->dtype)),
                                             Py_ssize_t(x->storage.get())));
        checked_ok(PyList_Append(list.get(), entry.get()));
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) add("input", i, node.inputs[i].saved);
    for (size_t k = 0; k < node.saved_outputs.size(); ++k) add("output", k, node.saved_outputs[k]);
    for (size_t h = 0; h < node.hidden.size(); ++h) add("hidden", h, node.hidden[h]);
    return list;
}

// (order, name, record or None, structure or None, freed, inputs, saved); None of a leaf.
PyObject* node_facts(PyObject*, PyObject* object) {
    return guarded([&]() -> PyObject* {
        KILN_CHECK(is_node(object), type, "node_facts: expected a node");
        const NodeRef node = edge_of_node(object).node;
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

// Where the gradient of a tensor goes, and which memory it has: (node or None, output index, memory).
PyObject* gradient_edge(PyObject*, PyObject* object) {
    return guarded([&]() -> PyObject* {
        Tensor& tensor = expect_tensor(object, "gradient_edge");
        const Edge edge = edge_of(tensor);
        Object node = checked(wrap_node(edge));
        return Py_BuildValue("(OIn)", node.get(), edge.index, Py_ssize_t(tensor.storage.get()));
    });
}

PyMethodDef functions[] = {
    {"node_facts", node_facts, METH_O,
     "(order, name, record, structure, freed, inputs, saved) of a node, None of a leaf's."},
    {"gradient_edge", gradient_edge, METH_O,
     "(node or None its gradient goes to, output index, which memory) of a tensor."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_graph(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
