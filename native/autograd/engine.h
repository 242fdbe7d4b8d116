// Backward passes: the nodes behind some roots, each visited once, the latest first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/node.h"

namespace kiln {

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

// Gradients of `roots`; inputs: leaves and outputs of nodes. A node is of one pass at a time: one that meets
// nodes of another thread's waits for its end.
std::vector<TensorRef> run_backward(std::span<const Root> roots, std::span<const Edge> inputs,
                                    const BackwardOptions& options);

// Why the calls that a launch is of cannot be told apart in its gradients; null: they can. `fn`: what one
// call runs, on operands like `operands`.
const char* tells_rows_apart(Node& launch, Fn& fn, std::span<const Operand> operands);

// Of this thread's innermost pass: its number, 0 if there is none; in anomaly mode the node it visits;
// whether it goes to all leaves; whether its gradients are batches; whether it comes, or came, to what an
// edge leads to; a function to call at its end.
uint64_t current_run();
Node* current_node();
bool passes_to_all_leaves();
bool gradients_are_batched();
bool will_visit(const Edge& edge);
void call_at_end(Opaque callback);

// This thread's number. One that works for another, which waits for it, takes that one's.
uint64_t this_thread();
void work_for(uint64_t thread);
// Whether so many passes are nested on this thread's stack that the next needs another one.
bool nested_too_deeply();

}  // namespace kiln
