// Values that an op refuses: positions out of range, integers divided by 0. They are looked for on the line
// of the call, so that its error is raised there, and before anything is recorded or written.
#pragma once

#include <span>

#include "call/op.h"

namespace kiln {

// Whether a call of the function has such values to look for.
inline bool refuses_values(const Fn& fn) { return fn.index_input >= 0 || (fn.op && fn.op->divides); }

// Raises if the operands have some; waits for what computes them.
void check_values(const Fn& fn, std::span<const Operand> operands);

// Of an op that gives positions (argmax): they are known to be in range until they are written.
void note_positions(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results);

}  // namespace kiln
