// A call of a general function: its program is found by how the operands look, its sizes are evaluated, and
// it runs into new tensors.
#pragma once

#include <span>

#include "call/dispatch.h"
#include "program/program.h"

namespace kiln {

// The program of a general function for operands that look like these.
const Program& program_for(Fn& fn, std::span<const Operand> operands, ProgramFor what);
// The slots it runs with; raises the sentence for sizes that do not fit.
Dims slots_of(const Program& program, Fn& fn, std::span<const Operand> operands);

// Runs it at once. With `out`, results are copied there, or made there where that is safe.
Results execute_program(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                        bool hidden);

// Raises unless the results of a program can be written into `out`.
void expect_castable_results(const Fn& fn, const Program& program, std::span<const TensorRef> out);

}  // namespace kiln
