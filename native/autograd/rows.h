// Nodes of launches on rows (batch/). The launch itself is a node with a row for each call. What it gives has
// one node more, which hands its rows out: each row is an output of it, and behind them the whole is one.
// What a launch reads of rows from several places has a node that gathers: its gradient's rows go back to
// where they came from.
//
// Backward passes a launch once for the rows that got a gradient; rows that got none take no part. Parts of
// one sum come in the order of launches, and are added in that of the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/accumulate.h"
#include "autograd/node.h"

namespace kiln {

using Calls = std::vector<uint64_t>;  // places among all calls, in the program's order

// Rows of a launch's gradient: `values` has one at `from[i]` for row `rows[i]`. Empty lists: all, in order.
struct RowsOfGradient {
    TensorRef values;
    std::vector<uint32_t> rows, from;
    Part part = Part::whole;
    uint64_t call = 0;  // whose it is, where it is not the launch's
    size_t count() const { return rows.empty() ? size_t(values->sizes[0]) : rows.size(); }
    uint32_t row(size_t i) const { return rows.empty() ? uint32_t(i) : rows[i]; }
    uint32_t place(size_t i) const { return from.empty() ? uint32_t(i) : from[i]; }
    bool whole() const { return rows.empty() && from.empty(); }
};

// The same as a part of what a launch gave: `calls` are those of the launch that read it, by its own rows
// `of` (empty: the rows it goes to). Without `calls`: of one row, of the call `call`.
struct RowsPart {
    RowsOfGradient given;
    std::shared_ptr<const Calls> calls;
    std::vector<uint32_t> of;
    uint64_t call = 0;
    uint32_t argument = 0;
    bool single = false;  // `values` is the row
    uint64_t call_of(size_t i) const { return calls ? (*calls)[of.empty() ? given.row(i) : of[i]] : call; }
};

// Memory as it was at a version.
struct SavedMemory {
    StorageRef storage;
    uint32_t version = 0;
};
// Of what a launch gave, the rows that somebody holds: memory that can be written.
using HeldRows = std::vector<SavedMemory>;

// What a launch saved in one piece, row by row: it is refused if the program wrote over what the row was
// then.
struct SavedRows {
    bool of_result = false;
    uint32_t index = 0;                                 // of the input or output
    std::vector<std::shared_ptr<const HeldRows>> held;  // of what launches gave,
    std::vector<SavedMemory> memory;                    // or elsewhere
    std::vector<std::pair<uint32_t, uint32_t>>
        rows;                                    // which of `held` and its row; or behind these, of `memory`
    const SavedMemory* at(uint32_t row) const {  // null: nobody holds it
        const auto [which, place] = rows[row];
        if (which >= held.size()) return &memory[place];
        return place < held[which]->size() ? &(*held[which])[place] : nullptr;
    }
};

struct Rows {
    enum Kind : uint8_t { launch, hands_out, gathers } kind;
    // Of a gathered row: the node's input that it is, or is a row of.
    struct Place {
        uint32_t input;
        uint32_t row;
        bool of_launch;  // a row of what a launch gave: the input's edge leads to a node that hands out
    };
    int64_t count = 0;
    std::shared_ptr<const Calls>
        calls;                     // of the launch's rows; of rows gathered, those of the one that reads
    TensorRef like;                // of a node that hands out: the whole's sizes
    std::vector<Place> places;     // of one that gathers, a row each,
    uint32_t argument = 0;         // and which operand of the launch they are
    BitSet inputs;                 // of a launch: inputs that have a row for each call
    bool counted = false;          // its input 1 is how many rows there are
    std::vector<bool> released;    // rows that a backward has passed, which frees what was saved for them
    std::vector<SavedRows> saved;  // of a launch: where what it saved was read, or given
    std::vector<Node*> handed;     // of a launch: what hands out each output, as long as that lives
    NodeRef source;                // of what hands out: the launch, and which of its outputs
    uint32_t output = 0;
    // Whether backward may refuse some: they were passed, or the program wrote over what was saved for them.
    bool may_refuse() const;
    ~Rows() {
        if (source && source->rows) source->rows->handed[output] = nullptr;
    }
    // Of the backward pass under way:
    std::vector<RowsPart> parts;          // of what hands out, what its rows got
    std::vector<RowsOfGradient> arrived;  // of a launch, each output's gradient; of one that gathers, its own
};

inline bool hands_out(const Node& node) { return node.rows && node.rows->kind == Rows::hands_out; }

// Makes a launch of a node: `inputs` of it have a row for each call.
void make_launch(Node& node, std::shared_ptr<const Calls> calls, BitSet inputs, bool counted);
// The node that hands out what a launch gave, whose history becomes that of its last output.
NodeRef make_handed(Tensor& whole, std::shared_ptr<const Calls> calls, const SourceLine& line);
// The node of rows gathered into `whole`, for operand `argument` of these calls.
NodeRef make_gathered(Tensor& whole, std::span<const Edge> edges, std::vector<Rows::Place> places,
                      std::shared_ptr<const Calls> calls, uint32_t argument);

TensorRef row_of(const Tensor& whole, int64_t row);
// In another shape, with its history.
TensorRef reshaped(const TensorRef& x, const Dims& sizes);
// A copy of some rows.
TensorRef rows_at(const Tensor& whole, std::span<const uint32_t> rows);
// Adds rows of float32 and float64 that lie in order.
bool adds_plainly(DType dtype);
void add_plainly(DType dtype, std::byte* sum, const std::byte* part, int64_t count);

// The sums of what a node's rows got, of those that got anything; no values: none did. `by_ops`: by calls of
// ops, as they are differentiated again or recorded.
RowsOfGradient sum_of_rows(Node& node, bool by_ops);

}  // namespace kiln
