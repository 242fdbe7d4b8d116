// Pointwise functions, run without a program: operands are broadcast and coalesced here, and one kernel is
// found by function, dtypes and layout classes.
#pragma once

#include <span>

#include "call/dispatch.h"

namespace kiln {

Results execute_pointwise(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

class Recording;

// The common case: contiguous arrays of one shape (and 0-d arrays, numbers), looked at once.
class FlatCall {
public:
    // False if this is not such a call.
    bool look_at(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out = {});
    // Whether it can run now, or be appended to what is being recorded. May ask the compiler.
    bool can_run_or_record(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);
    // Runs or records it. `results` has room for the function's outputs, or for `out`.
    void run(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, TensorRef* results);

    Look look;
    const Tensor* shape = nullptr;  // has the results' shape; null: they are 0-d

private:
    static constexpr size_t most = 15;  // operands and results
    PointwiseEntry& entry(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) const;

    Recording* recording_ = nullptr;  // what it is appended to
    bool pending_ = false;            // some values are not there yet, or a recording reads them
    int arrays_ = 0;
    void* pointers_[most];
    int64_t args_[1 + 2 * most];
};

// The shape all array operands have, if it is one shape (0-d arrays aside); null if they broadcast.
const Dims* common_shape(std::span<const Operand> operands);

// The dtypes of the results of a pointwise function, without running it.
std::span<const DType> pointwise_dtypes(Fn& fn, std::span<const Operand> operands);
// Raises what running it would say of the dtypes of `out`.
void check_pointwise_dtypes(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

}  // namespace kiln
