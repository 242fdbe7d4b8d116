// Sums whose parts come in the order of launches: they are kept, and added in that of the calls.
#include "autograd/pass.h"
#include "call/dispatch.h"

namespace kiln {

bool Pass::keeps(const Edge& edge) const {
    if (edge.node) return edge.node->kept || edge.node->waiting > 1;
    const LeafSum* leaf = leaves().find(edge.leaf.get());
    return leaf && (leaf->kept || leaves().edges_left(*edge.leaf) > 1);
}

KeptParts& Pass::kept_at(const Edge& edge) {
    if (edge.node) {
        edge.node->kept = true;
        return kept_[{edge.node.get(), edge.index}];
    }
    LeafSum& leaf = leaves().of(edge.leaf);
    if (!leaf.kept) leaf.kept = std::make_shared<KeptParts>();
    return *leaf.kept;
}

void Pass::add_in_order(const Edge& edge, TensorRef gradient, Part part, PartOf of) {
    if (is_row(edge)) {
        const bool single = edge.index < uint64_t(edge.node->rows->count);
        RowsPart& row = edge.node->rows->parts.emplace_back();
        row.given = {.values = std::move(gradient), .rows = {}, .from = {}, .part = part};
        if (single) row.given.rows.push_back(edge.index);
        row.single = single;
        row.call = of.call;
        row.argument = of.argument;
    } else if (edge.node && edge.node->rows) {  // what a launch read, where that is differentiated again
        RowsOfGradient& given = edge.node->rows->arrived.emplace_back();
        given.values = std::move(gradient);
        given.part = part;
        given.call = of.call;
    } else if (keeps(edge)) {
        kept_at(edge).add(std::move(gradient), part, of);
    } else {
        sum_at(edge).add(std::move(gradient), part);
    }
}

void Pass::add_kept(Node& node) {
    node.kept = false;
    if (node.grads.empty()) node.grads.resize(node.outputs);
    for (auto at = kept_.lower_bound({&node, 0}); at != kept_.end() && at->first.first == &node;) {
        TensorRef sum = at->second.evaluate(by_ops(), reach.options.create_graph);
        if (sum) add_gradient(node.grads[at->first.second], std::move(sum));
        at = kept_.erase(at);
    }
}

void Pass::keep_slices(Node& node) {
    auto gradients = std::make_shared<std::vector<TensorRef>>();
    for (TensorRef& gradient : node.grads) gradients->push_back(std::move(gradient));
    const uint64_t call = call_of(node);
    auto write = [held = NodeRef(&node), gradients](SumOfParts sum, std::span<const uint32_t>) {
        held->grads.resize(gradients->size());
        for (size_t k = 0; k < gradients->size(); ++k) held->grads[k] = (*gradients)[k];
        sum.add_at_places(*held);
        held->grads.clear();
    };
    kept_at(node.inputs[0].edge).add_written(std::move(write), {&call, 1}, {}, 0);
}

void Pass::keep_scattered(Node& node, const compiler::Asked& asked, std::span<const uint64_t> calls,
                          std::span<const uint32_t> from, const TakenRows& taken) {
    Fn& fn = derivative_fn(node, asked);
    const NodeInput& input = node.inputs[size_t(asked.onto)];
    Kept keep;
    const TensorRef nothing;
    const Operands own = derivative_operands(node, fn, keep, reach.options.create_graph, nothing, taken);
    struct Held {
        TensorRef tensor;
        Number number;
        bool rows;
    };
    std::vector<Held> held;
    size_t sum_at = 0, count_at = own.size();
    for (size_t k = 0; k < own.size(); ++k) {
        const Source& source = fn.sources[k];
        if (source.kind == Source::sum) sum_at = k;
        bool rows = false;
        if (node.rows) {
            const auto i = source.index;
            const bool of_input = source.kind == Source::input || source.kind == Source::shape;
            rows = source.kind == Source::grad || source.kind == Source::output ||
                   (of_input && node.rows->inputs.has(i)) ||
                   (source.kind == Source::hidden && taken.hidden.has(i));
            if (source.kind == Source::number && node.rows->counted && i == 1) count_at = k;
        }
        held.push_back({TensorRef(own[k].tensor), own[k].number, rows});
    }
    const TensorRef like = new_tensor(input.dtype, input.saved.tensor->sizes, StorageRef());
    auto write = [&fn, like, sum_at, count_at, held = std::move(held), by = by_ops(),
                  graph = reach.options.create_graph](SumOfParts sum, std::span<const uint32_t> rows) {
        if (sum.sum)
            sum.prepare_for_places();
        else
            sum.sum = full_like(*like, 0.0), sum.from_zero.add(sum.place);
        std::vector<TensorRef> taken_rows;
        Operands operands;
        std::vector<uint32_t> twice(rows.begin(), rows.end());
        for (size_t k = 0; k < held.size(); ++k) {
            if (k == sum_at) {
                operands.push_back({nullptr, {}});
            } else if (k == count_at) {
                operands.push_back({nullptr, Number::of(int64_t(rows.size()))});
            } else if (!held[k].rows) {
                operands.push_back({held[k].tensor.get(), held[k].number});
            } else if (const TensorRef& all = held[k].tensor; !all->storage) {
                Dims sizes = all->sizes;
                sizes[0] = int64_t(rows.size());
                taken_rows.push_back(new_tensor(all->dtype, sizes, StorageRef()));
                operands.push_back({taken_rows.back().get(), {}});
            } else if (!by) {
                taken_rows.push_back(rows_at(*all, rows));
                operands.push_back({taken_rows.back().get(), {}});
            } else {
                const Results unstacked = callbacks.unstacked(all);
                std::vector<TensorRef> some;
                for (uint32_t row : rows) some.push_back(unstacked[row]);
                some.push_back(nullptr);
                Dims sizes = all->sizes;
                sizes[0] = int64_t(rows.size());
                taken_rows.push_back(callbacks.stacked(some, *new_tensor(all->dtype, sizes, StorageRef())));
                operands.push_back({taken_rows.back().get(), {}});
            }
        }
        const TensorRef before = std::exchange(sum.sum, nullptr);
        operands[sum_at] = {before.get(), {}};
        const std::span<const Operand> all(operands.data(), operands.size());
        sum.sum = graph ? std::move(replay(compiler::recipe_for({&fn, all}), all)[0])
                        : std::move(kiln::run(fn, all, {&before, 1})[0]);
    };
    kept_at(input.edge).add_written(std::move(write), calls, from, uint32_t(asked.onto));
}

}  // namespace kiln
