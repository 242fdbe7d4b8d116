// What the core asks of the rest of kiln, when it has no function, program or kernel for what it must run.
// Implemented in binding/compiler.cpp and binding/region.cpp by one registered Python function,
// `compile(request,
// ...)`.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "call/op.h"
#include "call/op_list.h"
#include "call/recipe.h"
#include "program/program.h"

namespace kiln {

class Recording;
struct Recipe;
struct Region;
struct RegionEntry;
struct RegionVariant;

// A pointwise function at given dtypes and layout classes: its kernel and what it gives.
struct PointwiseEntry {
    Kernel* kernel = nullptr;
    std::vector<DType> outputs;
};

namespace compiler {

// Sets fn.cls and fn.outputs from what the function's graph is made of.
void classify(const Call& call);

// The kernel for operands whose (coalesced) innermost stride classes are `layouts` (inputs, then outputs, of
// which 3 is a large one's unit stride; numbers have none) over `ndim` dims; `out_dtypes` are given when
// results go to existing arrays.
std::unique_ptr<PointwiseEntry> pointwise(const Call& call, int ndim, std::span<const uint8_t> layouts,
                                          std::span<const DType> out_dtypes);

std::unique_ptr<Program> program(const Call& call, ProgramFor what);

std::unique_ptr<Saves> saves(const Call& call);

// Which derivative: for the needed operands, given the defined gradients of results. `redo`: without reading
// hidden outputs, so that it can itself be differentiated. `factored`: operands of whose gradients products
// are given as their factors. `onto`: the operand whose gradient begins with a sum, or -1.
// `shared`: of a launch on rows, the operands that its calls share, whose gradients are rows as far as they
// can be told apart.
struct Asked {
    BitSet needed, defined;
    bool redo;
    BitSet factored = {};
    int onto = -1;
    std::optional<BitSet> shared = {};
};
Fn* derivative(Fn& forward, std::span<const Operand> operands, const Asked& asked);

// The function as calls of ops, for operands that look like these; remembered.
const Recipe& recipe_for(const Call& call);

// Gives the kernel its code, from disk or generated.
void load(Kernel& kernel);

// Sets fn.identity.
void identify(Fn& fn);

// Raises the sentence for a call whose sizes do not fit.
[[noreturn]] void explain(const Call& call);

// The sentence for a view that may not be written, or may not follow what it views.
std::string view_error(const Tensor& view, const char* what);

// The program of a recorded region, kept on disk by its hash and live set. `stored_region`: from disk, with
// all its kernels' code, or null. `compile_region`: null if it cannot be compiled (logged).
// `compile_region_later`: by another thread, which gives it to the entry, now known as pending.
std::shared_ptr<RegionVariant> stored_region(const Recording& recording, const LiveSet& live);
std::shared_ptr<RegionVariant> compile_region(const Recording& recording, const LiveSet& live);
void compile_region_later(const Recording& recording, const std::shared_ptr<RegionEntry>& entry,
                          const LiveSet& live);

// What follows from a region's runs: after an entry was measured, whether it goes on as a program; after that
// and after one was forgotten to make room, whether the region goes on recording.
void decide(Region& region, RegionEntry& entry);
void forgotten(Region& region, const RegionEntry& entry);
// The same after whole calls were timed, recorded and not.
void judge(Region& region);

// Waits for what is being compiled by another thread.
void settle();

// A line for the logger "kiln.compile".
void log(bool warning, const std::string& text);

// Whether an error is one that another way of running may not have: then it is put into words and gone.
bool forgive(const Error& error, std::string* text);

}  // namespace compiler
}  // namespace kiln
