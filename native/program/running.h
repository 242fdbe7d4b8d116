// Programs in the middle of a run: what a step of control calls again and again. Its sizes are evaluated and
// its memory is there before the first time; nothing here calls up, so the run may be without the interpreter
// lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/small_vector.h"
#include "call/busy.h"
#include "program/program.h"

namespace kiln {

// One run of a program and of all that it calls.
struct Run {
    const std::string& name;  // whom the profile counts launches for
    int threads;
    Unlocked& unlocked;
    bool times = false;  // each step notes what it takes
};

// Memory that no tensor has, aligned as theirs.
class Memory {
public:
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    std::byte* data() const { return data_; }

private:
    std::byte* const data_;
};

// A launch whose sizes are known, small enough for one thread, with no memory of its own.
struct Ready {
    KernelFunction function;
    const Step* step;              // whose buffers it uses
    std::vector<int64_t> offsets;  // in bytes, of each
    Dims args;
    int64_t units;
};

class Calls;

// The steps of control of one program at some sizes; what they call stays between two runs of it.
class Controls {
public:
    Controls();
    ~Controls();
    void run(const Control& control, size_t number, const int64_t* slots,
             const SmallVector<std::byte*, 16>& starts, Run& run);

private:
    std::vector<std::unique_ptr<Calls>> calls_;
};

// A program at some sizes.
class Running {
public:
    Running(const Program& program, std::span<const int64_t> environment, const Run& run);
    void run(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs, Run& run);
    // The same for arrays that lie where they did when they were bound.
    struct Bound {
        SmallVector<std::byte*, 16> inputs, outputs;
        std::vector<void*> pointers;  // of all launches, if these are small
    };
    Bound bind(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs);
    void run(Bound& bound, Run& run);
    size_t output_bytes(size_t k) const;
    size_t outputs() const { return program_.outputs.size(); }

private:
    void place(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs);

    const Program& program_;
    Dims slots_;
    std::optional<Memory> temps_, scratch_;
    SmallVector<std::byte*, 16> starts_;
    Controls controls_;
    std::vector<Ready> ready_;  // all of its steps, if they are small launches alone
    bool small_ = false;
    uint32_t runs_ = 0;
};

}  // namespace kiln
