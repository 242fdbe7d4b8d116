// What a node's backward runs: its derivative, found by how the forward's operands looked, and what that
// reads.
#pragma once

#include "autograd/node.h"
#include "call/compiler.h"
#include "call/dispatch.h"

namespace kiln {

using Kept = SmallVector<TensorRef, 6>;

Fn& derivative_fn(const Node& node, const compiler::Asked& asked);

// Its operands in the order its sources say; `keep` holds those that are not the node's own. `sum`: what the
// gradient it was asked for begins with.
Operands derivative_operands(Node& node, const Fn& fn, Kept& keep, bool create_graph,
                             const TensorRef& sum = nullptr);

// Raises if a backward has freed what the node saved.
void check_not_released(const Node& node);

}  // namespace kiln
