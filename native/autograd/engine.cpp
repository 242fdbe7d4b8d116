#include "autograd/engine.h"

#include <algorithm>

#include "autograd/autograd.h"
#include "autograd/pass.h"
#include "base/check.h"
#include "base/invariants.h"
#include "batch/list.h"
#include "call/busy.h"
#include "call/compiler.h"

namespace kiln {

namespace {

// What a user's function gives must sum down to the shape of what it is the gradient of.
void check_shape(const Node& node, size_t i, const Tensor& gradient) {
    const Dims &got = gradient.sizes, &want = node.inputs[i].saved.tensor->sizes;
    bool fits = got.ndim() >= want.ndim();
    for (int d = 1; fits && d <= want.ndim(); ++d) {
        const int64_t size = want[size_t(want.ndim() - d)];
        fits = size == 1 || size == got[size_t(got.ndim() - d)];
    }
    KILN_CHECK(fits, runtime, "Function ", node.fn->name, "Backward returned an invalid gradient at index ",
               i, " - got ", shape_text(got), " but expected shape compatible with ", shape_text(want));
}

// Whether its derivative reads a number that was given in a tensor's place, which counts as saved too.
bool reads_number(const Fn& fn) { return fn.name == "mul" || fn.name == "div"; }

const Pass* pass_at(const Node& node) {
    for (const Pass* pass : passes())
        if (pass->reach.number == node.run) return pass;
    return nullptr;
}

Pass* own_pass() {
    for (auto pass = passes().rbegin(); pass != passes().rend(); ++pass)
        if ((*pass)->thread == this_thread()) return *pass;
    return nullptr;
}

}  // namespace

std::vector<Pass*>& passes() {
    static auto* list = new std::vector<Pass*>();
    return *list;
}

TensorRef sum_to(const TensorRef& gradient, const Tensor& like) {
    if (gradient->sizes == like.sizes) return gradient;
    TensorRef shape = shape_of(like);
    Operand operands[2] = {{gradient.get(), {}}, {shape.get(), {}}};
    return call_one(*core_fns().sum_to, operands);
}

bool saves_anything(const Node& node) {
    return !node.saved_outputs.empty() || !node.hidden.empty() || (node.packed && !node.packed->empty()) ||
           std::any_of(node.inputs.begin(), node.inputs.end(), [&](const NodeInput& input) {
               return input.is_number ? reads_number(*node.fn)
                                      : input.saved.tensor && input.saved.tensor->storage;
           });
}

// What saved nothing can be passed through again.
void release_saved(Node& node) {
    node.released = node.released || saves_anything(node);
    node.packed.reset();
    for (NodeInput& input : node.inputs) {
        if (!input.saved.tensor || !input.saved.tensor->storage) continue;
        input.saved.tensor = input.like_result ? nullptr : shape_of(*input.saved.tensor);
    }
    node.saved_outputs.clear();
    node.hidden.clear();
}

bool is_passed_elsewhere(const Node& node) {
    const Pass* pass = pass_at(node);
    return pass && pass->thread != this_thread();
}

bool is_passed_here(const Node& node) {
    for (const Pass* pass : passes())
        KILN_CHECK(pass->visited != &node || pass->thread != this_thread(), runtime,
                   "backward: called again at a node that a backward is just passing");
    return pass_at(node);
}

std::vector<TensorRef> Pass::run() {
    reach.find();
    if (reach.launches && reach.options.batched) return run_one_by_one();
    for (auto& [edge, gradient] : reach.roots) {
        if (edge) add(edge, gradient, Part::whole, {~uint64_t(0), uint32_t(&edge - &reach.roots[0].edge)});
        if (edge.node) pass(edge);
    }
    for (uint32_t visits = 0; !ready_.empty(); ++visits) {
        if (visits % 8 == 0) stop_if_interrupted();
        Node& node = *take_latest();
        visited = &node;
        anomaly_mode ? watched_visit(node) : visit(node);
        if (reach.suspended.empty()) node.run = 0;  // behind this pass
    }
    visited = nullptr;
    reach.nodes.clear();
    std::vector<TensorRef> gradients = finish();
    for (size_t i = 0; i < at_end.size(); ++i) {  // one may add others
        const Opaque callback = at_end[i];
        callbacks.at_end(callback);
    }
    return gradients;
}

void Pass::visit(Node& node) {
    if (node.rows) [[unlikely]]
        return visit_rows(node);
    if (!prepare(node)) return pass_over(node);
    call_numbers.forward = node.line.call;
    const bool slices = node.fn->cls == FnClass::view && gives_slices(node);
    if (slices && adds_at_places(node)) {
        if (reach.launches && keeps(node.inputs[0].edge))
            keep_slices(node);
        else
            sum_at(node.inputs[0].edge).add_at_places(node);
        return pass_over(node);
    }
    Given given = node.context.object ? Given{callbacks.context(node)} : differentiate(node);
    if (node.extras || anomaly_mode) [[unlikely]]
        given = after(node, std::move(given));
    node.grads.clear();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
        const Edge& edge = node.inputs[i].edge;
        if (!edge) {
            given.of(i);
            continue;
        }
        const Part part = slices ? Part::slice : given.scattered.has(i) ? Part::scattered : Part::whole;
        add(edge, fitted(node, i, given.of(i)), part, part_of(node, i));
        pass(edge);
    }
    if (!reach.options.retain_graph) release_saved(node);
}

