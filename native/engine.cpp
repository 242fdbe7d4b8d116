// The backward engine: nodes by descending order, each replaying its captured derivative.
#include <algorithm>

#include "autograd.h"
#include "busy.h"
#include "check.h"
#include "compiler.h"
#include "derivative.h"
#include "hooks.h"
#include "invariants.h"
#include "record.h"

namespace kiln {

namespace {

TensorRef sum_to(const TensorRef& gradient, const Tensor& like) {
    if (gradient->sizes == like.sizes) return gradient;
    Operand operands[2] = {{gradient.get(), {}}, {const_cast<Tensor*>(&like), {}}};
    TensorRef shape = shape_of(like);
    operands[1].tensor = shape.get();
    return std::move(call(*core_fns().sum_to, operands)[0]);
}

TensorRef sum(const TensorRef& a, const TensorRef& b) {
    Operand operands[2] = {{a.get(), {}}, {b.get(), {}}};
    return call_one(*core_fns().add, operands);
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
    TensorRef turned = new_view(*values, x->sizes, like.strides, 0);
    set_history(*turned, x->node, x->output);
    return turned;
}

class Engine {
public:
    ~Engine() {
        for (Node* node : all_)  // none, unless an error ended it
            if (node->run == run_) node->grads.clear();
        std::erase_if(passes(), [&](const Pass& pass) { return pass.run == run_; });
        tell_others();
    }

    Engine(std::span<const Root> roots, std::span<const Edge> inputs, const BackwardOptions& options)
        : inputs_(inputs), options_(options), roots_(roots) {
        run_ = next_run();
        passes().push_back({run_, this_thread(), inputs_, options_, this, has_leaf});
    }

    std::vector<TensorRef> run() {
        while (!discover_all()) {  // shares nodes with another thread's pass: when that one is done
            for (Node* node : all_) node->run = 0;
            all_.clear();
            leaves_.clear();
            own_pass()->run = run_ = next_run();  // leaves of the other's stay marked as someone's later
            Away here;
            KILN_CHECK(wait_for_others(), runtime, "backward: the interpreter is ending");
        }
        if (hooked_) count_leaves();
        mark_needed();
        for (auto& [edge, gradient] : roots_) deliver(edge, gradient, bool(edge.node));
        for (uint32_t visits = 0; !heap_.empty(); ++visits) {
            if (visits % 8 == 0) stop_if_interrupted();
            std::pop_heap(heap_.begin(), heap_.end(), later);
            Node* node = heap_.back();
            heap_.pop_back();
            anomaly_mode ? watched_visit(*node) : visit(*node);
            node->run = 0;  // behind this pass
        }
        all_.clear();
        std::vector<TensorRef> found = finish();
        for (size_t i = 0; i < own_pass()->callbacks.size(); ++i) {  // one may add others
            const Opaque callback = own_pass()->callbacks[i];
            call_back(callback);
        }
        return found;
    }

private:
    struct Leaf {
        MetaRef meta;
        TensorRef gradient;
        bool stored = false;  // where one has hooks: as soon as all that leads to it was passed
    };

    // Gradients a node gives: of its inputs `targets`, in order; of all inputs if there are none.
    struct Given {
        Results gradients;
        std::span<const uint8_t> targets;
        size_t taken = 0;
        TensorRef of(size_t i) {  // each once, in order
            const bool has = taken < gradients.size() && (targets.empty() || targets[taken] == i);
            return has ? std::move(gradients[taken++]) : nullptr;
        }
    };

    static uint64_t next_run() {
        static uint64_t runs = 0;
        return ++runs;
    }
    static bool has_leaf(const void* engine, const AutogradMeta* meta) {
        const auto& leaves = static_cast<const Engine*>(engine)->leaves_;
        return std::any_of(leaves.begin(), leaves.end(),
                           [&](const Leaf& leaf) { return leaf.meta.get() == meta; });
    }

    static bool later(const Node* a, const Node* b) { return a->order < b->order; }

    bool discover_all() {
        for (auto& [edge, gradient] : roots_)
            if (edge.node && !discover(edge.node.get())) return false;
        return true;
    }

    // Whether another thread's pass has the node before it.
    static bool passed_elsewhere(const Node* node) {
        for (const Pass& pass : passes()) {
            if (pass.run != node->run) continue;
            KILN_CHECK(pass.thread != this_thread(), runtime,
                       "backward: called again on a graph a backward is passing through");
            return true;
        }
        return false;
    }

