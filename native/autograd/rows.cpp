#include "autograd/rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "autograd/autograd.h"
#include "autograd/hooks.h"
#include "base/check.h"
#include "base/free_list.h"
#include "call/dispatch.h"

namespace kiln {

namespace {

Rows& new_rows(Node& node, Rows::Kind kind, int64_t count, std::shared_ptr<const Calls> calls) {
    node.rows.reset(FreeList<Rows>::make());
    node.rows->kind = kind;
    node.rows->count = count;
    node.rows->calls = std::move(calls);
    return *node.rows;
}

void copy_to(const TensorRef& target, Tensor& x) {
    const Operand from{&x, {}};
    run(*core_fns().copy, {&from, 1}, {&target, 1});
}

void add_to(const TensorRef& target, Tensor& x) {
    const Operand operands[2] = {{target.get(), {}}, {&x, {}}};
    run(*core_fns().add, operands, {&target, 1});
}

// A row's part: element `i` of a part of rows.
struct Entry {
    const RowsPart* part;
    size_t i;
    bool operator<(const Entry& other) const {
        const uint64_t own = part->call_of(i), others = other.part->call_of(other.i);
        return own != others ? own > others : part->argument < other.part->argument;
    }
};

// Entries by the rows they go to: those of row r from `first[r]` on.
std::vector<Entry> by_row(const Rows& rows, std::vector<uint32_t>& first) {
    first.assign(size_t(rows.count) + 1, 0);
    size_t count = 0;
    auto each = [&](auto&& body) {
        for (const RowsPart& part : rows.parts)
            for (size_t i = 0, n = part.single ? 1 : part.given.count(); i < n; ++i)
                body(part, i, part.given.row(i));
    };
    each([&](const RowsPart&, size_t, uint32_t row) { ++first[row + 1], ++count; });
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<uint32_t> at(first.begin(), first.end() - 1);
    std::vector<Entry> entries(count);
    each([&](const RowsPart& part, size_t i, uint32_t row) { entries[at[row]++] = {&part, i}; });
    for (size_t r = 0; r < size_t(rows.count); ++r)
        if (first[r + 1] - first[r] > 2)  // of two the order makes no difference
            std::stable_sort(entries.begin() + first[r], entries.begin() + first[r + 1]);
    return entries;
}

RowsOfGradient sum_by_ops(Node& node, std::span<const Entry> entries, const std::vector<uint32_t>& first) {
    Rows& rows = *node.rows;
    std::vector<Results> own(rows.parts.size());  // each part's rows
    auto value = [&](const Entry& entry) {
        if (entry.part->single) return entry.part->given.values;
        Results& all = own[size_t(entry.part - rows.parts.data())];
        if (all.empty()) all = callbacks.unstacked(entry.part->given.values);
        return all[entry.part->given.place(entry.i)];
    };
    RowsOfGradient sums;
    std::vector<TensorRef> made;
    for (uint32_t r = 0; r < uint32_t(rows.count); ++r) {
        if (first[r] == first[r + 1]) continue;
        TensorRef sum;
        BitSet from_zero;
        for (const Entry& entry : entries.subspan(first[r], first[r + 1] - first[r]))
            SumOfParts{sum, from_zero, 0}.add(value(entry), entry.part->given.part);
        made.push_back(std::move(sum));
        sums.rows.push_back(r);
    }
    Dims sizes = rows.like->sizes;
    sizes[0] = int64_t(made.size());
    made.push_back(nullptr);
    sums.values = callbacks.stacked(made, *new_tensor(rows.like->dtype, sizes, StorageRef()));
    return sums;
}

void add_row(std::byte* to, const TensorRef& target, const Entry& entry, bool begins) {
    const Tensor& values = *entry.part->given.values;
    const uint32_t place = entry.part->given.place(entry.i);
    const DType dtype = target->dtype;
    const size_t bytes = size_t(target->numel) * itemsize(dtype);
    const bool single = entry.part->single;
    if (values.contiguous && values.dtype == dtype && (begins || adds_plainly(dtype))) {
        const std::byte* from = values.data() + (single ? 0 : place * bytes);
        begins ? void(std::memcpy(to, from, bytes)) : add_plainly(dtype, to, from, target->numel);
        return;
    }
    const TensorRef row = single ? entry.part->given.values : row_of(values, place);
    begins ? copy_to(target, *row) : add_to(target, *row);
}

}  // namespace

bool Rows::may_refuse() const {
    const auto is_overwritten = [&](const SavedRows& own, uint32_t row) {
        const SavedMemory* memory = own.at(row);
        return memory && memory->storage && memory->storage->version != memory->version;
    };
    if (std::ranges::find(released, true) != released.end()) return true;
    for (const SavedRows& own : saved)
        for (uint32_t r = 0; r < own.rows.size(); ++r)
            if (is_overwritten(own, r)) return true;
    return false;
}

void DropRows::operator()(Rows* rows) const { FreeList<Rows>::drop(rows); }

TensorRef row_of(const Tensor& whole, int64_t row) {
    return new_view(whole, Dims(std::span(whole.sizes.begin() + 1, whole.sizes.size() - 1)),
                    Dims(std::span(whole.strides.begin() + 1, whole.strides.size() - 1)),
                    whole.offset + row * whole.strides[0]);
}

TensorRef reshaped(const TensorRef& x, const Dims& sizes) {
    Dims strides;
    const TensorRef own = can_view(*x, sizes, &strides) ? x : contiguous(x);
    TensorRef view = view_reshape(*own, sizes, true);
    if (!own->node) return view;
    Operands operands;
    operands.push_back({own.get(), {}});
    for (const Dims& list : {view->sizes, view->strides})
        for (int64_t n : list) operands.push_back({nullptr, Number::of(n)});
    operands.push_back({nullptr, Number::of(view->offset - own->offset)});
    set_history(*view, record_edges(*core_fns().as_strided(view->ndim()), {operands.data(), operands.size()}),
                0);
    return view;
}

TensorRef rows_at(const Tensor& whole, std::span<const uint32_t> rows) {
    Dims sizes = whole.sizes;
    sizes[0] = int64_t(rows.size());
    TensorRef all = new_tensor(whole.dtype, sizes);
    const size_t bytes = rows.empty() ? 0 : size_t(all->numel) / rows.size() * itemsize(whole.dtype);
    for (size_t i = 0; i < rows.size(); ++i)
        if (whole.contiguous)
            std::memcpy(all->data() + i * bytes, whole.data() + rows[i] * bytes, bytes);
        else
            copy_to(row_of(*all, int64_t(i)), *row_of(whole, rows[i]));
    return all;
}

bool adds_plainly(DType dtype) { return dtype == DType::float32 || dtype == DType::float64; }

void add_plainly(DType dtype, std::byte* sum, const std::byte* part, int64_t count) {
    auto add = [&](auto* __restrict to, const auto* __restrict from) {
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) to[i] += from[i];
    };
    if (dtype == DType::float32)
        add(reinterpret_cast<float*>(sum), reinterpret_cast<const float*>(part));
    else
        add(reinterpret_cast<double*>(sum), reinterpret_cast<const double*>(part));
}

