// What the core asks of the rest of kiln, when it has no function, program or kernel for what it must run.
// Implemented in bind_compiler.cpp by one registered Python function, `compile(request, ...)`.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "op.h"
#include "program.h"

namespace kiln {

class Recording;

// A pointwise function at given dtypes and layout classes: its kernel and what it gives.
struct PointwiseEntry {
    KernelPtr kernel;
    std::vector<DType> outputs;
    int64_t grain = 4096;
};

namespace compiler {

// Sets fn.cls and fn.outputs from what the function's graph is made of.
void classify(const Call& call);

// The kernel for operands whose (coalesced) innermost stride classes are `layouts` (inputs, then outputs;
// numbers have none) over `ndim` dims; `out_dtypes` are given when results go to existing arrays.
std::unique_ptr<PointwiseEntry> pointwise(const Call& call, int ndim, std::span<const uint8_t> layouts,
                                          std::span<const DType> out_dtypes);

std::unique_ptr<Program> program(const Call& call, bool with_hidden);

std::unique_ptr<Saves> saves(const Call& call);

// The derivative of `forward` for the needed operands, given the defined output gradients. `redo`: without
// reading hidden outputs, so that it can itself be differentiated.
Fn* derivative(Fn& forward, std::span<const Operand> operands, uint64_t needed, uint64_t defined, bool redo);

// The function as calls of ops, for operands that look like these; remembered.
const Recipe* recipe_for(const Call& call);
std::unique_ptr<Recipe> recipe(const Call& call);

// Machine code of a kernel.
std::vector<uint8_t> kernel_code(Kernel& kernel);

// Raises the sentence for a call whose sizes do not fit.
[[noreturn]] void explain(const Call& call);

// The program of a recorded region.
// Null if it cannot be compiled (logged). `outputs`: the storage ordinal of each of its outputs.
std::unique_ptr<Program> region(const Recording& recording, const std::vector<bool>& live,
                                std::vector<int32_t>& outputs);

// A line for the logger "kiln.compile".
void log(bool warning, const std::string& text);

// Whether an error is one that another way of running may not have: then it is put into words and gone.
bool forgive(const Error& error, std::string* text);

}  // namespace compiler
}  // namespace kiln