    // Counts the edges to every node the root reaches, being a root as one. False if one is another pass's.
    bool discover(Node* root) {
        SmallVector<Node*, 16> stack;
        const bool alone = passes().size() == 1;
        auto enter = [&](Node* node) {
            if (node->run == run_) return true;
            if (!alone && passed_elsewhere(node)) [[unlikely]]
                return false;
            node->run = run_;
            node->waiting = 0;
            node->needed = false;
            stack.push_back(node);
            all_.push_back(node);
            return true;
        };
        if (!enter(root)) return false;
        ++root->waiting;
        while (!stack.empty()) {
            Node* node = stack.back();
            stack.pop_back();
            for (NodeInput& input : node->inputs) {
                Node* next = input.edge.node.get();
                if (!next) {
                    hooked_ = hooked_ || (input.edge.leaf && input.edge.leaf->extras);
                    continue;
                }
                if (!enter(next)) return false;
                ++next->waiting;
            }
        }
        return true;
    }

    // How many edges lead to each leaf. Only asked for where one has hooks: they may write to what it shares.
    void count_leaves() {
        for (Node* node : all_)
            for (NodeInput& input : node->inputs)
                if (input.edge.leaf) ++leaf_of(input.edge.leaf).meta->waiting;
    }

    bool wants(const Edge& edge) const { return is_wanted(edge, inputs_, options_); }

    bool is_input(const Node* node) const {
        return std::any_of(inputs_.begin(), inputs_.end(),
                           [&](const Edge& x) { return x.node.get() == node; });
    }

    // A node is needed if something asked for lies behind it. Nodes are visited oldest first.
    void mark_needed() {
        if (inputs_.empty()) {
            for (Node* node : all_) node->needed = true;
            return;
        }
        std::sort(all_.begin(), all_.end(), [](Node* a, Node* b) { return a->order < b->order; });
        for (Node* node : all_) { node->needed = is_input(node) || leads_on(*node); }
    }

    bool leads_on(const Node& node) const {
        return std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](const NodeInput& input) { return bool(input.edge) && wants(input.edge); });
    }

    void ready(Node* node) {
        heap_.push_back(node);
        std::push_heap(heap_.begin(), heap_.end(), later);
    }

    static void add_to(TensorRef& slot, TensorRef gradient) {
        slot = slot ? sum(slot, gradient) : std::move(gradient);
    }

    Leaf& leaf_of(const MetaRef& meta) {
        if (meta->run == run_) return leaves_[meta->place];
        if (meta->run > run_) {  // a backward called from a hook, or another thread's, has been here since
            for (Leaf& leaf : leaves_)
                if (leaf.meta == meta) return leaf;
        } else {
            meta->run = run_;
            meta->place = uint32_t(leaves_.size());
            meta->waiting = 0;
        }
        return leaves_.emplace_back(Leaf{meta, nullptr});
    }

    void deliver(const Edge& edge, TensorRef gradient, bool counted) {
        if (edge.node) {
            Node& node = *edge.node;
            if (gradient && node.needed) {
                if (node.grads.empty()) node.grads.resize(node.outputs);
                add_to(node.grads[edge.index], std::move(gradient));
            }
            if (counted && --node.waiting == 0) ready(&node);
        } else if (edge.leaf) {
            if (gradient) add_to(leaf_of(edge.leaf).gradient, std::move(gradient));
            if (hooked_ && counted) [[unlikely]]
                passed_leaf(edge.leaf);
        }
    }

    // Where a leaf has hooks, each has its gradient, or none, and calls them, as soon as it is whole.
    void passed_leaf(const MetaRef& meta) {
        if (meta->run != run_ || meta->waiting == 0 || --meta->waiting) return;
        if (wants({nullptr, meta, 0})) finish_leaf(leaf_of(meta));
    }

    void visit(Node& node) {
        if (node.needed && (node.context.object || has_hooks(node.extras.get())))
            node.grads.resize(node.outputs);  // none: zeros to a user's, null to hooks
        if (!node.needed || node.grads.empty()) return pass_over(node);
        if (!inputs_.empty() || node.extras) [[unlikely]] {
            const std::span<TensorRef> grads(node.grads.data(), node.grads.size());
            call_tensor_hooks(node.extras.get(), grads);
            capture(node);
            if (!options_.accumulate && !inputs_.empty() && !leads_on(node)) return pass_over(node);
            call_node_hooks(node.extras.get(), HookKind::before, grads, nullptr);
        }
        Given given = node.context.object ? Given{call_context(node), {}} : differentiate(node);
        if (node.extras || anomaly_mode) [[unlikely]]
            given = after(node, std::move(given));
        node.grads.clear();
        for (size_t i = 0; i < node.inputs.size(); ++i)
            deliver(node.inputs[i].edge, fitted(node, i, given.of(i)), true);
        if (!options_.retain_graph) forget(node);
    }

