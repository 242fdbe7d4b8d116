// Programs: kernels, a buffer plan and size expressions, run in one native call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/loader.h"
#include "call/op.h"
#include "call/tensor.h"

namespace kiln {

// A kernel whose code may not be here yet.
struct Kernel {
    std::string key;  // 32 bytes: hash of its pattern, and of what makes code of patterns on this machine
    std::unique_ptr<KernelObject> object;
    KernelFunction function = nullptr;  // null until first needed
};

// The one kernel of a key; it stays.
Kernel& kernel_of(const std::string& key);
// The kernel's code, generated now if it has to be.
KernelFunction code_of(Kernel& kernel);
void give_code(Kernel& kernel, std::span<const uint8_t> object);

// Memory that is each thread's own in a launch: thread t's begins at start + t * bytes, and is
// pointers[place].
struct Scratch {
    std::byte* start;
    size_t bytes;
    int threads;
    size_t place;
};

// Runs units [0, units) of a kernel on the pool; the profile counts it under `function`, for whom it runs.
void launch(Kernel& kernel, const std::string& function, void* const* pointers, const int64_t* args,
            int64_t units, int64_t grain);

struct Buffer {
    enum Kind : uint8_t { input, output, temp } kind;
    uint32_t index;    // of the input or output
    int32_t elements;  // slot: how many elements an output or temp holds
    uint32_t itemsize;
};

struct Pointer {
    uint32_t buffer;
    int32_t offset;  // slot: elements from the buffer's start; -1: none
    uint32_t itemsize;
};

// How a launch may be cut where threads would be idle (kiln/codegen/gemm/split_k.py): slots.
struct Split {
    int32_t segments = -1;  // whose sums are added; -1: none
    int32_t rows = 0;       // of a segment's sums
    int32_t words = 0;      // of 64 bits, that a segment's sums take
    int32_t grain = 0;      // units of a segment that are a thread's worth
};

struct Step {
    static constexpr int32_t free = -1, control = -2;  // in the place of a kernel
    int32_t kernel = free;
    uint32_t buffer = 0;   // of a free; of a control its number
    std::string label;     // the ops it computes
    int32_t units = 0;     // slot
    int32_t grain = 0;     // slot
    int32_t scratch = -1;  // slot: 64-bit words of each thread's own, behind one more pointer; -1: none
    Split split;           // with one: one more pointer, to what segments sum to, and the last two args
    std::vector<Pointer> pointers;
    std::vector<int32_t> args;   // slots
    mutable double seconds = 0;  // of its shortest launch that was timed; 0: none was
};

struct Program;

// Control flow: a call of whole programs, whose environment is made of slots of the one that calls. Their
// inputs are arrays, each contiguous:
//
//   cond        flag, operands    program 0 of the operands where the flag holds, else program 1
//   while_loop  state, captured   state = program 1 while program 0
//   scan        state, each, captured
//                               state, parts = program 0 of state, a part of `each`, captured, step by
//                                 step; behind the results come the states before each step
//   counted     state, captured, rest
//                                 program 2, of all of them, whose environment ends in how many steps the
//                                 while_loop of programs 0 and 1 has
struct Control {
    enum Kind : uint8_t { cond, while_loop, scan, counted } kind = cond;
    uint32_t state = 0, each = 0, captured = 0;  // how many inputs of each sort there are
    int32_t length = 0;                          // slot: steps of a scan
    bool reverse = false;                        // from the last part to the first
    std::vector<int32_t> sizes;                  // slots
    std::vector<int32_t> strides;                // slots: elements of a part, of `each`, then of the results'
    std::vector<Pointer> inputs, outputs;        // an output without itemsize: nobody reads it
    std::vector<std::shared_ptr<const Program>> programs;
};

struct Output {
    uint32_t buffer;
    DType dtype;
    std::vector<int32_t> sizes;  // slots
};

// Size expressions: slot i holds an environment value or the result of one of these.
struct SizeExpr {
    enum Kind : uint8_t { constant, add, multiply, divide } kind;
    int64_t a, b;  // slots, or the constant in a
};

struct Check {
    int32_t a, b;  // slots that must be equal
};

// Where temps lie in the one block a run allocates, for the sizes it last ran at.
struct TempPlan {
    std::vector<int64_t> sizes;   // in elements, per buffer
    std::vector<size_t> offsets;  // in bytes, per buffer
    size_t bytes = 0;
};

// Slots 0..environment-1 are filled by the caller, then one per expression.
struct Program {
    std::string name;  // of the op; of what was recorded none: each kernel is known by its ops
    uint32_t environment = 0;
    std::vector<SizeExpr> exprs;
    std::vector<Check> checks;
    std::vector<Buffer> buffers;
    std::vector<Step> steps;
    std::vector<Output> outputs;
    std::vector<Kernel*> kernels;  // those of the programs it calls among them
    std::vector<Control> controls;
    mutable TempPlan temps;
    mutable uint32_t timed = 0;  // first runs of what was recorded, whose steps were timed

    uint32_t slots() const { return environment + uint32_t(exprs.size()); }
};

// Fills the expression slots. False if a check fails.
bool evaluate(const Program& program, int64_t* slots);
void evaluate(std::span<const SizeExpr> exprs, uint32_t environment, int64_t* slots);

// The sizes of output k.
Dims output_sizes(const Program& program, size_t k, const int64_t* slots);

// What a program reads: the address of an input's element 0, and the storage it lies in. Null: only its sizes
// count.
struct Input {
    void* data = nullptr;
    Storage* storage = nullptr;
};

// Runs the launches, without the interpreter lock if they take long (Ctrl-C may then end it between two of
// them); memory for temps is there before the first. `outputs[j]`: storage of output j, memory for it already
// there.
void run(const Program& program, const int64_t* slots, std::span<const Input> inputs,
         std::span<const StorageRef> outputs);

// Appends an operand's sizes (and strides if it is not contiguous), or the bits of a number, to an
// environment.
void append_environment(const Operand& operand, Dims& environment);

// The number of this thread's call, while Python watches calls, and of that whose derivative it is.
struct CallNumbers {
    uint32_t call = 0, forward = 0;
};
inline constinit thread_local CallNumbers call_numbers;

// Counts of launches and time while profiling is on: per kernel name, or of each launch.
struct Profile {
    std::atomic<bool> on = false;
    bool each = false;
    struct Line {
        std::string name;
        uint64_t launches = 0;
        double seconds = 0;
        double start = 0;  // of the first launch, by the clock that Python calls perf_counter
        uint32_t call = 0;
        size_t allocated = 0;  // bytes in storages after the last launch
    };
    std::vector<Line> lines;
    std::mutex mutex;  // guards `lines`: kernels may run without the interpreter lock
};
Profile& profile();

}  // namespace kiln
