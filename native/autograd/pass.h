// A backward pass: what it does at each node. Internal to the engine; engine.h is how it is called.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "autograd/derivative.h"
#include "autograd/hooks.h"
#include "autograd/kept_parts.h"
#include "autograd/reach.h"
#include "autograd/rows.h"
#include "call/busy.h"
#include "record/record.h"

namespace kiln {

class Pass;
// What a node saved: whether there is anything, and to give it up.
bool saves_anything(const Node& node);
void release_saved(Node& node);
TensorRef sum_to(const TensorRef& gradient, const Tensor& like);
// The passes under way, of all threads: those begun last at the end.
std::vector<Pass*>& passes();
inline bool is_earlier(const Node* a, const Node* b) { return a->order < b->order; }
// Whether another thread's pass has the node before it.
bool is_passed_elsewhere(const Node& node);
// Whether a pass of this thread has it before it; raises if one is just there, as what runs there could call
// itself without end.
bool is_passed_here(const Node& node);

class Pass {
public:
    Pass(std::span<const Root> roots, std::span<const Edge> inputs, const BackwardOptions& options)
        : thread(this_thread()), reach{roots, inputs, options} {
        passes().push_back(this);
    }
    Pass(const Pass&) = delete;
    ~Pass() {
        for (Node* node : reach.nodes) {  // none, unless an error ended it
            if (node->run != reach.number) continue;
            node->grads.clear();
            if (node->rows) node->rows->parts.clear(), node->rows->arrived.clear();
        }
        reach.resume();
        std::erase(passes(), this);
        call_numbers.forward = 0;
        tell_others();
    }

    std::vector<TensorRef> run();
    // A batch of gradients through launches, whose rows would be taken for it: a pass for each.
    std::vector<TensorRef> run_one_by_one();

    bool will_visit(const Edge& edge) const;

    // How many rows a product that is a part of a gradient has, in each call; whether to keep them is less
    // than to add arrays of the matrix's size.
    static int64_t rows_of(const Node& node, const Product& product);
    static bool is_worth_keeping(const Dims& matrix, int64_t rows);

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
        BitSet scattered = {};
        size_t taken = 0;
        TensorRef of(size_t i) {  // called with ascending i: moves the gradient out
            const bool has = taken < gradients.size() && (targets.empty() || targets[taken].operand == i);
            return has ? std::move(gradients[taken++]) : nullptr;
        }
    };

    LeafSums& leaves() { return reach.leaves; }
    const LeafSums& leaves() const { return reach.leaves; }

    // The sum of the gradients of what an edge leads to.
    SumOfParts sum_at(const Edge& edge) {
        if (!edge.node) {
            LeafSum& leaf = leaves().of(edge.leaf);
            return {leaf.gradient, leaf.from_zero, 0};
        }
        Node& node = *edge.node;
        if (node.grads.empty()) node.grads.resize(node.outputs);
        return {node.grads[edge.index], node.from_zero, edge.index};
    }

    // Adds a gradient, if there is one, to those of what the edge leads to.
    void add(const Edge& edge, TensorRef gradient, Part part, PartOf of) {
        if (!gradient || (edge.node && !edge.node->needed)) return;
        if (reach.launches) [[unlikely]]
            return add_in_order(edge, std::move(gradient), part, of);
        sum_at(edge).add(std::move(gradient), part);
    }
    static PartOf part_of(const Node& node, size_t input) { return {call_of(node), uint32_t(input)}; }

    // ---- parts that come in the order of launches (pass_kept.cpp) ----

    void add_in_order(const Edge& edge, TensorRef gradient, Part part, PartOf of);
    // Whether parts of what the edge leads to are kept until all are there.
    bool keeps(const Edge& edge) const;
    KeptParts& kept_at(const Edge& edge);
    void add_kept(Node& node);
    // Keeps what writes the gradients of a node, slices or picked elements, into the sum of an input's.
    void keep_slices(Node& node);
    void keep_scattered(Node& node, const compiler::Asked& asked, std::span<const uint64_t> calls,
                        std::span<const uint32_t> from, const TakenRows& taken);

    // One of the edges that were counted is passed; after the last of them it goes on from there.
    void pass(const Edge& edge) {
        if (edge.node) {
            Node& node = *edge.node;
            if (--node.waiting) return;
            ready_.push_back(&node);
            std::push_heap(ready_.begin(), ready_.end(), is_earlier);
        } else if (edge.leaf && leaves().passed_last_edge(*edge.leaf) && !reach.doubtful &&
                   reach.wants(edge)) {
            finish_leaf(leaves().of(edge.leaf));
        }
    }

    Node* take_latest();

    // Whether an edge leads to a row of what a launch gave.
    static bool is_row(const Edge& edge) { return edge.node && hands_out(*edge.node); }

