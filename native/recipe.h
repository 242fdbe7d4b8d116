// Functions as lists of calls of ops: how views are differentiated, and how `create_graph` runs derivatives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dispatch.h"
#include "program.h"

namespace kiln {

// One call of a recipe: op(args) where an argument is an earlier value or a number of this call.
struct RecipeStep {
    Fn* fn;
    std::vector<int32_t> args;     // value index, or -1 - k for the k-th number expression
    std::vector<int32_t> numbers;  // expression slots (sizes); bits of a double where `reals` says so
    std::vector<uint8_t> number_kinds;
};

struct Recipe {
    uint32_t inputs = 0;       // values 0..inputs-1
    uint32_t environment = 0;  // slots filled from the inputs
    std::vector<SizeExpr> exprs;
    std::vector<RecipeStep> steps;
    std::vector<int32_t> outputs;  // value indices; -1: none
};

// Runs a recipe through `call`.
Results replay(const Recipe& recipe, std::span<const Operand> operands);

}  // namespace kiln
