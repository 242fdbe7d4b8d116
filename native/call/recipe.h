// Functions as lists of calls of ops: how views are differentiated, and how `create_graph` runs derivatives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "call/dispatch.h"
#include "call/op_list.h"
#include "program/program.h"

namespace kiln {

struct Recipe {
    uint32_t inputs = 0;       // values 0..inputs-1
    uint32_t environment = 0;  // slots filled from the inputs
    std::vector<SizeExpr> exprs;
    OpList list;
    std::vector<int32_t> outputs;  // value indices; -1: none
};

// Runs a recipe through `call`.
Results replay(const Recipe& recipe, std::span<const Operand> operands);

}  // namespace kiln
