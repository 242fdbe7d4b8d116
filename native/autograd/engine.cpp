#include "autograd/engine.h"

#include <algorithm>

#include "autograd/accumulate.h"
#include "autograd/autograd.h"
#include "autograd/derivative.h"
#include "autograd/hooks.h"
#include "autograd/rows.h"
#include "base/check.h"
#include "base/invariants.h"
#include "batch/list.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "record/record.h"

namespace kiln {

namespace {

class Pass;
std::vector<Pass*>& passes() {
    static auto* list = new std::vector<Pass*>();
    return *list;
}

uint64_t next_number() {
    static uint64_t numbers = 0;
    return ++numbers;
}

bool is_earlier(const Node* a, const Node* b) { return a->order < b->order; }

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

TensorRef sum_to(const TensorRef& gradient, const Tensor& like) {
    if (gradient->sizes == like.sizes) return gradient;
    TensorRef shape = shape_of(like);
    Operand operands[2] = {{gradient.get(), {}}, {shape.get(), {}}};
    return call_one(*core_fns().sum_to, operands);
}

// Whether its derivative reads a number that was given in a tensor's place, which counts as saved too.
bool reads_number(const Fn& fn) { return fn.name == "mul" || fn.name == "div"; }

// Gives up what the node saved. What saved nothing can be passed through again.
void release_saved(Node& node) {
    node.released = node.released || !node.saved_outputs.empty() || !node.hidden.empty() ||
                    (node.packed && !node.packed->empty());
    node.packed.reset();
    for (NodeInput& input : node.inputs) {
        if (input.is_number && !node.released) node.released = reads_number(*node.fn);
        if (!input.saved.tensor || !input.saved.tensor->storage) continue;
        input.saved.tensor = input.like_result ? nullptr : shape_of(*input.saved.tensor);
        node.released = true;
    }
    node.saved_outputs.clear();
    node.hidden.clear();
}

bool is_passed_elsewhere(const Node& node);
bool is_passed_here(const Node& node);

// What an outer pass of this thread has noted at a node, while one that a hook or a user's function began
// passes it.
struct Suspended {
    Node* node;
    uint64_t run;
    uint32_t waiting;
    bool needed;
    SmallVector<TensorRef, 1> grads;
};

// Which nodes a pass comes to, and along which of their edges gradients are wanted.
struct Reach {
    std::span<const Root> roots;
    std::span<const Edge> inputs;
    BackwardOptions options;
    uint64_t number = next_number();
    SmallVector<Node*, 16> nodes = {};
    std::vector<Suspended> suspended = {};
    bool leaves_have_hooks = false;

    void suspend(Node& node) {
        suspended.push_back({&node, node.run, node.waiting, node.needed, {}});
        std::swap(suspended.back().grads, node.grads);
    }
    void resume() {
        for (Suspended& s : suspended) {
            s.node->run = s.run;
            s.node->waiting = s.waiting;
            s.node->needed = s.needed;
            std::swap(s.node->grads, s.grads);
        }
        suspended.clear();
    }

    void find() {
        auto discovered = [&](const Root& root) { return !root.edge.node || discover(root.edge.node.get()); };
        while (!std::ranges::all_of(roots, discovered)) {  // shares nodes with another thread's pass
            for (Node* node : nodes) node->run = 0;
            nodes.clear();
            resume();
            number = next_number();  // so that what this pass has marked, leaves too, is not taken for the
                                     // new one's
            Away here;
            KILN_CHECK(wait_for_others(), runtime, "backward: the interpreter is ending");
        }
        mark_needed();
    }

    // Counts the edges to every node that the root reaches; to be a root counts as one. False if a node is
    // another pass's.
    bool discover(Node* root) {
        SmallVector<Node*, 16> stack;
        const bool alone = passes().size() == 1;
        auto enter = [&](Node* node) {
            if (node->run == number) return true;
            if (!alone) [[unlikely]] {
                if (is_passed_elsewhere(*node)) return false;
                if (is_passed_here(*node)) suspend(*node);
            }
            node->run = number;
            node->waiting = 0;
            node->needed = false;
            stack.push_back(node);
            nodes.push_back(node);
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
                    leaves_have_hooks = leaves_have_hooks || (input.edge.leaf && input.edge.leaf->extras);
                    continue;
                }
                if (!enter(next)) return false;
                ++next->waiting;
            }
        }
        return true;
    }