    // A gradient in the shape and dtype of the input it belongs to.
    TensorRef fitted(const Node& node, size_t i, TensorRef gradient) {
        if (!gradient) return gradient;
        const NodeInput& input = node.inputs[i];
        if (node.context.object) check_shape(node, i, *gradient);
        if (input.saved.tensor)
            gradient = options_.batched ? batched_calls.sum_to(gradient, *input.saved.tensor)
                                        : sum_to(gradient, *input.saved.tensor);
        return gradient->dtype == input.dtype ? std::move(gradient) : converted(gradient, input.dtype);
    }

    void pass_over(Node& node) {
        node.grads.clear();
        for (NodeInput& input : node.inputs) deliver(input.edge, nullptr, true);
    }

    // Hooks see what goes on: one gradient for each entry of next_functions.
    Given after(Node& node, Given gradients) {
        std::vector<TensorRef> given;
        for (size_t i = 0; i < node.inputs.size(); ++i) {
            TensorRef gradient = fitted(node, i, gradients.of(i));
            if (!node.inputs[i].is_number) given.push_back(std::move(gradient));
        }
        const std::span<TensorRef> got(node.grads.data(), node.grads.size());
        call_node_hooks(node.extras.get(), HookKind::after, given, &got);
        if (anomaly_mode) check_node(node, given);
        Given all;
        for (size_t i = 0, k = 0; i < node.inputs.size(); ++i)
            all.gradients.push_back(node.inputs[i].is_number ? nullptr : std::move(given[k++]));
        return all;
    }

    void watched_visit(Node& node) {
        own_pass()->node = &node;
        try {
            visit(node);
        } catch (const Error&) {
            node_failed(node);
            throw;
        }
    }

    // What a user's function gives must sum down to the shape of what it is the gradient of.
    static void check_shape(const Node& node, size_t i, const Tensor& gradient) {
        const Dims &got = gradient.sizes, &want = node.inputs[i].saved.tensor->sizes;
        bool fits = got.ndim() >= want.ndim();
        for (int d = 1; fits && d <= want.ndim(); ++d) {
            const int64_t size = want[size_t(want.ndim() - d)];
            fits = size == 1 || size == got[size_t(got.ndim() - d)];
        }
        KILN_CHECK(fits, runtime, "Function ", node.fn->name,
                   "Backward returned an invalid gradient at index ", i, " - got ", shape_text(got),
                   " but expected shape compatible with ", shape_text(want));
    }

    Given differentiate(Node& node) {
        check_not_released(node);
        uint64_t needed = 0, defined = 0;
        for (size_t i = 0; i < node.inputs.size(); ++i)
            if (node.inputs[i].edge && wants(node.inputs[i].edge)) needed |= bit(i);
        for (size_t k = 0; k < node.grads.size(); ++k)
            if (node.grads[k]) defined |= bit(k);
        if (!needed || !defined) return {};
        Fn& fn = derivative_fn(node, needed, defined, options_.create_graph && !node.hidden.empty());
        if (fn.targets.empty()) return {};
        Kept keep;
        Operands operands = derivative_operands(node, fn, keep, options_.create_graph);
        if (!fn.passes.empty()) {
            Results results;
            for (uint8_t i : fn.passes) results.emplace_back(operands[i].tensor);
            return {std::move(results), fn.targets};
        }
        std::span<const Operand> given(operands.data(), operands.size());
        if (options_.batched && node.fn->cls != FnClass::pointwise)
            return {batched_calls.derivative(fn, given), fn.targets};
        return {options_.create_graph ? replay(compiler::recipe_for({&fn, given}), given)
                                      : kiln::run(fn, given),
                fn.targets};
    }

    void forget(Node& node) {
        // What saved nothing can be passed through again.
        node.released = node.released || !node.saved_outputs.empty() || !node.hidden.empty() ||
                        (node.packed && !node.packed->empty());
        node.packed.reset();
        for (NodeInput& input : node.inputs) {
            if (!input.saved.tensor || !input.saved.tensor->storage) continue;
            input.saved.tensor = input.like_result ? nullptr : shape_of(*input.saved.tensor);
            node.released = true;
        }
        node.saved_outputs.clear();
        node.hidden.clear();
    }

