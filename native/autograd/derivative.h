// What a node's backward runs: its derivative, found by how the forward's operands looked, and what that
// reads.
#pragma once

#include "autograd/node.h"
#include "call/compiler.h"
#include "call/dispatch.h"

namespace kiln {

using Kept = SmallVector<TensorRef, 6>;

// Which rows of a launch are differentiated: of what has rows, these are taken. Without rows: all.
struct TakenRows {
    std::span<const uint32_t> rows;
    BitSet hidden = {};  // hidden outputs that have rows
};

Fn& derivative_fn(const Node& node, const compiler::Asked& asked);

// Its operands in the order its sources say; `keep` holds those that are not the node's own. `sum`: what the
// gradient it was asked for begins with.
Operands derivative_operands(Node& node, const Fn& fn, Kept& keep, bool create_graph,
                             const TensorRef& sum = nullptr, const TakenRows& taken = {});

// Raises if a tensor was overwritten since a node saved it. `version`: the one it was saved at.
void check_version(const Node& node, const Storage& storage, uint32_t version, const Tensor& saved,
                   const char* role, size_t index);

[[noreturn]] void raise_released(const Node& node);
// Raises if a backward has freed what the node saved.
void check_not_released(const Node& node);

}  // namespace kiln
