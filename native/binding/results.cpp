// What a call from Python gives: the shapes of `out=`, the dtype of what numbers alone make.
#include <algorithm>

#include "autograd/autograd.h"
#include "binding/bind.h"
#include "call/pointwise.h"

namespace kiln {

bool of_numbers(std::span<const Operand> operands) {
    return std::none_of(operands.begin(), operands.end(), [](const Operand& x) { return x.tensor; });
}

namespace {

// Whether a result is repeated to fill the tensor it goes into: a number's, and a conversion's
// (`x.copy_(y)`).
bool repeats(const Fn& fn, std::span<const Operand> operands) {
    return fn.op == core_fns().convert[0]->op || of_numbers(operands);
}

// Results go into tensors of their shape; a tensor of no elements is given their shape, as in PyTorch: those.
SmallVector<std::pair<Tensor*, Dims>, 2> to_resize(Fn& fn, std::span<const Operand> operands,
                                                   std::span<const TensorRef> out) {
    SmallVector<std::pair<Tensor*, Dims>, 2> found;
    const std::vector<Dims> shapes = result_sizes(fn, operands);
    for (size_t k = 0; k < out.size() && k < shapes.size(); ++k) {
        const Dims &shape = shapes[k], &target = out[k]->sizes;
        bool fits = shape == target;
        if (!fits && shape.size() <= target.size() && repeats(fn, operands)) {
            fits = true;
            for (size_t d = 1; fits && d <= shape.size(); ++d)
                fits = shape[shape.size() - d] == target[target.size() - d] || shape[shape.size() - d] == 1;
        }
        bool written = std::any_of(operands.begin(), operands.end(),
                                   [&](const Operand& x) { return x.tensor == out[k].get(); });
        if (!fits && !written && !out[k]->numel && !out[k]->base && !out[k]->requires_grad()) {
            found.push_back({out[k].get(), shape});
            continue;
        }
        KILN_CHECK(fits, runtime, fn.name, ": output with shape ", shape_text(target), " doesn't match the ",
                   fn.cls == FnClass::pointwise ? "broadcast shape " : "result's shape ", shape_text(shape));
    }
    return found;
}

}  // namespace

// Raises unless results fit into `out`; gives tensors of no elements the results' shapes.
void fit_out(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (out.empty()) return;
    const Dims* common = fn.cls == FnClass::pointwise ? common_shape(operands) : nullptr;
    if (common && *common == out[0]->sizes) return;
    const auto resized = to_resize(fn, operands, out);
    if (!resized.empty()) expect_writable(fn, operands, out);  // nothing changes where the call would raise
    for (const auto& [target, shape] : resized) resize(*target, shape);
}

// Raises what writing `source` into `target` would raise.
void expect_copy(Tensor& source, const TensorRef& target) {
    Fn& fn = *core_fns().copy;
    const Operand operand{&source, {}};
    to_resize(fn, {&operand, 1}, {&target, 1});
    expect_writable(fn, {&operand, 1}, {&target, 1});
}

// Nothing flows through `out=`, as in PyTorch. A write is something else (`x.copy_(y)`, and what in-place
// forms written in Python end with), and so is a call whose result goes over an argument.
void refuse_history(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    const bool writes = fn.op == core_fns().copy->op || repeats(fn, operands) || fn.name == "overwrite";
    if (!grad_enabled() || writes || !fn.op->differentiable || !needs_gradient(fn, operands, out)) return;
    for (const TensorRef& target : out)
        for (const Operand& operand : operands)
            if (operand.tensor && operand.tensor->storage == target->storage) return;
    raise(ErrorKind::runtime,
          concat(fn.name, "(): functions with out=... arguments don't support automatic "
                          "differentiation, but one of the arguments requires grad; do it under "
                          "no_grad(), or use the result"));
}

// A program's call of numbers alone makes floats of the default dtype. Only there: among the steps of a
// derivative a number made of numbers stays as exact as a number is.
Results call_of_program(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    Results results = call(fn, operands, out);
    if (!of_numbers(operands) || !out.empty() || fn.cls != FnClass::pointwise ||
        fn.op == core_fns().convert[0]->op)
        return results;
    for (TensorRef& y : results)
        if (y->dtype == DType::float64 && default_dtype() != DType::float64) {
            const Operand wide{y.get(), {}};
            y = call_one(*core_fns().convert[int(default_dtype())], {&wide, 1});
        }
    return results;
}

}  // namespace kiln
