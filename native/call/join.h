// Arrays joined along a dim: copied side by side into one result, whatever their number.
#pragma once

#include <span>

#include "call/dispatch.h"

namespace kiln {

// The result's shape; raises the op's sentence unless dtypes, dims and sizes fit.
Dims join_sizes(Fn& fn, std::span<const Operand> operands);

Results execute_join(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

}  // namespace kiln
