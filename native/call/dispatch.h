// One entry for every op: call. It records or runs, and leaves a node for backward.
#pragma once

#include <span>

#include "base/small_vector.h"
#include "call/op.h"
#include "call/tensor.h"

namespace kiln {

using Results = SmallVector<TensorRef, 2>;
using Operands = SmallVector<Operand, 4>;

// fn(operands). With `out`, results are written into those tensors (in-place ops, `out=`), which are also the
// results. Records a gradient where one is needed.
Results call(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out = {});

// The same for the first result alone.
TensorRef call_one(Fn& fn, std::span<const Operand> operands);

// `call` without autograd; `hidden`: also the extra outputs a derivative reads.
Results run(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out = {},
            bool hidden = false);

// The same of a pointwise function or a program, at once, whatever is being recorded. Inputs must hold
// values.
Results execute(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden);

// Told of each call that computes something: records or runs it by `run_told`, or gives other results.
inline Results (*on_call)(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                          bool hidden) = nullptr;
Results run_told(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden);

// Raises unless a result of this dtype can be written into a tensor of that one. Only a conversion may lose a
// kind.
void expect_castable(const Fn& fn, DType result, DType target);

// Raises what `call` would say of the tensors it writes, before any of them changes.
void expect_writable(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

// The shapes of its results; none for views.
std::vector<Dims> result_sizes(Fn& fn, std::span<const Operand> operands);

// The shape pointwise operands broadcast to; raises the sentence PyTorch users know.
Dims broadcast_shape(const Fn& fn, std::span<const Operand> operands);

// Functions the core itself calls; set once from the table.
struct CoreFns {
    Fn* add = nullptr;                      // add(a, b)
    Fn* copy = nullptr;                     // copy(x): x in new memory, or in `out` with its dtype
    Fn* convert[dtype_count] = {};          // convert(x; dtype)
    Fn* sum_to = nullptr;                   // sum_to(g, like): g summed down to like's shape
    Fn* product = nullptr;                  // product(a, b): of two matrices
    Fn* transpose = nullptr;                // transpose(a): a view of a matrix
    Fn* (*as_strided)(int ndim) = nullptr;  // as_strided(x; sizes, strides, offset) of a view with ndim dims
    Fn* (*slice)(int dim) = nullptr;        // slice(x; start, length, step) along dim
    Fn* (*select)(int dim) = nullptr;       // select(x; place) along dim
    Fn* (*concat)(int count) = nullptr;     // concat(arrays...): one below the other
    Fn* (*write)(int ndim) = nullptr;       // write(base, x; strides, offset): base with x at strided places
};
CoreFns& core_fns();

TensorRef contiguous(const TensorRef& x);              // x itself if it is
TensorRef converted(const TensorRef& x, DType dtype);  // a copy
TensorRef copy_of(Tensor& x);                          // recorded, but not for backward
TensorRef full_like(const Tensor& x, double value);

}  // namespace kiln
