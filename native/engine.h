// Backward passes: the nodes behind some roots, each visited once, the latest first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accumulate.h"
#include "dispatch.h"
#include "node.h"
#include "small_vector.h"

namespace kiln {

struct BackwardOptions {
    bool retain_graph = false;
    bool create_graph = false;
    bool accumulate = true;  // into leaves' .grad; otherwise the gradients of `inputs` are returned
    bool batched = false;    // a batch of gradients of each root: every gradient has one dim more, in front
};

// Where backward starts, and with what gradient.
struct Root {
    Edge edge;
    TensorRef gradient;
};
// A tensor's, number i of those given; null: ones for a single element.
Root root_of(Tensor& tensor, TensorRef gradient, size_t i, bool batched);

// Gradients of `roots`; inputs: leaves and outputs of nodes.
std::vector<TensorRef> run_backward(std::span<const Root> roots, std::span<const Edge> inputs,
                                    const BackwardOptions& options);

// One pass. A node is of one pass at a time: one that meets nodes of another thread's pass waits for its end.
class Pass {
public:
    Pass(std::span<const Root> roots, std::span<const Edge> inputs, const BackwardOptions& options);
    ~Pass();
    Pass(const Pass&) = delete;

    // The gradients of the inputs, unless they are accumulated.
    std::vector<TensorRef> run();

    uint64_t number() const { return number_; }
    uint64_t thread() const { return thread_; }
    bool batched() const { return options_.batched; }
    Node* current() const { return current_; }
    // Whether it comes, or came, to what an edge leads to.
    bool will_visit(const Edge& edge) const;
    // Calls a function of the interpreter's when it is over.
    void call_at_end(Opaque callback) { callbacks_.push_back(std::move(callback)); }

private:
    // ---- which nodes: before the first visit ----
    void find_nodes();
    bool discover_all();
    bool discover(Node* root);
    static bool passed_elsewhere(const Node& node);
    void count_leaves();
    void mark_needed();
    bool wants(const Edge& edge) const;
    bool is_input(const Node& node) const;
    bool leads_on(const Node& node) const;

    // ---- the way of gradients ----
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
    void deliver(const Edge& edge, TensorRef gradient, bool counted);
    void make_ready(Node& node);
    Node* take_latest();
    void visit(Node& node);
    void watched_visit(Node& node);
    bool prepare(Node& node);
    void pass_over(Node& node);
    Given differentiate(Node& node);
    TensorRef fitted(const Node& node, size_t i, TensorRef gradient) const;
    Given after(Node& node, Given given);
    void capture(const Node& node);

    // ---- its end ----
    void finish_leaf(LeafSum& leaf);
    std::vector<TensorRef> finish();

    std::span<const Root> roots_;
    std::span<const Edge> inputs_;
    const BackwardOptions options_;
    const uint64_t thread_;
    uint64_t number_;
    bool leaves_have_hooks_ = false;
    SmallVector<Node*, 16> found_;  // all nodes it will come to
    SmallVector<Node*, 16> ready_;  // a heap: nodes whose gradients are whole, the latest on top
    LeafSums leaves_;
    std::vector<TensorRef> captured_;  // gradients of `inputs`
    Node* current_ = nullptr;          // in anomaly mode: the one that is visited
    std::vector<Opaque> callbacks_;
};

Pass* own_pass();  // this thread's innermost, or null

// This thread's number. One that works for another, which waits for it, takes that one's.
uint64_t this_thread();
void work_for(uint64_t thread);
// Whether so many passes are nested on this thread's stack that the next needs another one.
bool nested_too_deeply();

}  // namespace kiln
