// Ops and functions as plain data, and what a call of one is made of.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bit_set.h"
#include "base/check.h"
#include "call/look.h"

namespace kiln {

// What the core knows of an op. The mathematics lives in the table (`record`, the interpreter's object).
enum class OpKind : uint8_t { pointwise, view, general };
enum class ViewKind : uint8_t { none, reshape, permute, expand, slice, as_strided, select, unbind, split };
enum class JoinKind : uint8_t { none, concat, stack };  // along a dim they have, or a new one

struct Op {
    std::string name;
    OpKind kind = OpKind::general;
    ViewKind view = ViewKind::none;
    JoinKind join = JoinKind::none;
    bool differentiable = true;
    bool divides = false;    // operand 0 by operand 1: of integers the latter may not be 0
    bool at_once = false;    // runs on its line where others are recorded
    void* record = nullptr;  // borrowed: the table keeps it
};

// How the core runs a function; learnt at its first call from what its graph is made of.
enum class FnClass : uint8_t { unknown, pointwise, program, view, join, replay };

// Where a derivative's input comes from.
struct Source {
    enum Kind : uint8_t { grad, input, output, hidden, shape, number, sum } kind;
    uint32_t index;
};

// What a derivative gives: the gradient of an operand, or a factor of a product that is a part of it: left.T
// @ right, with a row for each that the operand was multiplied with. Of a launch's shared operand, its
// gradient in each call: rows.
struct Target {
    enum Role : uint8_t { gradient, left, right, rows } role;
    uint32_t operand;
    int32_t pass;  // nothing is computed: it is this operand of the derivative, a factor perhaps in another
                   // shape; -1: it is computed
};

// A product of matrices that is a part of an operand's gradient: how many rows it has is a number times dims
// of the forward's operands.
struct Product {
    uint32_t operand;
    int64_t count;
    std::vector<std::pair<uint32_t, uint8_t>> rows;  // (operand, dim)
};

struct Fn;
struct PointwiseEntry;

// Which operands, outputs and hidden outputs a backward reads.
struct Wanted {
    BitSet inputs, outputs, hidden;
};

// What the backward of a function reads of its forward, per array operand.
struct Saves {
    uint32_t hidden = 0;          // how many extra outputs the forward gives
    std::vector<BitSet> inputs;   // per operand: which operands its gradient reads,
    std::vector<BitSet> outputs;  // which outputs,
    std::vector<BitSet> hiddens;  // and which hidden ones
    BitSet differentiable;        // the operands that have a gradient at all
};

inline constexpr int8_t no_dim = -128, flat_array = 127;

// What a program gives: the results; what a derivative reads as well; the result where the first operand
// lies.
enum class ProgramFor : uint8_t { results, hidden, update };

using Identity = std::array<uint64_t, 2>;  // 128 bits of a cryptographic hash

// A function of arrays and numbers: an op with its structure, or the derivative of one.
struct Fn {
    uint32_t id = 0;
    Identity identity{};  // what it is, the same in every process; all 0: not known yet
    FnClass cls = FnClass::unknown;
    uint32_t outputs = 1;
    const Op* op = nullptr;  // of a forward
    std::string name;
    int8_t index_input = -1;      // operand whose values are positions, -1: none
    int8_t indexed_input = 0;     // operand they point into
    int8_t index_dim = 0;         // along this dim
    int8_t index_ignore = -1;     // operand whose value among the positions is skipped, -1: none
    bool index_negative = false;  // positions may count from the end
    bool updates = false;         // it writes at places of its first operand: in place without a copy
    int8_t gives_along = no_dim;  // the results are positions along this dim, or in the flat array
    ErrorKind index_error_kind = ErrorKind::index;
    std::string index_error;        // with {index}, {dim} and {size}
    Dims dims;                      // of a permute its dims; of other views and joins their dim
    Opaque structure;               // the interpreter's tuple
    Fn* twin = nullptr;             // of a structure that is equal, with parts of another type: 1, 1.0, True
    Opaque handle;                  // the interpreter's object for a derivative
    std::vector<Source> sources;    // of a derivative
    std::vector<Target> targets;    // of a derivative: what result k is
    std::vector<Product> products;  // parts of a derivative's results
    BitSet scattered;               // operands whose gradients are arrays scattered into zeros
    std::optional<BitSet> hidden_rows;  // of a launch's derivative: hidden outputs with a row for each call

    // Of a pointwise function: what was found for the last call of a kind, and how that call looked. Each is
    // written when all of it is known: other threads may call the function while this one is in a kernel or
    // asks the compiler.
    struct Last {
        struct {
            Look look;
            PointwiseEntry* entry = nullptr;
        } flat;  // of a flat call (pointwise.h)
        struct {
            Look look;
            uint64_t needed = 0;  // the operands that want gradients, of the few it has: a bit each
            const Saves* saves = nullptr;
            Wanted wanted;  // what backward reads for these
        } saves;            // of a flat call that was recorded for backward
        struct {
            Look look;
            Fn* fn = nullptr;
        } derivative;
    };
    Last last;

    // What was learnt of it under other default dtypes: a function's graph may depend on that one.
    struct Learnt {
        DType default_dtype = DType::float32;
        uint32_t id = 0;
        Identity identity{};
        Opaque handle;
    };
    std::vector<Learnt> others;
};

Fn* new_fn(const Op* op, std::string name);

// Whether it gives several views, be it of one part.
inline bool gives_several(const Fn& fn) {
    return fn.op && (fn.op->view == ViewKind::unbind || fn.op->view == ViewKind::split);
}

// Sets the default dtype; functions go on with what was learnt of them under it, or start anew.
void change_default_dtype(DType dtype);

struct Call {
    Fn* fn;
    std::span<const Operand> operands;
};

}  // namespace kiln