bool Pass::depends_on(Node& node) {
    for (uint32_t k = 0; k < node.outputs; ++k)
        if (reach.depends_on({NodeRef(&node), nullptr, k})) return true;
    return false;
}

void Pass::call_hooks(const Extras* extras, Edge at, std::span<TensorRef> gradients) {
    if (!extras) return;
    for (const Hook& hook : extras->hooks.of(HookKind::tensor)) {
        TensorRef& gradient = gradients[at.index = hook.index];
        if ((!gradient && !reach.depends_on(at)) || (at.node && !reach.leads_to_asked(at))) continue;
        if (TensorRef changed = callbacks.hook(hook.function, gradient)) gradient = changed;
    }
}

bool Pass::prepare(Node& node) {
    if (node.kept) add_kept(node);
    if (node.needed && (node.context.object || has_hooks(node.extras.get()))) {
        const bool known = std::ranges::any_of(node.grads, [](const TensorRef& x) { return bool(x); });
        if (!known && !depends_on(node)) return false;
        if (!node.rows && !reach.leads_to_asked({NodeRef(&node), nullptr, 0})) return false;
        // of an output without gradient a user's function gets zeros, hooks null
        node.grads.resize(node.outputs);
    }
    if (!node.needed || node.grads.empty()) return false;
    if (reach.inputs.empty() && !node.extras) [[likely]]
        return true;
    const std::span<TensorRef> grads(node.grads.data(), node.grads.size());
    call_hooks(node.extras.get(), {NodeRef(&node), nullptr, 0}, grads);
    capture(node);
    if (!reach.options.accumulate && !reach.inputs.empty() && !reach.leads_on(node)) return false;
    call_node_hooks(node.extras.get(), HookKind::before, grads, nullptr);
    return true;
}

void Pass::watched_visit(Node& node) {
    current = &node;
    try {
        visit(node);
    } catch (const Error&) {
        callbacks.node_failed(node);
        throw;
    }
}

Pass::Given Pass::differentiate(Node& node) {
    check_not_released(node);
    BitSet needed, defined;
    for (size_t i = 0; i < node.inputs.size(); ++i)
        if (reach.wants(node.inputs[i].edge)) needed.add(i);
    for (size_t k = 0; k < node.grads.size(); ++k)
        if (node.grads[k]) defined.add(k);
    if (!needed || !defined) return {};
    if (node.fn->cls == FnClass::join && !reach.options.create_graph && !reach.options.batched)
        return gradients_of_join(node);
    if (node.fn->cls == FnClass::view)
        if (TensorRef whole = gradient_of_view(node)) {
            Given given;
            given.gradients.push_back(std::move(whole));
            return given;
        }
    compiler::Asked asked{std::move(needed), std::move(defined),
                          reach.options.create_graph && !node.hidden.empty()};
    Fn* fn = &derivative_fn(node, asked);
    if (!fn->products.empty()) {
        asked.factored = products_that_wait(node, *fn);
        if (asked.factored) fn = &derivative_fn(node, asked);
    }
    if (fn->targets.empty()) return {};
    if (const BitSet added = add_scattered(node, *fn, asked)) {
        asked.needed -= added;
        if (!asked.needed) return {};
        fn = &derivative_fn(node, asked);
    }
    Kept keep;
    const Operands own = derivative_operands(node, *fn, keep, reach.options.create_graph);
    const std::span<const Operand> operands(own.data(), own.size());
    if (asked.factored) return without_factors(node, *fn, results_of(node, *fn, operands));
    return {results_of(node, *fn, operands), fn->targets, fn->scattered};
}

