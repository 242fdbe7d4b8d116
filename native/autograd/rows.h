// Nodes of launches on rows (batch/). What a launch gives has one node more, which hands its rows out: each
// row is an output of it, and behind them the whole is one. What a launch reads of rows from several places
// has a node that gathers: its gradient's rows go back to where they came from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/node.h"

namespace kiln {

struct Rows {
    // Of a gathered row: the node's input that it is, or is a row of.
    struct Place {
        uint32_t input;
        uint32_t row;
        bool of_launch;  // a row of what a launch gave: the input's edge leads to a node that hands out
    };
    bool hands_out = false;
    int64_t count = 0;
    TensorRef like;             // of a node that hands out: the whole's sizes
    std::vector<Place> places;  // of one that gathers, a row each
    std::vector<uint64_t>
        orders;  // of a launch's rows: their calls' places among all calls, in the program's order
    // Of the backward pass under way: gradients of rows are written into one buffer, the output behind them.
    bool owned = false;         // nobody else has that buffer
    std::vector<bool> written;  // rows of it
};

inline bool hands_out(const Node& node) { return node.rows && node.rows->hands_out; }

// The node that hands out what a launch gave, whose history becomes that of its last output.
NodeRef make_handed(Tensor& whole, std::vector<uint64_t> orders, const SourceLine& line);
// The node of rows gathered into `whole`.
NodeRef make_gathered(Tensor& whole, std::span<const Edge> edges, std::vector<Rows::Place> places);

// Adds a gradient of output `index` to those of a node that hands out.
void add_to_rows(Node& node, uint32_t index, const TensorRef& gradient);
// Adds rows of `gradient` (row i's: `from[i]`) to the rows `to`.
void add_rows(Node& node, const Tensor& gradient, std::span<const uint32_t> from,
              std::span<const uint32_t> to);
// The gradient of the whole, once all have come; null: none came.
TensorRef take_rows(Node& node);
// The same as one gradient for each row, for hooks; and back.
void spread_rows(Node& node);
void collect_rows(Node& node);

}  // namespace kiln
