// Nodes of launches on rows (batch/): rows are handed out, and gathered.
#include <algorithm>
#include <numeric>

#include "autograd/pass.h"

namespace kiln {

void Pass::visit_rows(Node& node) {
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

void Pass::give_back(Node& node) {
    const TensorRef gradient = std::move(node.grads[0]);
    node.grads.clear();
    const std::vector<Rows::Place>& places = node.rows->places;
    Results rows;
    std::vector<uint32_t> by_input(places.size());  // places, those of one input together
    std::iota(by_input.begin(), by_input.end(), 0);
    std::ranges::stable_sort(by_input, {}, [&](uint32_t i) { return places[i].input; });
    SmallVector<uint32_t, 64> from, to;
    auto next = by_input.begin();
    for (uint32_t k = 0; k < node.inputs.size(); ++k) {
        const Edge& edge = node.inputs[k].edge;
        from.clear(), to.clear();
        for (; next != by_input.end() && places[*next].input == k; ++next)
            from.push_back(*next), to.push_back(places[*next].row);
        if (edge && reach.wants(edge)) {
            if (edge.node && in_place(*edge.node)) {
                add_rows(*edge.node, *gradient, from, to);
            } else {
                if (rows.empty()) rows = callbacks.unstacked(gradient);
                for (size_t i = 0; i < from.size(); ++i)
                    add({edge.node, edge.leaf, places[from[i]].of_launch ? to[i] : edge.index},
                        rows[from[i]]);
            }
        }
        pass(edge);
    }
}

}  // namespace kiln
