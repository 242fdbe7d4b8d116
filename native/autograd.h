// Reverse mode: a node per recorded call, and the engine that replays captured derivatives.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dispatch.h"
#include "op.h"
#include "small_vector.h"
#include "tensor.h"

namespace kiln {

class FlatCall;

inline uint64_t bit(size_t i) { return i < 64 ? uint64_t(1) << i : 0; }

// Where a gradient goes: output `index` of `node`, or the .grad of a leaf. Neither: nowhere.
struct Edge {
    NodeRef node;
    MetaRef leaf;
    uint32_t index = 0;
    explicit operator bool() const { return node || leaf; }
};

// A place in the user's program, kept cheaply and turned into text only for an error.
struct SourceLine {
    Opaque code;
    int instruction = 0;
    static SourceLine (*current)();
    static std::string (*text)(const SourceLine&);
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

struct NodeInput {
    Edge edge;
    SavedTensor saved;  // no tensor: a number, or an array of the results' shape whose value is not read
    Number number;
    bool is_number = false;
    bool dimensioned = true;   // not 0-d
    bool like_result = false;  // surely of the results' shape
    DType dtype = DType::float32;
};

// What the engine looks at of a node it only counts comes first: one cache line.
struct alignas(64) Node {
    uint32_t refcount = 0;
    uint32_t outputs = 1;
    uint64_t order = 0;     // later nodes have larger numbers
    uint64_t run = 0;       // the engine's: the run that passes through,
    uint32_t waiting = 0;   // how many gradients are still to come in it,
    bool needed = false;    // and whether it goes on from here
    bool released = false;  // its saved tensors are gone
    Fn* fn = nullptr;
    SmallVector<NodeInput, 3> inputs;
    SmallVector<SavedTensor, 1> saved_outputs;  // as many as outputs, or none
    SmallVector<SavedTensor, 1> hidden;
    std::unique_ptr<std::vector<Packed>> packed;  // null without hooks
    SourceLine line;
    Opaque context;  // of a function of the user's: what is called with the gradients; null for an op
    Hooks hooks;     // on gradients of outputs
    std::vector<std::pair<AutogradMeta*, uint32_t>>
        retains;  // tensors whose .grad keeps an output's gradient
    Node* next_dying = nullptr;
    SmallVector<TensorRef, 1> grads;  // the engine's: of the outputs, as far as they came
};

bool grad_enabled();
bool set_grad_enabled(bool enabled);  // returns what it was
bool needs_gradient(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);
// Runs a flat call and leaves a node for backward if one is needed.
void call_flat(Fn& fn, FlatCall& flat, std::span<const Operand> operands, TensorRef* results);
Results call_with_gradient(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

// Checks that `target` may be written in place by a call with these operands.
void prepare_write(const Fn& fn, const Tensor& target, std::span<const Operand> operands);
// After a write: versions move on, and the line is remembered for the message that may need it.
void wrote(Tensor& target);

Edge edge_of(Tensor& tensor);

// A tensor with sizes but no storage.
TensorRef shape_of(const Tensor& tensor);

// Where a storage was last written in place; null if it was not.
const SourceLine* last_write(const Storage& storage);

// Makes `view` (if it shares x's memory) a view of what x is, or views.
void set_base(Tensor& view, Tensor& x);

// A call of a user's function (autograd.Function): what went in, what came out, what it saved, and what
// knows its derivative. Results in `dirty` are inputs that were written.
struct UserCall {
    Fn* fn;
    Opaque context;
    std::vector<TensorRef> inputs, results, saved, dirty;
};
// Leaves a node for it and gives where each saved tensor is kept: an input, an output or hidden.
using SavedPlace = std::pair<Source::Kind, size_t>;
std::vector<SavedPlace> record_user(UserCall& call);
// A saved tensor with the history it had; raises if it was overwritten or freed.
TensorRef saved_value(Node& node, SavedPlace place);

// The autograd node of a tensor, brought up to date if its base was changed in place.
Node* up_to_date_grad_fn(Tensor& tensor);

struct BackwardOptions {
    bool retain_graph = false;
    bool create_graph = false;
    bool accumulate = true;  // into leaves' .grad; otherwise the gradients of `inputs` are returned
};

// Gradients of `roots` (with the given output gradients; null: ones for a single element).
std::vector<TensorRef> run_backward(std::span<const TensorRef> roots, std::span<const TensorRef> gradients,
                                    std::span<const TensorRef> inputs, const BackwardOptions& options);

// Sets tensor's history to `node`, output `index`.
void set_history(Tensor& tensor, const NodeRef& node, uint32_t index);

// Calls hooks of the interpreter on a gradient, on a tensor to be saved, on what that gave; set by bind.
extern TensorRef (*call_hook)(const Opaque& hook, const TensorRef& gradient);
extern Opaque (*call_pack)(const Opaque& hook, const TensorRef& tensor);
extern TensorRef (*call_unpack)(const Opaque& hook, const Opaque& value);
// Gradients of a user's function: one per input or null, from those of its results.
extern Results (*call_context)(Node& node);

// What this thread's saved tensors go through; null objects: nothing.
struct SavedHooks {
    Opaque pack, unpack;
};
SavedHooks& saved_hooks();

// Registers a hook on the gradient of a tensor, or keeps that gradient in .grad though it is no leaf.
uint64_t add_hook(Tensor& tensor, Opaque function);
void retain_grad(Tensor& tensor);

}  // namespace kiln
