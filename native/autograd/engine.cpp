#include "autograd/engine.h"

#include <algorithm>
#include <map>

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
    bool needed, products;
    uint64_t from_zero;
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
    LeafSums leaves = {};

    void suspend(Node& node) {
        suspended.push_back(
            {&node, node.run, node.waiting, node.needed, node.products, node.from_zero, {}});
        std::swap(suspended.back().grads, node.grads);
    }
    void resume() {
        for (Suspended& s : suspended) {
            s.node->run = s.run;
            s.node->waiting = s.waiting;
            s.node->needed = s.needed;
            s.node->products = s.products;
            s.node->from_zero = s.from_zero;
            std::swap(s.node->grads, s.grads);
        }
        suspended.clear();
    }

    void find() {
        leaves.begin(number);
        auto discovered = [&](const Root& root) { return !root.edge.node || discover(root.edge.node.get()); };
        while (!std::ranges::all_of(roots, discovered)) {  // shares nodes with another thread's pass
            for (Node* node : nodes) node->run = 0;
            nodes.clear();
            resume();
            number = next_number();  // so that what this pass has marked, leaves too, is not taken for the
                                     // new one's
            leaves.begin(number);
            Away here;
            KILN_CHECK(wait_for_others(), runtime, "backward: the interpreter is ending");
        }
        mark_needed();
    }

    // Counts the edges to every node and leaf that the root reaches; of a node, to be a root counts as one.
    // False if a node is another pass's.
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
            node->needed = node->products = false;
            node->from_zero = 0;
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
                    if (input.edge.leaf) leaves.count_edge(input.edge.leaf);
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
            node->needed = leads_on(*node) || asks_for(*node);
    }

    bool asks_for(const Node& node) const {
        return std::ranges::any_of(inputs, [&](const Edge& input) { return input.node.get() == &node; });
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
        for (auto& [edge, gradient] : reach.roots) {
            if (edge) add(edge, gradient);
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

    bool will_visit(const Edge& edge) const {
        if (!edge) return false;
        if (edge.node ? edge.node->run != reach.number : !leaves().find(edge.leaf.get())) return false;
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
        std::span<const Target> targets = {};
        uint64_t scattered = 0;
        size_t taken = 0;
        TensorRef of(size_t i) {  // called with ascending i: moves the gradient out
            const bool has =
                taken < gradients.size() && (targets.empty() || targets[taken].operand == i);
            return has ? std::move(gradients[taken++]) : nullptr;
        }
    };

    LeafSums& leaves() { return reach.leaves; }
    const LeafSums& leaves() const { return reach.leaves; }

    // The sum of the gradients of what an edge leads to.
    SumOfParts sum_at(const Edge& edge) {
        if (!edge.node) {
            LeafSum& leaf = leaves().of(edge.leaf);
            return {leaf.gradient, leaf.from_zero, 1};
        }
        Node& node = *edge.node;
        if (node.grads.empty()) node.grads.resize(node.outputs);
        return {node.grads[edge.index], node.from_zero, bit(edge.index)};
    }

    // Adds a gradient, if there is one, to those of what the edge leads to.
    void add(const Edge& edge, TensorRef gradient, Part part = Part::whole) {
        if (!gradient || (edge.node && !edge.node->needed)) return;
        if (edge.node && in_place(*edge.node)) [[unlikely]]
            return add_to_rows(*edge.node, edge.index, gradient);
        sum_at(edge).add(std::move(gradient), part);
    }

    // One of the edges that were counted is passed; after the last of them it goes on from there.
    void pass(const Edge& edge) {
        if (edge.node) {
            Node& node = *edge.node;
            if (--node.waiting) return;
            ready_.push_back(&node);
            std::push_heap(ready_.begin(), ready_.end(), is_earlier);
        } else if (edge.leaf && leaves().passed_last_edge(*edge.leaf) && reach.wants(edge)) {
            finish_leaf(leaves().of(edge.leaf));
        }
    }

    Node* take_latest() {
        std::pop_heap(ready_.begin(), ready_.end(), is_earlier);
        Node* node = ready_.back();
        ready_.pop_back();
        return node;
    }

    // Whether an edge leads to a row of what a launch gave.
    static bool is_row(const Edge& edge) { return edge.node && hands_out(*edge.node); }

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
        add(node.inputs[0].edge, std::move(whole));
        pass(node.inputs[0].edge);
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
                        add({edge.node, edge.leaf, places[from[i]].of_launch ? to[i] : edge.index}, rows[from[i]]);
                }
            }
            pass(edge);
        }
    }

    void visit(Node& node) {
        if (node.rows) [[unlikely]]
            return visit_rows(node);
        if (!prepare(node)) return pass_over(node);
        call_numbers.forward = node.line.call;
        const bool slices = node.fn->cls == FnClass::view && gives_slices(node);
        if (slices && adds_at_places(node)) {
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
            const Part part = slices ? Part::slice : given.scattered & bit(i) ? Part::scattered : Part::whole;
            add(edge, fitted(node, i, given.of(i)), part);
            pass(edge);
        }
        if (!reach.options.retain_graph) release_saved(node);
    }

    // Whether the gradients of slices can be written where they belong; else they are arrays with zeros around.
    bool adds_at_places(const Node& node) const {
        const bool split_recorded = gives_several(*node.fn) && current_recording();  // one join of all parts is fused
        return !is_row(node.inputs[0].edge) && !node.extras && !anomaly_mode && !reach.options.create_graph && !reach.options.batched &&
               !split_recorded && reach.wants(node.inputs[0].edge);
    }

    // Before a node's derivative: its hooks change the gradients it got, and what is asked for is taken from
    // them. Whether they go on from here.
    bool prepare(Node& node) {
        if (node.products) add_products(node);
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
        for (NodeInput& input : node.inputs) pass(input.edge);
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
        if (node.fn->cls == FnClass::join && !reach.options.create_graph && !reach.options.batched)
            return gradients_of_join(node);
        if (node.fn->cls == FnClass::view)
            if (TensorRef whole = gradient_of_view(node)) {
                Given given;
                given.gradients.push_back(std::move(whole));
                return given;
            }
        compiler::Asked asked{needed, defined, reach.options.create_graph && !node.hidden.empty()};
        Fn* fn = &derivative_fn(node, asked);
        if (!fn->products.empty()) {
            asked.factored = products_that_wait(node, *fn);
            if (asked.factored) fn = &derivative_fn(node, asked);
        }
        if (fn->targets.empty()) return {};
        if (const uint64_t added = add_scattered(node, *fn, asked)) {
            asked.needed &= ~added;
            if (!asked.needed) return {};
            fn = &derivative_fn(node, asked);
        }
        Kept keep;
        const Operands own = derivative_operands(node, *fn, keep, reach.options.create_graph);
        const std::span<const Operand> operands(own.data(), own.size());
        if (asked.factored) return without_factors(node, *fn, results_of(node, *fn, operands));
        return {results_of(node, *fn, operands), fn->targets, fn->scattered};
    }

    // Adds gradients of picked elements at their places in the sums that are there; those of which inputs.
    uint64_t add_scattered(Node& node, const Fn& fn, const compiler::Asked& asked) {
        uint64_t added = 0;
        if (node.extras || anomaly_mode || reach.options.batched) return 0;
        for (size_t i = 0; i < node.inputs.size() && fn.scattered >> i; ++i)
            if (fn.scattered & bit(i) && !is_row(node.inputs[i].edge) && sum_at(node.inputs[i].edge).sum) {
                add_onto_sum(node, {bit(i), asked.defined, asked.redo, 0, int(i)});
                added |= bit(i);
            }
        return added;
    }

    void add_onto_sum(Node& node, const compiler::Asked& asked) {
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

    // All results of a derivative, those that are its operands as they are too.
    Results results_of(const Node& node, Fn& fn, std::span<const Operand> operands) {
        const bool plain = !reach.options.batched && !reach.options.create_graph;
        if (plain && fn.outputs == fn.targets.size()) return kiln::run(fn, operands);
        Results computed;
        if (!fn.outputs)
            ;  // it has all of them
        else if (reach.options.batched && node.fn->cls != FnClass::pointwise)
            computed = callbacks.batched_derivative(fn, operands);
        else if (reach.options.create_graph)
            computed = replay(compiler::recipe_for({&fn, operands}), operands);
        else
            computed = kiln::run(fn, operands);
        if (computed.size() == fn.targets.size()) return computed;
        Results all;
        size_t next = 0;
        for (const Target& target : fn.targets)
            all.push_back(target.pass < 0 ? std::move(computed[next++])
                                          : TensorRef(operands[size_t(target.pass)].tensor));
        return all;
    }

    // Of a view of all of its input the gradient looks the other way; null where that is no view, or of others.
    TensorRef gradient_of_view(const Node& node) const {
        const Fn& fn = *node.fn;
        if (!fn.op || reach.options.create_graph || reach.options.batched) return nullptr;
        const Tensor& gradient = *node.grads[0];
        if (fn.op->view == ViewKind::reshape)
            return view_reshape(gradient, node.inputs[0].saved.tensor->sizes, false);
        if (fn.op->view != ViewKind::permute) return nullptr;
        Dims back(fn.dims.size());
        for (size_t d = 0; d < fn.dims.size(); ++d) back[size_t(fn.dims[d])] = int64_t(d);
        return view_permute(gradient, back);
    }

    // Of arrays joined, views of their parts.
    Given gradients_of_join(const Node& node) const {
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

    // ---- products of matrices that several calls share ----

    // The matrix that an edge leads to, through transpositions nobody looks at; and whether more of its
    // gradient is to come, or there is a product of others already.
    struct Matrix {
        const Edge* edge;
        bool transposed = false, shared = false;
    };

    Matrix matrix_at(const Edge& edge) const {
        const auto is_shared = [&](const Edge& e) {
            if (is_row(e)) return false;
            if (e.node) return e.node->waiting > 1 || e.node->products;
            const LeafSum* leaf = leaves().find(e.leaf.get());
            return leaf && (leaves().edges_left(*e.leaf) > 1 || leaf->products);
        };
        Matrix matrix{&edge, false, is_shared(edge)};
        for (const Node* node; (node = matrix.edge->node.get()) && is_looked_through(*node);) {
            matrix.edge = &node->inputs[0].edge;
            matrix.transposed = !matrix.transposed;
            matrix.shared = matrix.shared || is_shared(*matrix.edge);
        }
        return matrix;
    }

    bool is_looked_through(const Node& node) const {
        const Fn& fn = *node.fn;
        return fn.cls == FnClass::view && fn.op && fn.op->view == ViewKind::permute && fn.dims.size() == 2 &&
               fn.dims[0] == 1 && !node.extras && !reach.asks_for(node) && reach.wants(node.inputs[0].edge);
    }

    // The inputs whose products are not to be computed here: other calls have such products too, or this one
    // has several, and to keep their rows is less than to add arrays of the matrix's size.
    uint64_t products_that_wait(const Node& node, const Fn& fn) const {
        if (reach.options.batched) return 0;
        uint64_t seen = 0, shared = 0, many = 0;
        for (const Product& product : fn.products) {
            const NodeInput& input = node.inputs[product.operand];
            const uint64_t mask = bit(product.operand);
            if (!reach.wants(input.edge)) continue;
            if (!is_worth_keeping(input.saved.tensor->sizes, rows_of(node, product))) many |= mask;
            if ((seen & mask && !is_row(input.edge)) || matrix_at(input.edge).shared) shared |= mask;
            seen |= mask;
        }
        return shared & ~many;
    }

    static int64_t rows_of(const Node& node, const Product& product) {
        int64_t rows = 1;
        for (const auto& [operand, dim] : product.rows) {
            const TensorRef& x = node.inputs[operand].saved.tensor;
            rows *= x ? x->sizes[dim] : ProductSum::most_rows;
        }
        return rows;
    }

    static bool is_worth_keeping(const Dims& matrix, int64_t rows) {
        const int64_t height = matrix[0], width = matrix[1];
        return rows <= ProductSum::most_rows && rows * (height + width) <= height * width && rows > 0;
    }

    // The gradients that a derivative gives, an entry for each input of the node; factors are kept.
    Given without_factors(const Node& node, const Fn& fn, Results results) {
        Given given;
        given.gradients.resize(node.inputs.size());
        for (size_t k = 0; k < results.size(); ++k) {
            const Target& target = fn.targets[k];
            if (target.role == Target::gradient) given.gradients[target.operand] = std::move(results[k]);
            if (target.role != Target::left) continue;
            const NodeInput& input = node.inputs[target.operand];
            const Dims& sizes = input.saved.tensor->sizes;
            keep_product(input.edge, as_rows(results[k], sizes[0]), as_rows(results[k + 1], sizes[1]));
        }
        return given;
    }

    static TensorRef as_rows(const TensorRef& x, int64_t width) {
        const Dims sizes{x->numel / width, width};
        if (x->sizes == sizes) return x;
        TensorRef view = view_reshape(*x, sizes, false);
        return view ? view : view_reshape(*contiguous(x), sizes, true);
    }

    void keep_product(const Edge& edge, TensorRef left, TensorRef right) {
        const Matrix matrix = matrix_at(edge);
        if (matrix.transposed) std::swap(left, right);
        products_at(*matrix.edge).add(left, right, reach.options.create_graph);
    }

    ProductSum& products_at(const Edge& edge) {
        std::unique_ptr<ProductSum>* place;
        if (edge.node) {
            edge.node->products = true;
            place = &products_[{edge.node.get(), edge.index}];
        } else {
            place = &leaves().of(edge.leaf).products;
        }
        if (!*place) *place = std::make_unique<ProductSum>();
        return **place;
    }

    void add_products(Node& node) {
        node.products = false;
        if (node.grads.empty()) node.grads.resize(node.outputs);
        for (auto at = products_.lower_bound({&node, 0}); at != products_.end() && at->first.first == &node;) {
            add_gradient(node.grads[at->first.second], at->second->evaluate(reach.options.create_graph));
            at = products_.erase(at);
        }
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
        if (const auto products = std::move(leaf.products))
            add_gradient(gradient, products->evaluate(reach.options.create_graph));
        const std::span<TensorRef> got(&gradient, 1);
        call_tensor_hooks(meta->extras.get(), got);
        if (!reach.options.accumulate) {
            leaves().of(meta).gradient = gradient;
            return;
        }
        call_node_hooks(meta->extras.get(), HookKind::before, got, nullptr);
        if (gradient) accumulate(*meta, gradient, reach.options.create_graph);
        call_leaf_hooks(*meta);
        call_node_hooks(meta->extras.get(), HookKind::after, {}, &got);
    }

    std::vector<TensorRef> finish() {
        for (size_t i = 0; i < leaves().size(); ++i)  // a hook's backward has counted anew at some of them
            if (LeafSum& leaf = leaves()[i]; (leaf.gradient || leaf.products) && !leaf.finished &&
                                             reach.wants({nullptr, leaf.meta, 0}))
                finish_leaf(leaf);
        if (reach.options.accumulate) return {};
        captured_.resize(reach.inputs.size());
        for (size_t i = 0; i < reach.inputs.size(); ++i)
            if (const LeafSum* leaf =
                    reach.inputs[i].leaf ? leaves().find(reach.inputs[i].leaf.get()) : nullptr)
                captured_[i] = leaf->gradient;
        return std::move(captured_);
    }

    SmallVector<Node*, 16> ready_;  // a heap: nodes whose gradients are whole, the latest on top
    // Products that are to be added to the gradients of a node's outputs.
    std::map<std::pair<const Node*, uint32_t>, std::unique_ptr<ProductSum>> products_;
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
