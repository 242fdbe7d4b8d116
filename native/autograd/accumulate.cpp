#include "autograd/accumulate.h"

#include <algorithm>

#include "autograd/autograd.h"
#include "call/dispatch.h"
#include "record/record.h"

namespace kiln {

namespace {

TensorRef sum(const TensorRef& a, const TensorRef& b) {
    Operand operands[2] = {{a.get(), {}}, {b.get(), {}}};
    return call_one(*core_fns().add, operands);
}

// 0.0 + x: x without -0.0
TensorRef plus_zero(const TensorRef& x) {
    Operand operands[2] = {{x.get(), {}}, {nullptr, Number::of(0.0)}};
    return call_one(*core_fns().add, operands);
}

// Whether nobody else can see the tensor's memory.
bool is_ours(const TensorRef& x) {
    const Storage& storage = *x->storage;
    return x->refcount == 1 && storage.refcount == (storage.recording ? 2 : 1) && x->contiguous && !x->node &&
           !storage.outside && !storage.foreign();
}

// x as `like` lies in memory, if that one's elements fill it in some order of its dims; else row by row.
TensorRef in_steps_of(const Tensor* owner, const TensorRef& x) {
    if (!owner) return contiguous(x);
    const Tensor& like = *owner;
    if (like.strides == x->strides) return x;
    Dims widest_first;
    for (int d = 0; d < like.ndim(); ++d) widest_first.push_back(d);
    std::stable_sort(widest_first.begin(), widest_first.end(),
                     [&](int64_t a, int64_t b) { return like.strides[a] > like.strides[b]; });
    if (!view_permute(like, widest_first)->contiguous) return contiguous(x);
    TensorRef values = contiguous(like.contiguous ? x : view_permute(*x, widest_first));
    TensorRef permuted = new_view(*values, x->sizes, like.strides, 0);
    set_history(*permuted, x->node, x->output);
    return permuted;
}

// The gradient if nobody else can reach its memory, else a copy. Gradients given by the caller stay theirs:
// the pass's references to them keep them from being taken.
TensorRef owned(const TensorRef& gradient, const TensorRef& like, bool create_graph) {
    const Storage& storage = *gradient->storage;
    const bool alone = gradient->refcount == 1 && storage.refcount == (storage.recording ? 2 : 1);
    const bool all = size_t(gradient->numel) * itemsize(gradient->dtype) == storage.nbytes;
    if (alone && all && !overlaps_itself(*gradient)) return in_steps_of(like.get(), gradient);
    Operand operand{gradient.get(), {}};
    return in_steps_of(like.get(),
                       create_graph ? call_one(*core_fns().copy, {&operand, 1}) : copy_of(*gradient));
}

}  // namespace

void add_gradient(TensorRef& sum_so_far, TensorRef gradient) {
    if (!sum_so_far) {
        sum_so_far = std::move(gradient);
        return;
    }
    // What is recorded is fused: there, an array more costs nothing, and writes would keep others apart.
    const bool in_place = !grad_enabled() && !current_recording() && sum_so_far->sizes == gradient->sizes &&
                          sum_so_far->dtype == gradient->dtype;
    TensorRef& target = in_place && !is_ours(sum_so_far) && is_ours(gradient) ? gradient : sum_so_far;
    if (in_place && is_ours(target)) {
        Operand operands[2] = {{sum_so_far.get(), {}}, {gradient.get(), {}}};
        call(*core_fns().add, operands, {&target, 1});
        if (&target == &gradient) sum_so_far = std::move(gradient);
    } else {
        sum_so_far = sum(sum_so_far, gradient);
    }
}

bool gives_slices(const Node& node) {
    const Fn& fn = *node.fn;
    return fn.cls == FnClass::view && fn.op &&
           (fn.op->view == ViewKind::slice || fn.op->view == ViewKind::select || gives_several(fn));
}

bool SumOfParts::begin_at_zero() {
    const bool did = from_zero.has(place);
    from_zero.add(place);
    return did;
}

void SumOfParts::add_to_others(TensorRef gradient, Part part) {
    if (part != Part::whole && !begin_at_zero() && (sum || part == Part::slice)) {
        TensorRef& first = sum ? sum : gradient;
        first = plus_zero(first);
    }
    add_gradient(sum, std::move(gradient));
}

void SumOfParts::prepare_for_places() {
    if (!begin_at_zero() || !is_ours(sum)) sum = plus_zero(sum);
}

void SumOfParts::add_at_places(const Node& node) {
    const NodeInput& input = node.inputs[0];
    const Dims& sizes = input.saved.tensor->sizes;
    bool all = gives_several(*node.fn);  // parts that stand side by side
    for (const TensorRef& gradient : node.grads) all = all && gradient;
    const bool new_everywhere = !sum && all && !current_recording();
    if (sum)
        prepare_for_places();
    else
        begin_at_zero();
    if (new_everywhere)
        sum = new_tensor(input.dtype, sizes);
    else if (!sum)
        sum = full_like(*new_tensor(input.dtype, sizes, StorageRef()), 0.0);
    Operands operands;
    operands.push_back({sum.get(), {}});
    for (const NodeInput& number : std::span(node.inputs.begin(), node.inputs.end()).subspan(1))
        operands.push_back({nullptr, number.number});
    const Results places = run(*node.fn, operands);
    for (size_t k = 0; k < node.grads.size(); ++k) {
        if (!node.grads[k]) continue;
        const Operand before =
            new_everywhere ? Operand{nullptr, Number::of(0.0)} : Operand{places[k].get(), {}};
        Operand both[2] = {before, {node.grads[k].get(), {}}};
        call(*core_fns().add, both, {&places[k], 1});
    }
}

const LeafSum* LeafSums::find(const AutogradMeta* meta) const {
    auto found = std::find_if(list_.begin(), list_.end(),
                              [&](const LeafSum& leaf) { return leaf.meta.get() == meta; });
    return found == list_.end() ? nullptr : found;
}

LeafSum& LeafSums::of(const MetaRef& meta) {
    if (meta->run == pass_) return list_[meta->place];
    if (meta->run > pass_) {  // a backward called from a hook, or another thread's, has been here since
        if (const LeafSum* known = find(meta.get())) return const_cast<LeafSum&>(*known);
    } else {
        meta->run = pass_;
        meta->place = uint32_t(list_.size());
        meta->waiting = 0;
    }
    return list_.emplace_back(LeafSum{meta, nullptr});
}

// A leaf's first .grad lies in memory as the leaf does, if that has no gaps; later ones as the first.
void accumulate(AutogradMeta& meta, const TensorRef& gradient, bool create_graph) {
    if (!meta.grad) {
        TensorRef own = owned(gradient, TensorRef(meta.requires_grad ? meta.owner : nullptr), create_graph);
        if (!meta.grad) {  // another thread's backward may have come first
            meta.grad = std::move(own);
            return;
        }
    }
    if (!create_graph) {
        TensorRef into = meta.grad;  // kept, whatever another thread does to .grad
        Operand operands[2] = {{into.get(), {}}, {gradient.get(), {}}};
        call(*core_fns().add, operands, {&into, 1});
        return;
    }
    for (bool stored = false; !stored;) {
        TensorRef before = meta.grad, after = gradient;
        if (before) after = sum(before, gradient);
        if (before && !before->contiguous) after = in_steps_of(before.get(), after);
        stored = meta.grad == before;
        if (stored) meta.grad = std::move(after);
    }
}

}  // namespace kiln
