// What backward calls on its way, and the runs of it under way.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "autograd.h"

namespace kiln {

// A run of the engine under way. Nodes are of one pass at a time.
struct Pass {
    uint64_t run;
    uint64_t thread;
    std::span<const Edge> inputs;
    BackwardOptions options;
    const void* engine;
    bool (*has_leaf)(const void* engine, const AutogradMeta* leaf);  // among those with hooks that it reaches
    Node* node = nullptr;           // in anomaly mode: the one that is passed
    std::vector<Opaque> callbacks;  // of the interpreter, for when it is over
};

std::vector<Pass>& passes();
Pass* own_pass();  // this thread's innermost, or null

// This thread's number. One that works for another, which waits for it, takes that one's.
uint64_t this_thread();
void work_for(uint64_t thread);
// Whether so many passes are nested on this thread's stack that the next needs another one.
bool nested_too_deeply();

// Whether a gradient is to go along an edge of a run with these inputs.
inline bool is_wanted(const Edge& edge, std::span<const Edge> inputs, const BackwardOptions& options) {
    if (edge.node) return edge.node->needed;
    if (!edge.leaf) return false;
    if (options.accumulate && inputs.empty()) return true;
    return std::any_of(inputs.begin(), inputs.end(), [&](const Edge& x) { return x.leaf == edge.leaf; });
}

// The hooks of some extras, if there are any, in the order they were registered. A hook of a tensor may put
// another gradient in the place of its output's, one of a node others in the place of all.
bool has_hooks(const Extras* extras);
void call_tensor_hooks(const Extras* extras, std::span<TensorRef> gradients);
void call_node_hooks(const Extras* extras, HookKind kind, std::span<TensorRef> gradients,
                     const std::span<TensorRef>* got);
// Those that wait for a leaf's .grad.
void call_leaf_hooks(const AutogradMeta& leaf);

// A gradient in another dtype.
TensorRef converted(const TensorRef& gradient, DType dtype);

// A tensor's .grad keeps the gradient of what it is now: a write takes it along.
void retain_at(AutogradMeta& meta, const NodeRef& node, uint32_t output);

}  // namespace kiln