void make_launch(Node& node, std::shared_ptr<const Calls> calls, BitSet inputs, bool counted) {
    Rows& rows = new_rows(node, Rows::launch, int64_t(calls->size()), calls);
    rows.inputs = std::move(inputs);
    rows.counted = counted;
}

NodeRef make_handed(Tensor& whole, std::shared_ptr<const Calls> calls, const SourceLine& line) {
    static Fn& fn = *new_fn(nullptr, "rows_of_launch");
    NodeRef node = new_node(fn);
    new_rows(*node, Rows::hands_out, whole.sizes[0], std::move(calls)).like = shape_of(whole);
    node->line = line;
    node->inputs.emplace_back(edge_of(whole)).dtype = whole.dtype;
    const Edge& edge = node->inputs[0].edge;
    if (edge.node && edge.node->rows && edge.node->rows->kind == Rows::launch) {
        std::vector<Node*>& handed = edge.node->rows->handed;
        handed.resize(edge.node->outputs);
        handed[edge.index] = node.get();
        node->rows->source = edge.node;
        node->rows->output = edge.index;
    }
    node->outputs = uint32_t(whole.sizes[0] + 1);
    node->order = take_order();
    set_history(whole, node, uint32_t(whole.sizes[0]));
    return node;
}

NodeRef make_gathered(Tensor& whole, std::span<const Edge> edges, std::vector<Rows::Place> places,
                      std::shared_ptr<const Calls> calls, uint32_t argument) {
    static Fn& fn = *new_fn(nullptr, "gathered_rows");
    NodeRef node = new_node(fn);
    Rows& rows = new_rows(*node, Rows::gathers, whole.sizes[0], std::move(calls));
    rows.places = std::move(places);
    rows.argument = argument;
    node->inputs.reserve(edges.size());
    for (const Edge& edge : edges) node->inputs.emplace_back(edge).dtype = whole.dtype;
    node->order = take_order();
    set_history(whole, node, 0);
    return node;
}

RowsOfGradient sum_of_rows(Node& node, bool by_ops) {
    Rows& rows = *node.rows;
    struct Clear {
        Rows& rows;
        ~Clear() { rows.parts.clear(); }
    } clear{rows};
    std::vector<RowsPart>& parts = rows.parts;
    const bool plain = std::ranges::all_of(parts, [](const RowsPart& part) {
        return !part.single && part.given.part == Part::whole && part.given.whole();
    });
    if (parts.empty() || (plain && parts.size() == 1))
        return parts.empty() ? RowsOfGradient{} : std::move(parts[0].given);
    if (plain && parts.size() == 2) {
        add_gradient(parts[0].given.values, std::move(parts[1].given.values));
        return std::move(parts[0].given);
    }
    std::vector<uint32_t> first;
    const std::vector<Entry> entries = by_row(rows, first);
    if (by_ops) return sum_by_ops(node, entries, first);
    RowsOfGradient sums;
    for (uint32_t r = 0; r < uint32_t(rows.count); ++r)
        if (first[r] < first[r + 1]) sums.rows.push_back(r);
    Dims sizes = rows.like->sizes;
    sizes[0] = int64_t(sums.rows.size());
    sums.values = new_tensor(rows.like->dtype, sizes);
    const size_t bytes = size_t(sums.values->numel) / sums.rows.size() * itemsize(rows.like->dtype);
    bool zero = false;
    for (size_t at = 0; at < sums.rows.size(); ++at) {
        const TensorRef target = row_of(*sums.values, int64_t(at));
        const uint32_t r = sums.rows[at];
        for (uint32_t e = first[r]; e < first[r + 1]; ++e) {
            add_row(sums.values->data() + at * bytes, target, entries[e], e == first[r]);
            zero = zero || entries[e].part->given.part != Part::whole;
        }
        if (std::exchange(zero, false)) {  // begun at 0.0, or ended there: without -0.0
            const Operand operands[2] = {{target.get(), {}}, {nullptr, Number::of(0.0)}};
            run(*core_fns().add, operands, {&target, 1});
        }
    }
    if (sums.rows.size() == size_t(rows.count)) sums.rows.clear();
    return sums;
}

}  // namespace kiln