BitSet Pass::add_scattered(Node& node, const Fn& fn, const compiler::Asked& asked) {
    BitSet added;
    if (node.extras || anomaly_mode || reach.options.batched) return added;
    for (size_t i = 0; i < fn.scattered.end(); ++i)
        if (const Edge& edge = node.inputs[i].edge; !fn.scattered.has(i) || is_row(edge)) {
            continue;
        } else if (reach.launches && keeps(edge)) {
            const uint64_t call = call_of(node);
            keep_scattered(node, {BitSet::of(i), asked.defined, asked.redo, {}, int(i)}, {&call, 1}, {}, {});
            added.add(i);
        } else if (sum_at(edge).sum) {
            add_onto_sum(node, {BitSet::of(i), asked.defined, asked.redo, {}, int(i)});
            added.add(i);
        }
    return added;
}

void Pass::add_onto_sum(Node& node, const compiler::Asked& asked) {
    SumOfParts parts = sum_at(node.inputs[size_t(asked.onto)].edge);
    Fn& fn = derivative_fn(node, asked);
    parts.prepare_for_places();
    const TensorRef sum = std::exchange(parts.sum, nullptr);
    Kept keep;
    const Operands operands = derivative_operands(node, fn, keep, reach.options.create_graph, sum);
    if (reach.options.create_graph)
        parts.sum = std::move(replay(compiler::recipe_for({&fn, operands}), operands)[0]);
    else
        parts.sum = std::move(kiln::run(fn, operands, {&sum, 1})[0]);
}

Results Pass::results_of(const Node& node, Fn& fn, std::span<const Operand> operands) {
    const bool plain = !reach.options.batched && !reach.options.create_graph;
    if (plain && fn.outputs == fn.targets.size()) return kiln::run(fn, operands);
    Results computed;
    if (fn.outputs) {
        if (reach.options.batched && node.fn->cls != FnClass::pointwise)
            computed = callbacks.batched_derivative(fn, operands);
        else if (reach.options.create_graph)
            computed = replay(compiler::recipe_for({&fn, operands}), operands);
        else
            computed = kiln::run(fn, operands);
    }
    if (computed.size() == fn.targets.size()) return computed;
    Results all;
    size_t next = 0;
    for (const Target& target : fn.targets)
        all.push_back(target.pass < 0 ? std::move(computed[next++])
                                      : TensorRef(operands[size_t(target.pass)].tensor));
    return all;
}

TensorRef Pass::gradient_of_view(const Node& node) const {
    const Fn& fn = *node.fn;
    if (!fn.op || reach.options.create_graph || reach.options.batched) return nullptr;
    // The parts of a split have no rule here, and the first of them may be without a gradient.
    if (fn.op->view != ViewKind::reshape && fn.op->view != ViewKind::permute) return nullptr;
    const Tensor& gradient = *node.grads[0];
    if (fn.op->view == ViewKind::reshape)
        return view_reshape(gradient, node.inputs[0].saved.tensor->sizes, false);
    Dims back(fn.dims.size());
    for (size_t d = 0; d < fn.dims.size(); ++d) back[size_t(fn.dims[d])] = int64_t(d);
    return view_permute(gradient, back);
}

Pass::Given Pass::gradients_of_join(const Node& node) const {
    Given given;
    const Tensor& gradient = *node.grads[0];
    const int64_t dim = node.fn->dims[0];
    int64_t at = 0;
    for (const NodeInput& input : node.inputs) {
        const bool stacked = node.fn->op->join == JoinKind::stack;
        const int64_t length = stacked ? 1 : input.saved.tensor->sizes[size_t(dim)];
        TensorRef& part = given.gradients.emplace_back();
        if (reach.wants(input.edge))
            part = stacked ? view_select(gradient, dim, at) : view_slice(gradient, dim, at, length, 1);
        at += length;
    }
    return given;
}

TensorRef Pass::fitted(const Node& node, size_t i, TensorRef gradient) const {
    if (!gradient) return gradient;
    const NodeInput& input = node.inputs[i];
    if (node.context.object) check_shape(node, i, *gradient);
    if (input.saved.tensor)
        gradient = reach.options.batched ? callbacks.batched_sum(gradient, *input.saved.tensor)
                                         : sum_to(gradient, *input.saved.tensor);
    return gradient->dtype == input.dtype ? std::move(gradient) : converted(gradient, input.dtype);
}

