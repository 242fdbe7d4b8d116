// Which nodes a backward pass comes to. Internal to the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "autograd/accumulate.h"
#include "autograd/engine.h"
#include "autograd/rows.h"

namespace kiln {

uint64_t next_pass_number();

// What an outer pass of this thread has noted at a node, while one that a hook or a user's function began
// passes it.
struct Suspended {
    Node* node;
    uint64_t run;
    uint32_t waiting;
    bool needed, kept;
    BitSet from_zero;
    SmallVector<TensorRef, 1> grads;
    std::vector<RowsPart> parts = {};
    std::vector<RowsOfGradient> arrived = {};
};

// Which nodes a pass comes to, and along which of their edges gradients are wanted.
struct Reach {
    std::span<const Root> roots;
    std::span<const Edge> inputs;
    BackwardOptions options;
    uint64_t number = next_pass_number();
    SmallVector<Node*, 16> nodes = {};
    std::vector<Suspended> suspended = {};
    LeafSums leaves = {};
    bool launches = false;  // there are some among the nodes, or what a list ran: parts of sums come in the
                            // order of that
    uint64_t oldest = ~uint64_t(0);  // of the nodes
    bool doubtful = false;  // something saved was overwritten or freed: .grad changes when all is passed
    // Of nodes and leaves, row by row, the outputs it depends on; found when it is asked for.
    std::unordered_map<const void*, std::vector<BitSet>> depended = {};
    enum : uint8_t { unknown, yes, no };
    std::unordered_map<const Node*, std::vector<uint8_t>> leads = {};  // to something asked for, row by row

    void suspend(Node& node);
    void resume();

    void find();

    // Whether what is differentiated depends on it, row by row of launches and output by output of cells:
    // what does not is passed all the same, and nobody is told.
    bool depends_on(const Edge& edge);
    void find_depended();
    // Whether something asked for lies behind it, row by row: what a launch has beside is not told either.
    bool leads_to_asked(const Edge& edge);

    // Counts the edges to every node and leaf that the root reaches; of a node, to be a root counts as one.
    // False if a node is another pass's.
    bool discover(Node* root);

    // A node is needed if something asked for lies behind it. The oldest are looked at first, so that what a
    // node leads to is decided before it.
    void mark_needed();

    bool asks_for(const Node& node) const {
        return std::ranges::any_of(inputs, [&](const Edge& input) { return input.node.get() == &node; });
    }

    // Whether a gradient is to go along an edge.
    bool wants(const Edge& edge) const {
        if (edge.node) return edge.node->needed;
        if (!edge.leaf) return false;
        if (options.accumulate && inputs.empty()) return true;
        return std::any_of(inputs.begin(), inputs.end(), [&](const Edge& x) { return x.leaf == edge.leaf; });
    }

    bool leads_on(const Node& node) const {
        return std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](const NodeInput& input) { return wants(input.edge); });
    }
};

}  // namespace kiln
