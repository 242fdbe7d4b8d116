// Nodes of launches on rows (batch/): the launch, what hands its rows out, and what gathers rows for it.
#include <algorithm>
#include <numeric>

#include "autograd/pass.h"
#include "call/dispatch.h"

namespace kiln {

namespace {

constexpr uint64_t latest = ~uint64_t(0) - 1;  // behind all calls but before what a pass is begun with

}  // namespace

void Pass::visit_rows(Node& node) {
    switch (node.rows->kind) {
    case Rows::hands_out: return visit_handed(node);
    case Rows::launch: return visit_launch(node);
    case Rows::gathers: return give_back(node);
    }
}

void Pass::visit_handed(Node& node) {
    Rows& rows = *node.rows;
    if (node.kept) {  // products of matrices that rows are: they come last
        add_kept(node);
        for (uint32_t r = 0; r <= uint32_t(rows.count); ++r)
            if (TensorRef sum = std::move(node.grads[r]))
                add_in_order({NodeRef(&node), nullptr, r}, std::move(sum), Part::whole, {0, ~uint32_t(0)});
        node.grads.clear();
    }
    RowsOfGradient sum;
    if (node.needed) sum = sum_of_rows(node, by_ops());
    if (node.needed && (node.extras || !reach.inputs.empty())) {  // looked at row by row
        node.grads.resize(node.outputs);
        if (sum.values) {
            const Results own = by_ops() ? callbacks.unstacked(sum.values) : Results();
            for (size_t i = 0; i < sum.count(); ++i)
                node.grads[sum.row(i)] = by_ops() ? own[i] : row_of(*sum.values, int64_t(i));
        }
        if (!prepare(node)) return pass_over(node);
        rows.parts.clear();
        for (uint32_t r = 0; r < uint32_t(rows.count); ++r)
            if (TensorRef own = std::move(node.grads[r]))
                add_in_order({NodeRef(&node), nullptr, r}, std::move(own), Part::whole, {0, 0});
        sum = sum_of_rows(node, by_ops());
    }
    node.grads.clear();
    rows.parts.clear();
    const Edge& edge = node.inputs[0].edge;
    if (sum.values && edge.node && edge.node->needed) {
        std::vector<RowsOfGradient>& arrived = edge.node->rows->arrived;
        arrived.resize(edge.node->outputs);
        arrived[edge.index] = std::move(sum);
    }
    pass(edge);
}

void Pass::give_back(Node& node) {
    const Rows& own = *node.rows;
    if (node.kept) {  // of what reads the rows together, where that is differentiated again: it is later
        add_kept(node);
        node.rows->arrived.push_back(
            {.values = std::move(node.grads[0]), .rows = {}, .from = {}, .call = latest});
        node.grads.clear();
    }
    const std::vector<RowsOfGradient> arrived = std::exchange(node.rows->arrived, {});
    const std::vector<Rows::Place>& places = own.places;
    for (const RowsOfGradient& gradient : arrived) {
        Results rows;
        std::vector<uint32_t> by_input(gradient.count());  // rows, those of one input together
        std::iota(by_input.begin(), by_input.end(), 0);
        auto input_of = [&](uint32_t i) { return places[gradient.row(i)].input; };
        if (node.inputs.size() > 1) std::ranges::stable_sort(by_input, {}, input_of);
        for (auto next = by_input.begin(); next != by_input.end();) {
            const uint32_t input = input_of(*next);
            const Edge& edge = node.inputs[input].edge;
            RowsOfGradient part{.values = gradient.values,
                                .rows = {},
                                .from = {},
                                .part = gradient.part,
                                .call = gradient.call};
            std::vector<uint32_t> of;
            for (; next != by_input.end() && input_of(*next) == input; ++next) {
                const uint32_t row = gradient.row(*next);
                if (places[row].of_launch) {
                    part.rows.push_back(places[row].row);
                    part.from.push_back(gradient.place(*next));
                    of.push_back(row);
                } else if (edge && reach.wants(edge)) {
                    if (by_ops() && rows.empty()) rows = callbacks.unstacked(gradient.values);
                    const uint32_t at = gradient.place(*next);
                    add(edge, by_ops() ? rows[at] : row_of(*gradient.values, at), gradient.part,
                        {gradient.call ? gradient.call : (*own.calls)[row], own.argument});
                }
            }
            if (!part.rows.empty()) add_rows(edge, std::move(part), own, own.argument, std::move(of));
        }
    }
    pass_over(node);
}

// Adds rows of a gradient to those of what an edge leads to. `of`: which of the launch's rows they are of,
// where they go to others.
void Pass::add_rows(const Edge& edge, RowsOfGradient gradient, const Rows& launch, uint32_t argument,
                    std::vector<uint32_t> of) {
    if (!gradient.values || !edge || !reach.wants(edge)) return;
    if (edge.node->rows->kind == Rows::gathers) {
        edge.node->rows->arrived.push_back(std::move(gradient));
        return;
    }
    RowsPart& part = edge.node->rows->parts.emplace_back();
    part.call = gradient.call;
    if (!part.call) part.calls = launch.calls;
    part.given = std::move(gradient);
    part.of = std::move(of);
    part.argument = argument;
}

void Pass::visit_launch(Node& node) {
    Rows& rows = *node.rows;
    std::vector<RowsOfGradient> arrived = std::exchange(rows.arrived, {});
    if (node.extras && !arrived.empty()) show_to_hooks(node, arrived);
    bool alike = true;  // all outputs got gradients of the same rows
    const RowsOfGradient* first = nullptr;
    BitSet all;
    for (size_t k = 0; k < arrived.size(); ++k) {
        if (!arrived[k].values) continue;
        all.add(k);
        if (first && first->rows != arrived[k].rows) alike = false;
        if (!first) first = &arrived[k];
    }
    if (!first || !node.needed) return pass_over(node);
    call_numbers.forward = node.line.call;
    if (alike) {
        differentiate_rows(node, arrived, all, first->rows);
    } else {
        std::vector<BitSet> defined(size_t(rows.count));
        for (size_t k = 0; k < arrived.size(); ++k)
            for (size_t i = 0; arrived[k].values && i < arrived[k].count(); ++i)
                defined[arrived[k].row(i)].add(k);
        std::map<BitSet, std::vector<uint32_t>> groups;
        for (uint32_t r = 0; r < uint32_t(rows.count); ++r)
            if (defined[r]) groups[defined[r]].push_back(r);
        for (const auto& [mask, some] : groups) differentiate_rows(node, arrived, mask, some);
    }
    node.grads.clear();
    pass_over(node);
    if (reach.options.retain_graph || !saves_anything(node)) return;
    if (rows.released.empty()) rows.released.resize(size_t(rows.count));
    if (alike && first->rows.empty())
        rows.released.assign(size_t(rows.count), true);
    else
        for (const RowsOfGradient& gradient : arrived)
            for (size_t i = 0; gradient.values && i < gradient.count(); ++i)
                rows.released[gradient.row(i)] = true;
    if (std::ranges::find(rows.released, false) == rows.released.end()) {
        release_saved(node);
        rows.saved.clear();
    }
}

// A gradient in the rows and dtype of the input it belongs to.
TensorRef Pass::fitted_rows(const Node& node, size_t i, TensorRef gradient, Target::Role role) const {
    const NodeInput& input = node.inputs[i];
    const int64_t count = gradient->sizes[0];
    if (input.saved.tensor) {
        const Dims& sizes = input.saved.tensor->sizes;
        Dims rows{count}, aligned{count};
        const bool shared = !node.rows->inputs.has(i);
        for (int d = shared ? sizes.ndim() + 1 : sizes.ndim(); d < gradient->ndim(); ++d)
            aligned.push_back(1);
        for (size_t d = shared ? 0 : 1; d < sizes.size(); ++d)
            aligned.push_back(sizes[d]), rows.push_back(sizes[d]);
        if (role == Target::gradient && gradient->sizes != aligned)
            gradient = sum_to(gradient, *new_tensor(gradient->dtype, aligned, StorageRef()));
        if (gradient->sizes != rows) gradient = reshaped(gradient, rows);
    }
    return gradient->dtype == input.dtype ? std::move(gradient) : converted(gradient, input.dtype);
}

void Pass::differentiate_rows(Node& node, const std::vector<RowsOfGradient>& arrived, const BitSet& defined,
                              const std::vector<uint32_t>& some) {
    const Rows& launch = *node.rows;
    BitSet needed, shared;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (reach.wants(node.inputs[i].edge)) needed.add(i);
        if (!node.inputs[i].is_number && !launch.inputs.has(i)) shared.add(i);
    }
    if (!needed) return;
    check_rows(node, some);
    const bool at_points = node.fn->cls == FnClass::pointwise;
    std::vector<uint32_t> run = some;  // of one row two: no dim of size 1 in place of the rows
    if (run.size() == 1) run.push_back(run[0]);
    const auto count = run.empty() ? size_t(launch.count) : run.size();
    auto set_grads = [&](bool whole) {
        node.grads.clear();
        node.grads.resize(node.outputs);
        for (size_t k = 0; k < arrived.size(); ++k) {
            if (!defined.has(k)) continue;
            const RowsOfGradient& given = arrived[k];
            if (!whole ? given.rows == run : given.rows.empty()) {
                node.grads[k] = given.values;
                continue;
            }
            std::vector<int32_t> place(size_t(launch.count), -1);
            for (size_t i = 0; i < given.count(); ++i) place[given.row(i)] = int32_t(given.place(i));
            Dims sizes = given.values->sizes;
            if (by_ops()) {
                const Results own = callbacks.unstacked(given.values);
                std::vector<TensorRef> rows(size_t(launch.count) + 1);
                for (size_t r = 0; r < size_t(launch.count); ++r)
                    if (place[r] >= 0) rows[r] = own[size_t(place[r])];
                sizes[0] = launch.count;
                node.grads[k] =
                    callbacks.stacked(rows, *new_tensor(given.values->dtype, sizes, StorageRef()));
            } else if (!whole) {
                std::vector<uint32_t> from;
                for (uint32_t r : run) from.push_back(uint32_t(place[r]));
                node.grads[k] = rows_at(*given.values, from);
            } else {
                sizes[0] = launch.count;
                node.grads[k] = full_like(*new_tensor(given.values->dtype, sizes, StorageRef()), 0.0);
                for (size_t r = 0; r < size_t(launch.count); ++r) {
                    if (place[r] < 0) continue;
                    const TensorRef to = row_of(*node.grads[k], int64_t(r)),
                                    from = row_of(*given.values, place[r]);
                    const Operand operand{from.get(), {}};
                    kiln::run(*core_fns().copy, {&operand, 1}, {&to, 1});
                }
            }
        }
    };
    bool taken_rows = !some.empty() && !by_ops();
    set_grads(!taken_rows);
    compiler::Asked asked{needed, defined, reach.options.create_graph && !node.hidden.empty()};
    if (!at_points) asked.shared = shared;
    Fn* fn = &derivative_fn(node, asked);
    if (!fn->products.empty()) {
        asked.factored = products_that_wait(node, *fn);
        if (asked.factored) fn = &derivative_fn(node, asked);
    }
    if (taken_rows && !fn->hidden_rows) {  // what is saved cannot be taken apart: all rows run
        taken_rows = false;
        set_grads(true);
    }
    if (fn->targets.empty()) return;
    const TakenRows taken{taken_rows ? std::span<const uint32_t>(run) : std::span<const uint32_t>(),
                          fn->hidden_rows.value_or(BitSet())};
    std::vector<uint64_t> calls;
    std::vector<uint32_t> from;  // where in what is computed the rows are
    const size_t rows = some.empty() ? count : some.size();
    for (size_t i = 0; i < rows; ++i) {
        calls.push_back((*launch.calls)[some.empty() ? i : some[i]]);
        if (!some.empty()) from.push_back(taken_rows ? uint32_t(i) : some[i]);
    }
    for (size_t i = 0; i < fn->scattered.end(); ++i)
        if (fn->scattered.has(i) && shared.has(i)) {
            keep_scattered(node, {BitSet::of(i), defined, asked.redo, {}, int(i), asked.shared}, calls, from,
                           taken);
            asked.needed.remove(i);
        }
    if (asked.needed != needed) {
        if (!asked.needed) return;
        fn = &derivative_fn(node, asked);
    }
    Kept keep;
    const Operands own = derivative_operands(node, *fn, keep, reach.options.create_graph, nullptr, taken);
    Results results = results_of(node, *fn, {own.data(), own.size()});
    const bool slices = node.fn->cls == FnClass::view && gives_slices(node);
    for (size_t k = 0; k < results.size(); ++k) {
        const Target& target = fn->targets[k];
        const size_t i = target.operand;
        const NodeInput& input = node.inputs[i];
        if (target.role == Target::right) continue;
        if (target.role == Target::left) {
            const Dims& sizes = input.saved.tensor->sizes;
            TensorRef left = contiguous(as_rows(results[k], sizes[0]));
            TensorRef right = contiguous(as_rows(results[k + 1], sizes[1]));
            const Matrix matrix = matrix_at(input.edge);
            if (matrix.transposed) std::swap(left, right);
            const int64_t each = left->sizes[0] / int64_t(taken_rows ? count : size_t(launch.count));
            kept_at(matrix.edge)
                .add_products(std::move(left), std::move(right), each, calls, from, uint32_t(i));
        } else if (launch.inputs.has(i)) {
            RowsOfGradient gradient{fitted_rows(node, i, std::move(results[k]), target.role), some, from,
                                    slices ? Part::slice : Part::whole};
            add_rows(input.edge, std::move(gradient), launch, uint32_t(i));
        } else if (target.role == Target::rows || at_points) {
            TensorRef values = contiguous(fitted_rows(node, i, std::move(results[k]), target.role));
            if (is_row(input.edge)) {
                const Results each = by_ops() ? callbacks.unstacked(values) : Results();
                for (size_t r = 0; r < rows; ++r) {
                    const uint32_t at = from.empty() ? uint32_t(r) : from[r];
                    add(input.edge, by_ops() ? each[at] : row_of(*values, at), Part::whole,
                        {calls[r], uint32_t(i)});
                }
            } else {
                kept_at(input.edge).add_rows(std::move(values), calls, from, uint32_t(i));
            }
        } else {
            add(input.edge, fitted(node, i, std::move(results[k])), Part::whole, {calls[0], uint32_t(i)});
        }
    }
}

