// Pointwise functions, run without a program: operands are broadcast and coalesced here, and one kernel is
// found by function, dtypes and layout classes.
#pragma once

#include <span>

#include "dispatch.h"

namespace kiln {

Results execute_pointwise(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

// The common case: contiguous arrays of one shape (and 0-d arrays, numbers). False if this is not it.
bool execute_flat(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                  Results& results);

// The dtypes of the results of a pointwise function (without running it).
std::span<const DType> pointwise_dtypes(Fn& fn, std::span<const Operand> operands);

}  // namespace kiln
