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
    std::unique_ptr<Extras> extras;
    Node* next_dying = nullptr;
    SmallVector<TensorRef, 1> grads;  // the engine's: of the outputs, as far as they came
};

bool grad_enabled();
bool set_grad_enabled(bool enabled);  // returns what it was; in inference mode it stays off
// What is made in inference mode never takes part in backward, and its writes are not counted.
struct Modes {
    bool grad = true, inference = false;
};
Modes modes();
void set_modes(Modes modes);
bool needs_gradient(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);
// Runs a flat call and leaves a node for backward if one is needed.
void call_flat(Fn& fn, FlatCall& flat, std::span<const Operand> operands, TensorRef* results);
Results call_with_gradient(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

// Checks that `target` may be written in place by a call with these operands.
void prepare_write(const Fn& fn, const Tensor& target, std::span<const Operand> operands);
// The same of gradients, where they are recorded.
void check_in_place(const std::string& name, const Tensor& target);
// After a write: versions move on, and the line is remembered for the message that may need it.
void wrote(Tensor& target);

Edge edge_of(Tensor& tensor);

// A tensor with sizes but no storage.
TensorRef shape_of(const Tensor& tensor);

// Where a storage was last written in place; null if it was not.
const SourceLine* last_write(const Storage& storage);

// Makes `view` (if it shares x's memory) a view of what x is, or views.
void set_base(Tensor& view, Tensor& x);
// Whether gradients are recorded of what is made of it: a view takes part if what it views does.
bool takes_part(const Tensor& tensor);
// What becomes of x when it is to look where `view` does from now on: a tensor with x's .grad and view's
// history. Other views of x stay views of the same memory. `name`: the operation, for an error.
TensorRef become(Tensor& x, const Tensor& view, const char* name);

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
    bool batched = false;    // a batch of gradients of each root: every gradient has one dim more, in front
};

// Where backward starts, and with what gradient.
struct Root {
    Edge edge;
    TensorRef gradient;
};
// A tensor's, number i of those given; null: ones for a single element.
Root root_of(Tensor& tensor, TensorRef gradient, size_t i, bool batched);

// Gradients of `roots`; inputs: leaves and outputs of nodes.
std::vector<TensorRef> run_backward(std::span<const Root> roots, std::span<const Edge> inputs,
                                    const BackwardOptions& options);
// The number of this thread's innermost run, 0 if there is none; whether it comes, or came, to what an edge
// leads to.
Node* current_node();
uint64_t current_run();
bool will_visit(const Edge& edge);

// Sets tensor's history to `node`, output `index`.
void set_history(Tensor& tensor, const NodeRef& node, uint32_t index);

// Calls what waited for the end of a pass; hooks of the interpreter on a gradient (null for none), on a
// tensor to be saved, on what that gave; set by bind.
extern void (*call_back)(const Opaque& callback);
extern TensorRef (*call_hook)(const Opaque& hook, const TensorRef& gradient);
// On all gradients a node gives, which it may change, and gets; or those it gets alone (`got` is null).
extern void (*call_node_hook)(const Opaque& hook, std::span<TensorRef> gradients,
                              const std::span<TensorRef>* got);
// In anomaly mode: a node was made while `parent` (or null) ran; what it gave; it failed.
extern void (*note_node)(Node& node, Node* parent);
extern void (*check_node)(Node& node, std::span<const TensorRef> gradients);
extern void (*node_failed)(Node& node);
extern Opaque (*call_pack)(const Opaque& hook, const TensorRef& tensor);
extern TensorRef (*call_unpack)(const Opaque& hook, const Opaque& value);
// Gradients of a user's function: one per input or null, from those of its results.
extern Results (*call_context)(Node& node);
// What a pass with a batch of gradients asks of the interpreter: a derivative that is not pointwise, and each
// gradient summed to the shape of what it is the gradient of.
struct BatchedCalls {
    Results (*derivative)(const Fn& fn, std::span<const Operand> operands) = nullptr;
    TensorRef (*sum_to)(const TensorRef& gradient, const Tensor& like) = nullptr;
};
extern BatchedCalls batched_calls;

// What this thread's saved tensors go through; null objects: nothing.
struct SavedHooks {
    Opaque pack, unpack;
    Opaque refusal;  // why hooks may not be set now; null: they may
};
SavedHooks& saved_hooks();

// Registers a hook on the gradient of a tensor (or a leaf's .grad), or keeps that gradient in .grad though it
// is no leaf.
uint64_t add_hook(Tensor& tensor, HookKind kind, Opaque function);
void retain_grad(Tensor& tensor);

}  // namespace kiln