// Whether rows were passed before, or what was saved for them was overwritten.
void Pass::check_rows(const Node& node, std::span<const uint32_t> some) const {
    const Rows& launch = *node.rows;
    check_not_released(node);
    auto check = [&](uint32_t row) {
        if (!launch.released.empty() && launch.released[row]) raise_released(node);
        for (const SavedRows& saved : launch.saved) {
            const SavedMemory* memory = saved.at(row);
            if (!memory || !memory->storage || memory->storage->version == memory->version) continue;
            const SavedTensor& whole =
                saved.of_result ? node.saved_outputs[saved.index] : node.inputs[saved.index].saved;
            check_version(node, *memory->storage, memory->version, *row_of(*whole.tensor, row),
                          saved.of_result ? "result" : "argument", saved.index);
        }
    };
    if (launch.released.empty() && launch.saved.empty()) return;
    if (some.empty())
        for (uint32_t r = 0; r < uint32_t(launch.count); ++r) check(r);
    else
        for (uint32_t r : some) check(r);
}

void Pass::show_to_hooks(Node& node, std::vector<RowsOfGradient>& arrived) {
    node.grads.resize(node.outputs);
    for (size_t k = 0; k < arrived.size(); ++k) {
        RowsOfGradient& given = arrived[k];
        if (!given.values) continue;
        if (!given.whole()) {
            Dims sizes = given.values->sizes;
            sizes[0] = node.rows->count;
            const Results own = callbacks.unstacked(given.values);
            std::vector<TensorRef> rows(size_t(node.rows->count) + 1);
            for (size_t i = 0; i < given.count(); ++i) rows[given.row(i)] = own[given.place(i)];
            given = {.values = callbacks.stacked(rows, *new_tensor(given.values->dtype, sizes, StorageRef())),
                     .rows = {},
                     .from = {}};
        }
        node.grads[k] = given.values;
    }
    const std::span<TensorRef> grads(node.grads.data(), node.grads.size());
    call_hooks(node.extras.get(), {NodeRef(&node), nullptr, 0}, grads);
    capture(node);
    call_node_hooks(node.extras.get(), HookKind::before, grads, nullptr);
    for (size_t k = 0; k < arrived.size(); ++k)
        arrived[k] = {.values = node.grads[k], .rows = {}, .from = {}};
}