    // A node is needed if something asked for lies behind it. The oldest are looked at first, so that what a
    // node leads to is decided before it.
    void mark_needed() {
        if (inputs.empty()) {
            for (Node* node : nodes) node->needed = true;
            return;
        }
        std::sort(nodes.begin(), nodes.end(), is_earlier);
        for (Node* node : nodes)
            node->needed = leads_on(*node) || std::ranges::any_of(inputs, [&](const Edge& input) {
                               return input.node.get() == node;
                           });
    }

    // Whether a gradient is to go along an edge.
    bool wants(const Edge& edge) const {
        if (edge.node) return edge.node->needed;
        if (!edge.leaf) return false;
        if (options.accumulate && inputs.empty()) return true;
        return std::any_of(inputs.begin(), inputs.end(), [&](const Edge& x) { return x.leaf == edge.leaf; });
    }

    bool leads_on(const Node& node) const {
        return std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](const NodeInput& input) { return wants(input.edge); });
    }
};

class Pass {
public:
    Pass(std::span<const Root> roots, std::span<const Edge> inputs, const BackwardOptions& options)
        : thread(this_thread()), reach{roots, inputs, options} {
        passes().push_back(this);
    }
    Pass(const Pass&) = delete;
    ~Pass() {
        for (Node* node : reach.nodes)  // none, unless an error ended it
            if (node->run == reach.number) node->grads.clear();
        reach.resume();
        std::erase(passes(), this);
        call_numbers.forward = 0;
        tell_others();
    }

