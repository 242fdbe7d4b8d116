// Hooks and the rest that backward calls of the interpreter's.
#pragma once

#include <span>

#include "autograd/node.h"
#include "call/dispatch.h"

namespace kiln {

// What the interpreter does; set by the binding.
struct Callbacks {
    void (*at_end)(const Opaque& callback);  // what waited for the end of a pass
    // Hooks: on a gradient (null for none); on all gradients a node gives, which it may change, and gets, or
    // those it gets alone (`got` is null); on a tensor to be saved, and on what that gave.
    TensorRef (*hook)(const Opaque& hook, const TensorRef& gradient);
    void (*node_hook)(const Opaque& hook, std::span<TensorRef> gradients, const std::span<TensorRef>* got);
    Opaque (*pack)(const Opaque& hook, const TensorRef& tensor);
    TensorRef (*unpack)(const Opaque& hook, const Opaque& value);
    // Gradients of a user's function: one per input or null, from those of its results.
    Results (*context)(Node& node);
    // In anomaly mode: a node was made while `parent` (or null) ran; what it gave; it failed.
    void (*new_node)(Node& node, Node* parent);
    void (*check_node)(Node& node, std::span<const TensorRef> gradients);
    void (*node_failed)(Node& node);
    // In a pass with a batch of gradients: a derivative that is not pointwise, and a gradient summed to the
    // shape of what it is the gradient of.
    Results (*batched_derivative)(const Fn& fn, std::span<const Operand> operands);
    TensorRef (*batched_sum)(const TensorRef& gradient, const Tensor& like);
    // Of a launch's rows, where the pass is differentiated again: gradients of rows, null for none, and
    // behind them one of the whole, as one; and one as its rows.
    TensorRef (*stacked)(std::span<const TensorRef> gradients, const Tensor& like);
    Results (*unstacked)(const TensorRef& gradient);
};
inline Callbacks callbacks{};

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

// The hooks of some extras, if there are any, in the order they were registered. A hook of a tensor may put
// another gradient in the place of its output's, one of a node others in the place of all.
bool has_hooks(const Extras* extras);
void call_node_hooks(const Extras* extras, HookKind kind, std::span<TensorRef> gradients,
                     const std::span<TensorRef>* got);
// Those that wait for a leaf's .grad.
void call_leaf_hooks(const AutogradMeta& leaf);

// A tensor's .grad keeps the gradient of what it is now: a write takes it along.
void retain_at(AutogradMeta& meta, const NodeRef& node, uint32_t output);

}  // namespace kiln