// Products that are worth keeping when a call runs alone: as parts of these operands' gradients.
const char* tells_rows_apart(Node& launch, Fn& fn, std::span<const Operand> operands) {
    const Rows& rows = *launch.rows;
    BitSet needed, shared;
    for (size_t i = 0; i < launch.inputs.size(); ++i) {
        if (launch.inputs[i].edge) needed.add(i);
        if (!launch.inputs[i].is_number && !rows.inputs.has(i)) shared.add(i);
    }
    if (launch.fn->cls == FnClass::pointwise) return nullptr;
    const BitSet defined = BitSet::below(launch.outputs);
    compiler::Asked asked{needed, defined, false};
    asked.shared = shared;
    const Fn& together = derivative_fn(launch, asked);
    for (const Target& target : together.targets)
        if (target.role == Target::gradient && shared.has(target.operand) &&
            !together.scattered.has(target.operand))
            return "its gradient of what they share cannot be told apart";
    if (together.scattered.meets(shared) && !together.hidden_rows)
        return "what it saves has rows in the middle";
    if (rows.counted) return nullptr;
    // one call, of arrays that look like its operands
    const NodeRef one = new_node(fn);
    one->order = 1;
    for (const Operand& operand : operands) {
        NodeInput& input = one->inputs.emplace_back();
        input.is_number = !operand.tensor;
        if (!operand.tensor) {
            input.number = operand.number;
            continue;
        }
        input.dtype = operand.tensor->dtype;
        input.dimensioned = operand.tensor->ndim() > 0;
        input.saved.tensor = shape_of(*operand.tensor);
    }
    const Fn& alone = derivative_fn(*one, {needed, defined, false});
    for (const Product& product : alone.products) {
        const size_t i = product.operand;
        if (!Pass::is_worth_keeping(one->inputs[i].saved.tensor->sizes, Pass::rows_of(*one, product)))
            continue;
        const bool known =
            std::ranges::any_of(together.products, [&](const Product& other) { return other.operand == i; });
        if (rows.inputs.has(i))
            return "their matrices differ, and gradients of matrices are summed as products";
        if (!known) return "its gradient of a matrix they share is no product of rows";
    }
    return nullptr;
}

}  // namespace kiln