    std::vector<TensorRef> run() {
        reach.find();
        leaves_.begin(reach.number);
        if (reach.leaves_have_hooks) count_leaves();
        for (auto& [edge, gradient] : reach.roots) deliver(edge, gradient, bool(edge.node));
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

    bool will_visit(const Edge& edge) const {
        if (!edge) return false;
        // Known are the leaves that the pass has come to; if one has hooks, all of them.
        if (edge.node ? edge.node->run != reach.number : !leaves_.find(edge.leaf.get())) return false;
        return reach.wants(edge);
    }

    const uint64_t thread;
    Node* visited = nullptr;     // the one that is visited,
    Node* current = nullptr;     // and in anomaly mode the last one
    std::vector<Opaque> at_end;  // functions of the interpreter's, for when it is over
    Reach reach;

private:
    // Gradients a node gives: of its inputs `targets`, in order; of all inputs if there are none.
    struct Given {
        Results gradients;
        std::span<const uint8_t> targets;
        size_t taken = 0;
        TensorRef of(size_t i) {  // called with ascending i: moves the gradient out
            const bool has = taken < gradients.size() && (targets.empty() || targets[taken] == i);
            return has ? std::move(gradients[taken++]) : nullptr;
        }
    };

    // How many edges lead to each leaf. Counted only where a leaf has hooks: a hook may write to memory that
    // its gradient shares, so it is called as soon as the last edge has brought its part.
    void count_leaves() {
        for (Node* node : reach.nodes)
            for (NodeInput& input : node->inputs)
                if (input.edge.leaf) leaves_.count_edge(input.edge.leaf);
    }

    // Adds a gradient, if there is one, to those of what the edge leads to. `counted`: the edge is one of
    // those that were counted there; after the last of them it goes on from there.
    void deliver(const Edge& edge, TensorRef gradient, bool counted) {
        if (edge.node) {
            Node& node = *edge.node;
            if (gradient && node.needed) {
                if (in_place(node)) [[unlikely]]
                    add_to_rows(node, edge.index, gradient);
                else
                    add_gradient(sums_of(node)[edge.index], std::move(gradient));
            }
            if (!counted || --node.waiting) return;
            ready_.push_back(&node);
            std::push_heap(ready_.begin(), ready_.end(), is_earlier);
        } else if (edge.leaf) {
            if (gradient) add_gradient(leaves_.of(edge.leaf).gradient, std::move(gradient));
            if (reach.leaves_have_hooks && counted) [[unlikely]]
                if (leaves_.passed_last_edge(*edge.leaf) && reach.wants(edge))
                    finish_leaf(leaves_.of(edge.leaf));
        }
    }

    Node* take_latest() {
        std::pop_heap(ready_.begin(), ready_.end(), is_earlier);
        Node* node = ready_.back();
        ready_.pop_back();
        return node;
    }

    static SmallVector<TensorRef, 1>& sums_of(Node& node) {
        if (node.grads.empty()) node.grads.resize(node.outputs);
        return node.grads;
    }

    // Whether gradients of a launch's rows are written into one buffer: what is differentiated again is added
    // by calls of ops.
    bool in_place(const Node& node) const {
        return hands_out(node) && !reach.options.create_graph && !current_recording();
    }

    // A node of a launch: hands out or gathers rows.
    void visit_rows(Node& node) {
        if (!hands_out(node)) return prepare(node) ? give_back(node) : pass_over(node);
        TensorRef whole;
        const bool looked_at = node.extras || !reach.inputs.empty();  // row by row
        if (!in_place(node)) {
            if (looked_at && !node.grads.empty()) {
                const auto count = size_t(node.rows->count);
                if (const TensorRef all = std::move(node.grads[count])) {
                    Results rows = callbacks.unstacked(all);
                    for (size_t i = 0; i < count; ++i) add_gradient(node.grads[i], std::move(rows[i]));
                }
            }
            if (!prepare(node)) return pass_over(node);
            whole = callbacks.stacked({node.grads.data(), node.grads.size()}, *node.rows->like);
        } else {
            if (looked_at) {
                spread_rows(node);
                if (!prepare(node)) return pass_over(node);
                collect_rows(node);
            }
            if (node.needed) whole = take_rows(node);
        }
        node.grads.clear();
        deliver(node.inputs[0].edge, std::move(whole), true);
    }

    // The gradient of gathered rows goes back to where they came from.
    void give_back(Node& node) {
        const TensorRef gradient = std::move(node.grads[0]);
        node.grads.clear();
        const std::vector<Rows::Place>& places = node.rows->places;
        Results rows;
        SmallVector<uint32_t, 64> from, to;
        for (uint32_t k = 0; k < node.inputs.size(); ++k) {
            const Edge& edge = node.inputs[k].edge;
            if (edge && reach.wants(edge)) {
                from.clear(), to.clear();
                for (uint32_t i = 0; i < places.size(); ++i)
                    if (places[i].input == k) from.push_back(i), to.push_back(places[i].row);
                if (edge.node && in_place(*edge.node)) {
                    add_rows(*edge.node, *gradient, from, to);
                } else {
                    if (rows.empty()) rows = callbacks.unstacked(gradient);
                    for (size_t i = 0; i < from.size(); ++i)
                        deliver({edge.node, edge.leaf, places[from[i]].of_launch ? to[i] : edge.index},
                                rows[from[i]], false);
                }
            }
            deliver(edge, nullptr, true);
        }
    }

    void visit(Node& node) {
        if (node.rows) [[unlikely]]
            return visit_rows(node);
        if (!prepare(node)) return pass_over(node);
        call_numbers.forward = node.line.call;
        Given given = node.context.object ? Given{callbacks.context(node), {}} : differentiate(node);
        if (node.extras || anomaly_mode) [[unlikely]]
            given = after(node, std::move(given));
        node.grads.clear();
        for (size_t i = 0; i < node.inputs.size(); ++i)
            deliver(node.inputs[i].edge, fitted(node, i, given.of(i)), true);
        if (!reach.options.retain_graph) release_saved(node);
    }

    // Before a node's derivative: its hooks change the gradients it got, and what is asked for is taken from
    // them. Whether they go on from here.
    bool prepare(Node& node) {
        if (node.needed && (node.context.object || has_hooks(node.extras.get())))
            node.grads.resize(
                node.outputs);  // of an output without gradient a user's function gets zeros, hooks null
        if (!node.needed || node.grads.empty()) return false;
        if (reach.inputs.empty() && !node.extras) [[likely]]
            return true;
        const std::span<TensorRef> grads(node.grads.data(), node.grads.size());
        call_tensor_hooks(node.extras.get(), grads);
        capture(node);
        if (!reach.options.accumulate && !reach.inputs.empty() && !reach.leads_on(node)) return false;
        call_node_hooks(node.extras.get(), HookKind::before, grads, nullptr);
        return true;
    }

    void pass_over(Node& node) {
        node.grads.clear();
        for (NodeInput& input : node.inputs) deliver(input.edge, nullptr, true);
    }

    void watched_visit(Node& node) {
        current = &node;
        try {
            visit(node);
        } catch (const Error&) {
            callbacks.node_failed(node);
            throw;
        }
    }

    // The gradients of the node's inputs that are wanted, from those of its outputs that are defined.
    Given differentiate(Node& node) {
        check_not_released(node);
        uint64_t needed = 0, defined = 0;
        for (size_t i = 0; i < node.inputs.size(); ++i)
            if (reach.wants(node.inputs[i].edge)) needed |= bit(i);
        for (size_t k = 0; k < node.grads.size(); ++k)
            if (node.grads[k]) defined |= bit(k);
        if (!needed || !defined) return {};
        Fn& fn = derivative_fn(node, needed, defined, reach.options.create_graph && !node.hidden.empty());
        if (fn.targets.empty()) return {};
        Kept keep;
        const Operands own = derivative_operands(node, fn, keep, reach.options.create_graph);
        const std::span<const Operand> operands(own.data(), own.size());
        if (!fn.passes.empty()) {
            Results results;
            for (uint8_t i : fn.passes) results.emplace_back(operands[i].tensor);
            return {std::move(results), fn.targets};
        }
        if (reach.options.batched && node.fn->cls != FnClass::pointwise)
            return {callbacks.batched_derivative(fn, operands), fn.targets};
        if (reach.options.create_graph)
            return {replay(compiler::recipe_for({&fn, operands}), operands), fn.targets};
        return {kiln::run(fn, operands), fn.targets};
    }

    // A gradient in the shape and dtype of the input it belongs to.
    TensorRef fitted(const Node& node, size_t i, TensorRef gradient) const {
        if (!gradient) return gradient;
        const NodeInput& input = node.inputs[i];
        if (node.context.object) check_shape(node, i, *gradient);
        if (input.saved.tensor)
            gradient = reach.options.batched ? callbacks.batched_sum(gradient, *input.saved.tensor)
                                             : sum_to(gradient, *input.saved.tensor);
        return gradient->dtype == input.dtype ? std::move(gradient) : converted(gradient, input.dtype);
    }

    // Hooks see what goes on, and may change it: one gradient for each entry of next_functions.
    Given after(Node& node, Given given) {
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

    // Takes what is asked for of the gradients of a node's outputs, and puts into .grad what tensors that are
    // no leaves keep there.
    void capture(const Node& node) {
        for (size_t i = 0; i < reach.inputs.size(); ++i)
            if (reach.inputs[i].node.get() == &node) {
                captured_.resize(reach.inputs.size());
                captured_[i] = node.grads[reach.inputs[i].index];
            }
        if (!node.extras || reach.options.batched) return;
        std::vector<std::pair<MetaRef, TensorRef>> kept;  // tensors may go, and gradients go on, meanwhile
        for (auto& [meta, index] : node.extras->retains) kept.emplace_back(meta, node.grads[index]);
        for (auto& [meta, gradient] : kept)
            if (gradient) accumulate(*meta, gradient, reach.options.create_graph);
    }

    void finish_leaf(LeafSum& leaf) {
        leaf.finished = true;
        const MetaRef meta = leaf.meta;  // hooks may make the list of leaves longer
        TensorRef gradient = std::move(leaf.gradient);
        const std::span<TensorRef> got(&gradient, 1);
        call_tensor_hooks(meta->extras.get(), got);
        if (!reach.options.accumulate) {
            leaves_.of(meta).gradient = gradient;
            return;
        }
        call_node_hooks(meta->extras.get(), HookKind::before, got, nullptr);
        if (gradient) accumulate(*meta, gradient, reach.options.create_graph);
        call_leaf_hooks(*meta);
        call_node_hooks(meta->extras.get(), HookKind::after, {}, &got);
    }

    std::vector<TensorRef> finish() {
        for (size_t i = 0; i < leaves_.size(); ++i)
            if (LeafSum& leaf = leaves_[i];
                leaf.gradient && !leaf.finished && reach.wants({nullptr, leaf.meta, 0}))
                finish_leaf(leaf);
        if (reach.options.accumulate) return {};
        captured_.resize(reach.inputs.size());
        for (size_t i = 0; i < reach.inputs.size(); ++i)
            if (const LeafSum* leaf =
                    reach.inputs[i].leaf ? leaves_.find(reach.inputs[i].leaf.get()) : nullptr)
                captured_[i] = leaf->gradient;
        return std::move(captured_);
    }

    SmallVector<Node*, 16> ready_;  // a heap: nodes whose gradients are whole, the latest on top
    LeafSums leaves_;
    std::vector<TensorRef> captured_;  // gradients of the inputs asked for
};

const Pass* pass_at(const Node& node) {
    for (const Pass* pass : passes())
        if (pass->reach.number == node.run) return pass;
    return nullptr;
}

// Whether another thread's pass has the node before it.
bool is_passed_elsewhere(const Node& node) {
    const Pass* pass = pass_at(node);
    return pass && pass->thread != this_thread();
}

// Whether a pass of this thread has it before it; raises if one is just there, as what runs there could call
// itself without end.
bool is_passed_here(const Node& node) {
    for (const Pass* pass : passes())
        KILN_CHECK(pass->visited != &node || pass->thread != this_thread(), runtime,
                   "backward: called again at a node that a backward is just passing");
    return pass_at(node);
}

Pass* own_pass() {
    for (auto pass = passes().rbegin(); pass != passes().rend(); ++pass)
        if ((*pass)->thread == this_thread()) return *pass;
    return nullptr;
}

}  // namespace

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