    // ---- nodes of launches (pass_rows.cpp) ----

    // Whether gradients are added by calls of ops: they are differentiated again, or recorded.
    bool by_ops() const { return reach.options.create_graph || current_recording(); }

    void visit_rows(Node& node);
    void visit_handed(Node& node);
    void visit_launch(Node& node);
    // The gradient of gathered rows goes back to where they came from.
    void give_back(Node& node);
    // Differentiates some rows of a launch (empty: all), with the gradients of these outputs.
    void differentiate_rows(Node& node, const std::vector<RowsOfGradient>& arrived, const BitSet& defined,
                            const std::vector<uint32_t>& rows);
    void add_rows(const Edge& edge, RowsOfGradient gradient, const Rows& launch, uint32_t argument,
                  std::vector<uint32_t> of = {});
    TensorRef fitted_rows(const Node& node, size_t i, TensorRef gradient, Target::Role role) const;
    void check_rows(const Node& node, std::span<const uint32_t> some) const;
    // A hook at a launch sees what all rows get.
    void show_to_hooks(Node& node, std::vector<RowsOfGradient>& arrived);

    void visit(Node& node);

    // Whether the gradients of slices can be written where they belong; else they are arrays with zeros
    // around.
    bool adds_at_places(const Node& node) const;

    // Before a node's derivative: its hooks change the gradients it got, and what is asked for is taken from
    // them. Whether they go on from here.
    bool prepare(Node& node);
    // Whether what is differentiated depends on one of its outputs.
    bool depends_on(Node& node);
    // Hooks at an output of a node, or a leaf; null where no gradient came but one could have.
    void call_hooks(const Extras* extras, Edge at, std::span<TensorRef> gradients);

    void pass_over(Node& node);

    void watched_visit(Node& node);

    // The gradients of the node's inputs that are wanted, from those of its outputs that are defined.
    Given differentiate(Node& node);

    // Adds gradients of picked elements at their places in the sums that are there; those of which inputs.
    BitSet add_scattered(Node& node, const Fn& fn, const compiler::Asked& asked);

    void add_onto_sum(Node& node, const compiler::Asked& asked);

    // All results of a derivative, those that are its operands as they are too.
    Results results_of(const Node& node, Fn& fn, std::span<const Operand> operands);

    // Of a view of all of its input the gradient looks the other way; null where that is no view, or of
    // others.
    TensorRef gradient_of_view(const Node& node) const;

    // Of arrays joined, views of their parts.
    Given gradients_of_join(const Node& node) const;

    // ---- products of matrices that several calls share ----

    // The matrix that an edge leads to, through transpositions nobody looks at; and whether more of its
    // gradient is to come, or there is a product of others already.
    struct Matrix {
        Edge edge;
        bool transposed = false, shared = false;
    };

    Matrix matrix_at(const Edge& edge) const;

    bool is_looked_through(const Node& node) const;
    // Where the transposed matrix of such a row comes from; nowhere: it is not looked through.
    Edge behind_row(const Edge& row) const;

    // The inputs whose products are not to be computed here: they are leaves, other calls have such products
    // too, or this one has several, and to keep their rows is less than to add arrays of the matrix's size.
    BitSet products_that_wait(const Node& node, const Fn& fn) const;

    // The gradients that a derivative gives, an entry for each input of the node; factors are kept.
    Given without_factors(const Node& node, const Fn& fn, Results results);

    static TensorRef as_rows(const TensorRef& x, int64_t width);

    void keep_product(const Edge& edge, TensorRef left, TensorRef right, PartOf of);

    // A gradient in the shape and dtype of the input it belongs to.
    TensorRef fitted(const Node& node, size_t i, TensorRef gradient) const;

    // Hooks see what goes on, and may change it: one gradient for each entry of next_functions.
    Given after(Node& node, Given given);

    // Takes what is asked for of the gradients of a node's outputs, and puts into .grad what tensors that are
    // no leaves keep there.
    void capture(Node& node);

    void finish_leaf(LeafSum& leaf);
    void keep_gradient(AutogradMeta& meta, const TensorRef& gradient);

    std::vector<TensorRef> finish();

    SmallVector<Node*, 16> ready_;      // a heap: nodes whose gradients are whole, the latest on top
    ProductSum::Last last_factors_[2];  // left, right
    // Parts that are to be added to the gradients of a node's outputs.
    std::map<std::pair<const Node*, uint32_t>, KeptParts> kept_;
    std::vector<TensorRef> captured_;                  // gradients of the inputs asked for
    std::vector<std::pair<MetaRef, TensorRef>> late_;  // what tensors that are no leaves keep at the end
};

}  // namespace kiln
