#include "autograd/inplace.h"

#include <algorithm>
#include <unordered_map>

#include "autograd/autograd.h"
#include "base/check.h"
#include "batch/list.h"
#include "call/compiler.h"
#include "record/record.h"

namespace kiln {

namespace {

// The line of the last in-place write of a storage, for the message of a failed version check.
std::unordered_map<const Storage*, SourceLine>& last_writes() {
    static auto* map = new std::unordered_map<const Storage*, SourceLine>();
    return *map;
}

}  // namespace

const SourceLine* last_write(const Storage& storage) {
    auto found = last_writes().find(&storage);
    return found == last_writes().end() ? nullptr : &found->second;
}

void set_base(Tensor& view, Tensor& x) {
    if (view.storage != x.storage || view.dtype != x.dtype) return;
    view.base = x.base ? x.base : TensorRef(&x);
    view.base_order = view.base->node ? view.base->node->order : 0;
    view.made_at = view.storage->version;
    view.made = inference_mode()  ? Made::inference
                : !grad_enabled() ? Made::unrecorded
                : x.base          ? x.made
                                  : Made::recorded;
}

void set_bases(const Fn& fn, std::span<const TensorRef> views, Tensor& x) {
    const bool several = gives_several(fn) && grad_enabled();
    for (const TensorRef& view : views) {
        set_base(*view, x);
        if (several) view->made = Made::one_of_several;
    }
}

namespace {

constexpr const char* one_place =
    "unsupported operation: more than one element of the written-to tensor refers to a single memory "
    "location. Please clone() the tensor before performing the operation.";

}  // namespace

void prepare_write(const Fn& fn, const Tensor& target, std::span<const Operand> operands) {
    KILN_CHECK(!target.storage->read_only, runtime, fn.name,
               ": the tensor's memory is read-only; use .clone() first");
    KILN_CHECK(!is_expanded(target), runtime, one_place);
    KILN_CHECK(!target.storage->inference || inference_mode(), runtime,
               "Inplace update to inference tensor outside "
               "InferenceMode is not allowed. You can make a clone to get a normal tensor before doing "
               "inplace update.");
    target.storage->below = 0;
    if (fn.cls != FnClass::pointwise) return;  // others have read everything before they write
    for (const Operand& operand : operands)
        KILN_CHECK(!operand.tensor || !overlaps_partly(target, *operand.tensor), runtime,
                   "unsupported operation: some elements of the input tensor and the written-to tensor refer "
                   "to a single "
                   "memory location. Please clone() the tensor before performing the operation.");
}

void wrote(Tensor& target) {
    target.storage->below = 0;  // again: another thread may have looked before the elements were written
    if (target.untracked || target.storage->inference) return;
    ++target.storage->version;
    order_of_last_write = take_order(0);
    if (last_writes().size() > 4096) last_writes().clear();
    last_writes()[target.storage.get()] = SourceLine::current();
}

namespace {

// Whether a view may be written, or follow what it views: not if that would put another derivative in the
// place of the one a user's function says (this view is its result, or a view of it), if the view was made
// where nothing is recorded, or if it is one of several whose node could not be replaced for it alone.
// `what`: who is modified.
void check_view(const Tensor& view, const char* what) {
    if (view.made != Made::recorded) raise(ErrorKind::runtime, compiler::view_error(view, what));
}

// The dims of a tensor with more than one element, widest step first; raises if elements share memory.
SmallVector<int, 6> dims_by_step(const Tensor& x) {
    SmallVector<int, 6> dims;
    for (int d = 0; d < x.ndim(); ++d)
        if (x.sizes[d] > 1) dims.push_back(d);
    std::sort(dims.begin(), dims.end(), [&](int a, int b) { return x.strides[a] > x.strides[b]; });
    int64_t reach = 0;  // of the narrower dims
    for (size_t i = dims.size(); i-- > 0; reach += (x.sizes[dims[i]] - 1) * x.strides[dims[i]])
        KILN_CHECK(x.strides[dims[i]] > reach, runtime, one_place);
    return dims;
}

// The numbers that place a view among its base's elements in order: strides and offset, before them the sizes
// if asked for. A step in memory is taken apart into the base's own, widest first.
void place_in_base(const Tensor& view, bool with_sizes, Operands& operands) {
    const Tensor& base = *view.base;
    const bool plain = base.contiguous;
    const SmallVector<int, 6> dims = plain ? SmallVector<int, 6>() : dims_by_step(base);
    const Dims in_order = plain ? Dims() : contiguous_strides(base.sizes);
    auto push = [&](int64_t value) { operands.push_back({nullptr, Number::of(value)}); };
    auto push_step = [&](int64_t step) {
        if (plain) return push(step);
        int64_t found = 0;
        for (int d : dims) {
            found += step / base.strides[d] * in_order[d];
            step %= base.strides[d];
        }
        KILN_CHECK(!step, not_implemented,
                   "an in-place operation on a view of memory between the elements of what it views is not "
                   "differentiable; use clone()");
        push(found);
    };
    if (with_sizes)
        for (int64_t size : view.sizes) push(size);
    for (int d = 0; d < view.ndim(); ++d) push_step(view.sizes[d] > 1 ? view.strides[d] : 0);
    push_step(view.numel ? view.offset - base.offset : 0);
}

}  // namespace

void check_in_place(const std::string& name, const Tensor& target) {
    if (target.base) check_view(target, "is being");
    const bool of_leaf = target.base && !target.base->node && takes_part(target);
    KILN_CHECK(!(target.requires_grad() && !target.node) && !of_leaf, runtime,
               of_leaf ? "a view of a leaf" : "a leaf",
               " Variable that requires grad is being used in an in-place operation (", name,
               "); do it under no_grad(), or on a clone()");
    // Which of the elements at one place the gradient belongs to, no rule says.
    KILN_CHECK(!overlaps_itself(target), runtime, one_place);
    if (!target.base || target.base->contiguous) return;
    Operands unused;
    place_in_base(target, false, unused);  // raises here what it would raise after the write
}

namespace {

// Gives a tensor the history of a call.
void set_history_of(Tensor& x, Fn& fn, const Operands& operands) {
    set_history(x, record_edges(fn, {operands.data(), operands.size()}), 0);
}

// Makes the view's history that of as_strided(base), after base's own changed.
void view_of_base(Tensor& view) {
    Tensor& base = *view.base;
    Operands operands;
    operands.push_back({&base, {}});
    place_in_base(view, true, operands);
    set_history_of(view, *core_fns().as_strided(view.ndim()), operands);
    view.base_order = base.node ? base.node->order : 0;
}

}  // namespace

void write_to_base(Tensor& view) {
    Tensor& base = *view.base;
    Operands operands;
    operands.push_back({&base, {}});
    operands.push_back({&view, {}});
    place_in_base(view, false, operands);
    view.base_order = base.node ? base.node->order : 0;  // its history is the write's, not base's
    set_history_of(base, *core_fns().write(view.ndim()), operands);
    view_of_base(view);
}

TensorRef become(Tensor& x, const Tensor& view, const char* name) {
    if (view.node.get() == listed_history()) run_list_of(*view.storage);
    if (grad_enabled() && takes_part(x)) check_in_place(name, x);
    wrote(x);
    TensorRef changed = alias(view);
    const bool seen = x.refcount > 1u + (view.base.get() == &x);  // by views of it, or by a graph
    if (x.base || (seen && !(x.meta && x.meta->requires_grad))) {
        changed->base = view.base;
        changed->base_order = view.base_order;
    }
    changed->made = x.made;
    changed->made_at = x.made_at;
    changed->untracked = x.untracked;
    changed->meta = x.meta;
    set_history(*changed, view.node, view.output);
    return changed;
}

Node* up_to_date_grad_fn(Tensor& tensor) {
    if (tensor.node && tensor.node.get() == listed_history()) [[unlikely]] {
        run_list_of(*tensor.storage);
        if (tensor.node.get() == listed_history()) settle(*tensor.storage);  // it failed: raises
    }
    if (tensor.base) {
        Node* base = tensor.base->node.get();
        const bool changed = (base ? base->order : 0) != tensor.base_order;
        // What may not follow a change may not miss one either, such as a write that was not recorded. Leaves
        // that are views of a buffer without gradients have none to follow: optimizers write such buffers.
        const bool stale = tensor.made != Made::recorded && tensor.made_at != tensor.storage->version;
        if (changed || (stale && (tensor.node || takes_part(*tensor.base)))) {
            check_view(tensor, "its base or another view of its base has been");
            view_of_base(tensor);
        }
    }
    return tensor.node.get();
}

}  // namespace kiln