    void capture(Node& node) {
        for (size_t i = 0; i < inputs_.size(); ++i)
            if (inputs_[i].node.get() == &node) {
                captured_.resize(inputs_.size());
                captured_[i] = node.grads[inputs_[i].index];
            }
        if (!node.extras || options_.batched) return;
        std::vector<std::pair<MetaRef, TensorRef>> kept;  // tensors may go, and gradients go on, meanwhile
        for (auto& [meta, index] : node.extras->retains) kept.emplace_back(meta, node.grads[index]);
        for (auto& [meta, gradient] : kept)
            if (gradient) store_plain(*meta, gradient);
    }

    // Gradients given by the caller stay theirs: the engine's references to them keep them from being taken.
    // .grad never shares memory with anything reachable; it is added to in place while no graph is made.
    void finish_leaf(Leaf& leaf) {
        leaf.stored = true;
        const MetaRef meta = leaf.meta;  // hooks may make the list of leaves longer
        TensorRef gradient = std::move(leaf.gradient);
        call_tensor_hooks(meta->extras.get(), {&gradient, 1});
        if (!options_.accumulate) {
            leaf_of(meta).gradient = gradient;
            return;
        }
        call_node_hooks(meta->extras.get(), HookKind::before, {&gradient, 1}, nullptr);
        if (gradient) store_plain(*meta, gradient);
        call_leaf_hooks(*meta);
        const std::span<TensorRef> got(&gradient, 1);
        call_node_hooks(meta->extras.get(), HookKind::after, {}, &got);
    }

    // A leaf's first .grad lies in memory as the leaf does, if that has no gaps; later ones as the first.
    void store_plain(AutogradMeta& meta, const TensorRef& gradient) {
        if (!meta.grad) {
            TensorRef own = owned(gradient, TensorRef(meta.requires_grad ? meta.owner : nullptr));
            if (!meta.grad) {  // another thread's backward may have come first
                meta.grad = std::move(own);
                return;
            }
        }
        if (!options_.create_graph) {
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

    TensorRef owned(const TensorRef& gradient, const TensorRef& like) {
        const Storage& storage = *gradient->storage;
        const bool alone = gradient->refcount == 1 && storage.refcount == (storage.recording ? 2 : 1);
        const bool all = size_t(gradient->numel) * itemsize(gradient->dtype) == storage.nbytes;
        if (alone && all && !overlaps_itself(*gradient)) return in_steps_of(like.get(), gradient);
        Operand operand{gradient.get(), {}};
        if (options_.create_graph) return in_steps_of(like.get(), call_one(*core_fns().copy, {&operand, 1}));
        return in_steps_of(like.get(), kiln::run(*core_fns().copy, {&operand, 1})[0]);
    }

    std::vector<TensorRef> finish() {
        for (size_t i = 0; i < leaves_.size(); ++i)
            if (Leaf& leaf = leaves_[i]; leaf.gradient && !leaf.stored && wants({nullptr, leaf.meta, 0}))
                finish_leaf(leaf);
        if (options_.accumulate) return {};
        captured_.resize(inputs_.size());
        for (size_t i = 0; i < inputs_.size(); ++i)
            for (Leaf& leaf : leaves_)
                if (inputs_[i].leaf && inputs_[i].leaf == leaf.meta) captured_[i] = leaf.gradient;
        return std::move(captured_);
    }

    std::span<const Edge> inputs_;
    BackwardOptions options_;
    uint64_t run_;
    bool hooked_ = false;  // whether a leaf has extras
    SmallVector<Node*, 16> all_;
    SmallVector<Node*, 16> heap_;
    std::span<const Root> roots_;
    SmallVector<Leaf, 4> leaves_;
    std::vector<TensorRef> captured_;
};

}  // namespace

std::vector<TensorRef> run_backward(std::span<const Root> roots, std::span<const Edge> inputs,
                                    const BackwardOptions& options) {
    assert_locked();
    struct Mode {
        bool before;
        SavedHooks hooks;
        ~Mode() {
            set_grad_enabled(before);
            std::swap(saved_hooks(), hooks);
        }
    } mode{set_grad_enabled(options.create_graph), saved_hooks()};
    Engine engine(roots, inputs, options);
    return engine.run();
}

}  // namespace kiln
