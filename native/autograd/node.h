// Nodes of the graph that backward passes through: one for each call that was recorded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "autograd/source_line.h"
#include "base/bit_set.h"
#include "base/small_vector.h"
#include "call/op.h"
#include "call/tensor.h"

namespace kiln {

// Where a gradient goes: output `index` of `node`, or the .grad of a leaf. Neither: nowhere.
struct Edge {
    NodeRef node;
    MetaRef leaf;
    uint32_t index = 0;
    explicit operator bool() const { return node || leaf; }
};

struct SavedTensor {
    TensorRef tensor;      // null: not needed; without storage: only its sizes are
    uint32_t version = 0;  // of its storage when it was saved
};

// A saved tensor that hooks packed; in its place the node has a tensor with sizes only.
struct Packed {
    TensorRef place;
    Opaque value, unpack;
};

// What few nodes and leaves have: hooks, and what the interpreter knows of them.
struct Extras {
    Hooks hooks;
    std::vector<std::pair<AutogradMeta*, uint32_t>>
        retains;             // tensors whose .grad keeps an output's gradient
    Opaque metadata;         // a dict
    void* object = nullptr;  // the interpreter's for the node or leaf, borrowed
};

template <class Owner>
Extras& ensure_extras(Owner& owner) {
    if (!owner.extras) owner.extras = std::make_unique<Extras>();
    return *owner.extras;
}

struct NodeInput {
    Edge edge;
    SavedTensor saved;  // no tensor: a number, or an array of the results' shape whose value is not read
    Number number;
    bool is_number = false;
    bool dimensioned = true;   // not 0-d
    bool like_result = false;  // surely of the results' shape
    DType dtype = DType::float32;
};

struct Rows;  // of a launch's nodes (rows.h)
struct DropRows {
    void operator()(Rows* rows) const;
};

// What the engine looks at of a node it only counts comes first: one cache line.
struct alignas(64) Node {
    uint32_t refcount = 0;
    uint32_t outputs = 1;
    uint64_t order = 0;     // later nodes have larger numbers
    uint64_t call = 0;      // its call's place among all calls, where that is not its order; else 0
    uint64_t run = 0;       // the engine's: the run that passes through,
    uint32_t waiting = 0;   // how many gradients are still to come in it,
    bool needed = false;    // and whether it goes on from here
    bool released = false;  // its saved tensors are gone
    bool kept = false;      // the engine's: what is kept of parts is to be added to `grads`
    Fn* fn = nullptr;
    SmallVector<NodeInput, 3> inputs;
    SmallVector<SavedTensor, 1> saved_outputs;  // as many as outputs, or none
    SmallVector<SavedTensor, 1> hidden;
    std::unique_ptr<std::vector<Packed>> packed;  // null without hooks
    SourceLine line;
    Opaque context;  // of a function of the user's: what is called with the gradients; null for an op
    std::unique_ptr<Extras> extras;
    std::unique_ptr<Rows, DropRows> rows;
    Node* next_dying = nullptr;
    SmallVector<TensorRef, 1> grads;  // the engine's: of the outputs, as far as they came,
    BitSet from_zero;                 // and which of these sums began as zeros
};

// A node for a call of `fn`, made on this line; its place in the order is the caller's to give.
NodeRef new_node(Fn& fn);

// Sets tensor's history to `node`, output `index`.
void set_history(Tensor& tensor, const NodeRef& node, uint32_t index);
// Where its parts of sums belong.
inline uint64_t call_of(const Node& node) { return node.call ? node.call : node.order; }
// Where a tensor's gradient goes.
Edge edge_of(Tensor& tensor);

// A tensor with sizes but no storage.
TensorRef shape_of(const Tensor& tensor);
SavedTensor save(Tensor& tensor);
// Where a node keeps something: an input, an output or hidden.
using SavedPlace = std::pair<Source::Kind, size_t>;
// A saved tensor with the history it had; raises if it was overwritten or freed.
TensorRef saved_value(Node& node, SavedPlace place);
// Gives what it saved there to hooks, which keep it in their way; raises if that was done before.
void pack_at(Node& node, SavedPlace place, const Opaque& pack, const Opaque& unpack);

}  // namespace kiln