Pass::Given Pass::after(Node& node, Given given) {
    std::vector<TensorRef> shown;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
        TensorRef gradient = fitted(node, i, given.of(i));
        if (!node.inputs[i].is_number) shown.push_back(std::move(gradient));
    }
    const std::span<TensorRef> got(node.grads.data(), node.grads.size());
    call_node_hooks(node.extras.get(), HookKind::after, shown, &got);
    if (anomaly_mode) callbacks.check_node(node, shown);
    Given changed;
    for (size_t i = 0, k = 0; i < node.inputs.size(); ++i)
        changed.gradients.push_back(node.inputs[i].is_number ? nullptr : std::move(shown[k++]));
    return changed;
}

void Pass::capture(Node& node) {
    for (size_t i = 0; i < reach.inputs.size(); ++i)
        if (reach.inputs[i].node.get() == &node) {
            captured_.resize(reach.inputs.size());
            captured_[i] = node.grads[reach.inputs[i].index];
        }
    if (!node.extras || reach.options.batched) return;
    std::vector<std::pair<MetaRef, TensorRef>> kept;  // tensors may go, and gradients go on, meanwhile
    for (auto& [meta, index] : node.extras->retains)
        if (reach.leads_to_asked({NodeRef(&node), nullptr, index}))
            kept.emplace_back(meta, node.grads[index]);
    for (auto& [meta, gradient] : kept) {
        if (!gradient) continue;
        if (reach.doubtful)
            late_.emplace_back(meta, gradient);
        else
            keep_gradient(*meta, gradient);
    }
}

void Pass::keep_gradient(AutogradMeta& meta, const TensorRef& gradient) {
    if (!meta.grad || reach.options.create_graph)
        return accumulate(meta, gradient, reach.options.create_graph);
    const Operand operands[2] = {{meta.grad.get(), {}}, {gradient.get(), {}}};
    meta.grad = call_one(*core_fns().add, operands);  // without the history that the first may have
}

void Pass::finish_leaf(LeafSum& leaf) {
    leaf.finished = true;
    const MetaRef meta = leaf.meta;  // hooks may make the list of leaves longer
    TensorRef gradient = std::move(leaf.gradient);
    if (const auto kept = std::move(leaf.kept))
        if (TensorRef sum = kept->evaluate(by_ops(), reach.options.create_graph))
            add_gradient(gradient, std::move(sum));
    if (const auto products = std::move(leaf.products))
        add_gradient(gradient, products->evaluate(reach.options.create_graph));
    const std::span<TensorRef> got(&gradient, 1);
    if (!gradient && meta->extras && !reach.depends_on({nullptr, meta, 0})) return;
    call_hooks(meta->extras.get(), {nullptr, meta, 0}, got);
    if (!reach.options.accumulate) {
        leaves().of(meta).gradient = gradient;
        return;
    }
    call_node_hooks(meta->extras.get(), HookKind::before, got, nullptr);
    if (gradient) accumulate(*meta, gradient, reach.options.create_graph);
    call_leaf_hooks(*meta);
    call_node_hooks(meta->extras.get(), HookKind::after, {}, &got);
}

std::vector<TensorRef> Pass::finish() {
    for (size_t i = 0; i < leaves().size(); ++i)  // a hook's backward has counted anew at some of them
        if (LeafSum& leaf = leaves()[i]; (leaf.gradient || leaf.products || leaf.kept || reach.doubtful) &&
                                         !leaf.finished && reach.wants({nullptr, leaf.meta, 0}))
            finish_leaf(leaf);
    for (const auto& [meta, gradient] : late_) keep_gradient(*meta, gradient);
    if (reach.options.accumulate) return {};
    captured_.resize(reach.inputs.size());
    for (size_t i = 0; i < reach.inputs.size(); ++i)
        if (const LeafSum* leaf = reach.inputs[i].leaf ? leaves().find(reach.inputs[i].leaf.get()) : nullptr)
            captured_[i] = leaf->gradient;
    return std::move(captured_);
}

bool Pass::adds_at_places(const Node& node) const {
    const bool split_recorded =
        gives_several(*node.fn) && current_recording();  // one join of all parts is fused
    return !is_row(node.inputs[0].edge) && !node.extras && !anomaly_mode && !reach.options.create_graph &&
           !reach.options.batched && !split_recorded && reach.wants(node.inputs[0].edge);
}

void Pass::pass_over(Node& node) {
    node.grads.clear();
    for (NodeInput& input : node.inputs) pass(input.edge);
}

Node* Pass::take_latest() {
    std::pop_heap(ready_.begin(), ready_.end(), is_earlier);
    Node* node = ready_.back();
    ready_.pop_back();
    return node;
}

