#include "autograd/reach.h"

#include "autograd/pass.h"
#include "base/check.h"
#include "call/busy.h"

namespace kiln {

uint64_t next_pass_number() {
    static uint64_t numbers = 0;
    return ++numbers;
}

void Reach::find() {
    leaves.begin(number);
    auto discovered = [&](const Root& root) { return !root.edge.node || discover(root.edge.node.get()); };
    while (!std::ranges::all_of(roots, discovered)) {  // shares nodes with another thread's pass
        for (Node* node : nodes) node->run = 0;
        nodes.clear();
        resume();
        number = next_pass_number();  // so that what this pass has marked, leaves too, is not taken for the
                                      // new one's
        leaves.begin(number);
        Away here;
        KILN_CHECK(wait_for_others(), runtime, "backward: the interpreter is ending");
    }
    mark_needed();
}

bool Reach::discover(Node* root) {
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
        node->needed = node->kept = false;
        if (node->rows) [[unlikely]]
            launches = true;
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

void Reach::mark_needed() {
    if (inputs.empty()) {
        for (Node* node : nodes) node->needed = true;
        return;
    }
    std::sort(nodes.begin(), nodes.end(), is_earlier);
    for (Node* node : nodes) node->needed = leads_on(*node) || asks_for(*node);
}

void Reach::suspend(Node& node) {
    suspended.push_back({&node, node.run, node.waiting, node.needed, node.kept, node.from_zero, {}});
    std::swap(suspended.back().grads, node.grads);
    if (!node.rows) return;
    std::swap(suspended.back().parts, node.rows->parts);
    std::swap(suspended.back().arrived, node.rows->arrived);
}

void Reach::resume() {
    for (Suspended& s : suspended) {
        s.node->run = s.run;
        s.node->waiting = s.waiting;
        s.node->needed = s.needed;
        s.node->kept = s.kept;
        s.node->from_zero = s.from_zero;
        std::swap(s.node->grads, s.grads);
        if (!s.node->rows) continue;
        std::swap(s.node->rows->parts, s.parts);
        std::swap(s.node->rows->arrived, s.arrived);
    }
    suspended.clear();
}

}  // namespace kiln
