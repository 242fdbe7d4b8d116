#include "autograd/reach.h"

#include <algorithm>

#include "autograd/autograd.h"
#include "autograd/derivative.h"
#include "autograd/pass.h"
#include "base/check.h"
#include "call/busy.h"

namespace kiln {

uint64_t next_pass_number() {
    static uint64_t numbers = 0;
    return ++numbers;
}

namespace {
bool is_overwritten(const SavedTensor& saved) {
    return saved.tensor && saved.tensor->storage && saved.tensor->storage->version != saved.version;
}
// Whether backward may refuse a node: something it saved was overwritten.
bool may_refuse(const Node& node) {
    for (const NodeInput& input : node.inputs)
        if (is_overwritten(input.saved)) return true;
    return std::ranges::any_of(node.saved_outputs, is_overwritten) ||
           std::ranges::any_of(node.hidden, is_overwritten);
}
}  // namespace

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
    if (oldest < order_of_last_write)
        doubtful = doubtful || std::ranges::any_of(nodes, [](const Node* node) { return may_refuse(*node); });
    mark_needed();
}

bool Reach::discover(Node* root) {
    SmallVector<Node*, 16> stack;
    const bool alone = passes().size() == 1;
    auto enter = [&](Node* node) __attribute__((always_inline)) {
        if (node->run == number) return true;
        if (!alone) [[unlikely]] {
            if (is_passed_elsewhere(*node)) return false;
            if (is_passed_here(*node)) suspend(*node);
        }
        node->run = number;
        node->waiting = 0;
        node->needed = node->kept = false;
        if (node->rows || node->call) [[unlikely]] {
            launches = true;
            doubtful |= node->rows && node->rows->may_refuse();
        }
        node->from_zero.clear();
        oldest = std::min(oldest, node->order);
        doubtful |= node->released;
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

namespace {

// Whether its results are apart in the program: a cell's. Of other ops each comes from all inputs.
bool results_are_apart(const Node& node) {
    return node.outputs > 1 && node.inputs.size() > 1 && node.fn->cls == FnClass::program &&
           !node.context.object;
}

// The inputs that some outputs come from.
BitSet inputs_behind(const Node& node, const BitSet& outputs) {
    if (!results_are_apart(node) || outputs == BitSet::below(node.outputs))
        return BitSet::below(node.inputs.size());
    BitSet needed, found;
    for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i].edge) needed.add(i);
    for (const Target& target : derivative_fn(node, {needed, outputs, false}).targets)
        found.add(target.operand);
    return found;
}

size_t rows_of(const Node* node) { return node && node->rows ? size_t(node->rows->count) : 1; }
bool is_row(const Edge& edge) {
    return edge.node && hands_out(*edge.node) && edge.index < rows_of(edge.node.get());
}

// Where an edge leads, row by row: each(edge, row).
template <class Each>
void follow(const Edge& edge, Each&& each) {
    if (is_row(edge)) return each(edge, size_t(edge.index));
    for (size_t row = 0; edge && row < rows_of(edge.node.get()); ++row) each(edge, row);
}

// What lies behind some outputs of a node in a row.
template <class Each>
void follow_behind(const Node& node, size_t row, const BitSet& outputs, Each&& each) {
    auto follow_row = [&](const Edge& edge, size_t of) {  // an edge of rows to rows
        edge.node&& edge.node->rows ? each(edge, of) : follow(edge, each);
    };
    const Rows* rows = node.rows.get();
    if (rows && rows->kind == Rows::gathers) {
        const Rows::Place& place = rows->places[row];
        const Edge& edge = node.inputs[place.input].edge;
        return place.of_launch ? follow_row(edge, place.row) : follow(edge, each);
    }
    const bool hands = rows && hands_out(node);
    const BitSet behind = hands ? BitSet::of(0) : inputs_behind(node, outputs);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!behind.has(i)) continue;
        const Edge& edge = node.inputs[i].edge;
        hands || (rows && rows->inputs.has(i)) ? follow_row(edge, row) : follow(edge, each);
    }
}

}  // namespace

void Reach::find_depended() {
    std::vector<std::pair<const Node*, size_t>> left;
    auto mark = [&](const Edge& edge, size_t row) {
        const Node* node = edge.node.get();
        std::vector<BitSet>& known = depended[node ? (const void*)node : edge.leaf.get()];
        known.resize(rows_of(node));
        const size_t output = node && !hands_out(*node) ? edge.index : 0;
        if (known[row].has(output)) return;
        known[row].add(output);
        if (node) left.emplace_back(node, row);
    };
    for (const Root& root : roots) follow(root.edge, mark);
    while (!left.empty()) {
        const auto [node, row] = left.back();
        left.pop_back();
        follow_behind(*node, row, depended[node][row], mark);
    }
}

bool Reach::depends_on(const Edge& edge) {
    if (depended.empty()) find_depended();
    const Node* node = edge.node.get();
    const bool row = is_row(edge);
    if (row && node->rows->source) node = node->rows->source.get();  // whichever of its outputs it is
    const auto found = depended.find(node ? (const void*)node : edge.leaf.get());
    if (found == depended.end()) return false;
    const std::vector<BitSet>& rows = found->second;
    if (row) return bool(rows[edge.index]);
    if (node && !node->rows && results_are_apart(*node)) return rows[0].has(edge.index);
    return std::ranges::any_of(rows, [](const BitSet& outputs) { return bool(outputs); });
}

bool Reach::leads_to_asked(const Edge& from) {
    if (inputs.empty() || !launches) return true;
    bool found = false;
    std::vector<std::pair<const Node*, size_t>> left, seen;
    auto look = [&](const Edge& edge, size_t row) {
        for (const Edge& input : inputs)
            found = found || (edge.node ? input.node == edge.node && (!is_row(input) || input.index == row)
                                        : input.leaf == edge.leaf);
        if (!edge.node) return;
        std::vector<uint8_t>& known = leads[edge.node.get()];
        known.resize(rows_of(edge.node.get()));
        if (known[row] == yes) found = true;
        if (std::exchange(known[row], known[row] ? known[row] : no) == unknown) {
            left.emplace_back(edge.node.get(), row);
            seen.emplace_back(left.back());
        }
    };
    follow(from, look);
    const auto starts = seen;
    while (!found && !left.empty()) {
        const auto [node, row] = left.back();
        left.pop_back();
        follow_behind(*node, row, BitSet::below(node->outputs), look);
    }
    if (!found) return false;
    for (const auto& [node, row] : seen) leads[node][row] = unknown;
    if (starts.size() == 1) leads[starts[0].first][starts[0].second] = yes;
    return true;
}

}  // namespace kiln