bool Pass::will_visit(const Edge& edge) const {
    if (!edge) return false;
    if (edge.node ? edge.node->run != reach.number : !leaves().find(edge.leaf.get())) return false;
    return reach.wants(edge);
}

Root root_of(Tensor& root, TensorRef gradient, size_t i, bool batched) {
    Edge edge = edge_of(root);
    KILN_CHECK(edge, runtime, "element ", i, " of tensors does not require grad and does not have a grad_fn");
    if (!gradient) {
        KILN_CHECK(root.numel == 1, runtime,
                   "grad can be implicitly created only for scalar outputs (this one is ",
                   shape_text(root.sizes), "); pass gradient=");
        gradient = full_like(root, 1.0);
    }
    KILN_CHECK(batched || gradient->sizes == root.sizes, runtime, "Mismatch in shape: grad_output[", i,
               "] has a shape of ", shape_text(gradient->sizes), " and output[", i, "] has a shape of ",
               shape_text(root.sizes), ".");
    if (gradient->dtype != root.dtype) gradient = converted(gradient, root.dtype);
    return {std::move(edge), std::move(gradient)};
}

std::vector<TensorRef> run_backward(std::span<const Root> roots, std::span<const Edge> inputs,
                                    const BackwardOptions& options) {
    assert_locked();
    const GradMode mode(options.create_graph);
    const ListPaused paused;  // what a pass calls runs at once
    struct Hooks {
        SavedHooks before = saved_hooks();
        ~Hooks() { std::swap(saved_hooks(), before); }
    } hooks;
    return Pass(roots, inputs, options).run();
}

std::vector<TensorRef> Pass::run_one_by_one() {
    std::vector<Results> seeds;
    for (const Root& root : reach.roots) seeds.push_back(callbacks.unstacked(root.gradient));
    const size_t count = seeds.empty() ? 0 : seeds[0].size();
    std::vector<std::vector<TensorRef>> found(reach.inputs.size());
    BackwardOptions options = reach.options;
    options.batched = false;
    for (size_t b = 0; b < count; ++b) {
        std::vector<Root> roots;
        for (size_t r = 0; r < seeds.size(); ++r) roots.push_back({reach.roots[r].edge, seeds[r][b]});
        options.retain_graph = reach.options.retain_graph || b + 1 < count;
        std::vector<TensorRef> own = Pass(roots, reach.inputs, options).run();
        for (size_t i = 0; i < own.size(); ++i) found[i].push_back(std::move(own[i]));
    }
    std::vector<TensorRef> gradients;
    for (std::vector<TensorRef>& rows : found) {
        const auto first = std::ranges::find_if(rows, [](const TensorRef& x) { return bool(x); });
        if (first == rows.end()) {
            gradients.emplace_back();
            continue;
        }
        Dims sizes(1, int64_t(count));
        for (int64_t size : (*first)->sizes) sizes.push_back(size);
        const TensorRef like = new_tensor((*first)->dtype, sizes, StorageRef());
        rows.push_back(nullptr);
        gradients.push_back(callbacks.stacked(rows, *like));
    }
    return gradients;
}

// ---- passes of this thread ----

uint64_t current_run() { return own_pass() ? own_pass()->reach.number : 0; }
Node* current_node() { return own_pass() ? own_pass()->current : nullptr; }
bool passes_to_all_leaves() { return !own_pass() || own_pass()->reach.inputs.empty(); }
bool gradients_are_batched() { return own_pass() && own_pass()->reach.options.batched; }
bool will_visit(const Edge& edge) { return own_pass() && own_pass()->will_visit(edge); }

void call_at_end(Opaque callback) {
    KILN_CHECK(own_pass(), runtime, "Final callbacks can only be installed during backward pass.");
    own_pass()->at_end.push_back(std::move(callback));
}

namespace {

struct Worker {
    uint64_t thread;
    size_t below = 0;  // passes that the thread had begun before this worker went on for it
    Worker() {
        static uint64_t threads = 0;
        thread = ++threads;
    }
};
thread_local Worker worker;

size_t passes_of(uint64_t thread) {
    return size_t(std::count_if(passes().begin(), passes().end(),
                                [&](const Pass* pass) { return pass->thread == thread; }));
}

}  // namespace

uint64_t this_thread() { return worker.thread; }

void work_for(uint64_t thread) {
    worker.thread = thread;
    worker.below = passes_of(thread);
}

bool nested_too_deeply() {
    const size_t most = 40;  // each takes some ten of the calls that Python's limit of recursion counts
    return passes().size() > most && passes_of(worker.thread) > worker.below + most && !current_recording();
}

}  // namespace kiln
