#include "batch/run.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "autograd/autograd.h"
#include "autograd/rows.h"
#include "base/check.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "call/pointwise.h"
#include "record/record.h"

namespace kiln {

namespace {

class ModesOf {  // while it lives, the modes of a pattern's calls
public:
    explicit ModesOf(const Pattern& pattern) : before_(modes()) {
        set_modes({pattern.grad, pattern.inference, {}});
    }
    ~ModesOf() { set_modes(before_); }
    ModesOf(const ModesOf&) = delete;

private:
    const Modes before_;
};

// Whether every row of what has rows in front lies in order.
bool rows_in_order(const Tensor& whole) {
    if (whole.contiguous) return true;
    int64_t step = 1;
    for (int d = whole.ndim() - 1; d > 0; --d) {
        if (whole.sizes[d] != 1 && whole.strides[d] != step) return false;
        step *= whole.sizes[d];
    }
    return true;
}

Dims with_rows(int64_t rows, const Dims& sizes) {
    Dims all(sizes.size() + 1, rows);
    std::copy(sizes.begin(), sizes.end(), all.begin() + 1);
    return all;
}

template <size_t bytes>
std::byte* copy_strided(std::byte* to, const std::byte* from, const Tensor& x, int dim) {
    if (dim == x.ndim()) {
        std::memcpy(to, from, bytes);
        return to + bytes;
    }
    const int64_t step = x.strides[dim] * int64_t(bytes);
    for (int64_t i = 0; i < x.sizes[dim]; ++i) to = copy_strided<bytes>(to, from + i * step, x, dim + 1);
    return to;
}

// Copies what lies in any order to `to`, in order; where it is too much for a plain loop: false.
bool copy_few(std::byte* to, const Tensor& x) {
    constexpr int64_t few = 512;
    if (x.numel > few || !x.numel) return !x.numel;
    switch (itemsize(x.dtype)) {
    case 1: copy_strided<1>(to, x.data(), x, 0); return true;
    case 2: copy_strided<2>(to, x.data(), x, 0); return true;
    case 4: copy_strided<4>(to, x.data(), x, 0); return true;
    case 8: copy_strided<8>(to, x.data(), x, 0); return true;
    default: return false;
    }
}

// Row `row` of a whole, as a tensor.
TensorRef row_of(const Tensor& whole, int64_t row) {
    return new_view(whole, Dims(std::span(whole.sizes.begin() + 1, whole.sizes.size() - 1)),
                    Dims(std::span(whole.strides.begin() + 1, whole.strides.size() - 1)),
                    whole.offset + row * whole.strides[0]);
}

}  // namespace

// ---- which calls run together ----

// By what a call waits for, who waits for it: as in a graph's adjacency lists, in two arrays.
void ListRun::schedule() {
    const auto count = uint32_t(list_.calls_.size());
    waits_.assign(count, 0);
    first_.assign(count + 1, 0);
    left_ = count;
    auto each_wait = [&](auto&& body) {
        for (uint32_t c = 0; c < count; ++c)
            for (uint32_t i = 0; i < list_.calls_[c].operands; ++i)
                if (const int32_t after = operand_of(c, i).after; after >= 0) body(c, uint32_t(after));
    };
    each_wait([&](uint32_t c, uint32_t after) {
        ++waits_[c];
        ++first_[after + 1];
    });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    followers_.resize(first_.back());
    std::vector<uint32_t> at(first_.begin(), first_.end() - 1);
    each_wait([&](uint32_t c, uint32_t after) { followers_[at[after]++] = c; });
    for (uint32_t c = 0; c < count; ++c)
        if (!waits_[c]) list_.calls_[c].pattern->ready.push_back(c);
}

void ListRun::mark_done(uint32_t number) {
    ListedCall& call = list_.calls_[number];
    call.done = true;
    --left_;
    --call.pattern->listed;
    call.pattern->depths -= call.depth;
    for (uint32_t f = first_[number]; f < first_[number + 1]; ++f)
        if (!--waits_[followers_[f]]) list_.calls_[followers_[f]].pattern->ready.push_back(followers_[f]);
}

// Of the patterns that can run, the one whose deepest call is the least deep; of several, that of the lowest
// average depth of those that are left. What has a call at the end of everything is done when the rest is:
// the outputs of trees of all heights are one launch.
Pattern* ListRun::next() {
    Pattern* best = nullptr;
    for (Pattern* pattern : list_.active_) {
        if (pattern->ready.empty()) continue;
        if (!best || pattern->deepest < best->deepest ||
            (pattern->deepest == best->deepest &&
             pattern->depths * best->listed < best->depths * pattern->listed))
            best = pattern;
    }
    KILN_CHECK(best, internal, "batching: calls wait for each other");
    return best;
}

// A call that raised an error, and all that wait for it, leave the list: who reads their values is told.
void ListRun::mark_failed(uint32_t number) {
    std::vector<uint32_t> stack{number};
    while (!stack.empty()) {
        const uint32_t c = stack.back();
        stack.pop_back();
        ListedCall& call = list_.calls_[c];
        if (call.done || call.failed) continue;
        call.failed = true;
        for (uint32_t k = 0; k < call.values; ++k) list_.give_up(list_.values_[call.first_value + k]);
        for (uint32_t f = first_[c]; f < first_[c + 1]; ++f) stack.push_back(followers_[f]);
    }
}

void ListRun::run() {
    try {
        schedule();
        for (uint32_t launches = 0; left_; ++launches) {
            if (launches % 8 == 0) stop_if_interrupted();
            Pattern& pattern = *next();
            const std::vector<uint32_t> calls = std::exchange(pattern.ready, {});
            launch(pattern, calls);
            for (uint32_t call : calls) mark_done(call);
        }
    } catch (...) {
        drop_done();
        throw;
    }
    list_.operands_.clear();
    hand_out_all();
    list_.clear();
}

void ListRun::launch(Pattern& pattern, std::span<const uint32_t> calls) {
    const ModesOf modes(pattern);
    try {
        if (calls.size() > 1 && launch_rows_or_not(pattern, calls)) {
            ++pattern.launches;
            return;
        }
        for (uint32_t call : calls) {
            run_alone(call);
            ++pattern.launches;
            ++pattern.alone;
        }
    } catch (const Error& error) {
        if (error.kind == ErrorKind::python && is_interrupt()) throw;
        for (uint32_t call : calls)
            if (list_.calls_[call].values && list_.values_[list_.calls_[call].first_value].batch < 0)
                mark_failed(call);
        if (error.kind == ErrorKind::python) throw;
        raise(error.kind,
              concat(error.message, " (in the call of ", pattern.fn->name, " at ",
                     SourceLine::text(list_.calls_[calls[0]].line), ", which ran later, as it was batched)"));
    }
}

// ---- a launch ----

bool ListRun::is_same(std::span<const uint32_t> calls, uint32_t operand) const {
    const Tensor* first = operand_of(calls[0], operand).tensor.get();
    return std::ranges::all_of(calls,
                               [&](uint32_t c) { return operand_of(c, operand).tensor.get() == first; });
}

namespace {

// Whether a pointwise function does rows as it is: arrays that have rows are of the results' rank, and
// promotion does not look at what the rows change.
bool does_rows_itself(const Pattern& pattern, std::span<const Operand> operands, uint64_t rows) {
    if (pattern.fn->cls != FnClass::pointwise) return false;
    const int ndim = pattern.given[0].sizes.ndim();
    DType dtype{};
    bool first = true;
    for (size_t i = 0; i < operands.size(); ++i) {
        const Tensor* x = operands[i].tensor;
        if (!x) {
            if (!ndim) return false;
            continue;
        }
        if (rows & bit(i) && x->ndim() != ndim) return false;
        if (!ndim && !first && x->dtype != dtype) return false;
        dtype = x->dtype;
        first = false;
    }
    return true;
}

}  // namespace

const RowsFn& ListRun::way_for(Pattern& pattern, std::span<const Operand> operands, uint64_t rows) {
    for (const RowsFn& way : pattern.ways)
        if (way.rows == rows) return way;
    RowsFn way;
    if (does_rows_itself(pattern, operands, rows))
        way.fn = pattern.fn;
    else
        way = rows_of(*pattern.fn, operands, rows);
    way.rows = rows;
    if (!way.fn) pattern.why_alone = way.why;
    return pattern.ways.emplace_back(std::move(way));
}

// The same; what goes wrong is not to be seen where the calls one by one go well.
bool ListRun::launch_rows_or_not(Pattern& pattern, std::span<const uint32_t> calls) {
    try {
        return launch_rows(pattern, calls);
    } catch (const Error& error) {
        if (error.kind == ErrorKind::python && is_interrupt()) throw;
        std::string text;
        if (!compiler::forgive(error, &text)) throw;
        if (error.kind != ErrorKind::memory)
            for (RowsFn& way : pattern.ways) way.fn = nullptr;
        pattern.why_alone = concat("together it raised: ", text);
        return false;
    }
}

// Runs the calls as one. False: they have to run one by one.
bool ListRun::launch_rows(Pattern& pattern, std::span<const uint32_t> calls) {
    const uint32_t count = list_.calls_[calls[0]].operands;
    uint64_t rows = 0;
    Operands samples;
    for (uint32_t i = 0; i < count; ++i) {
        const ListedOperand& first = operand_of(calls[0], i);
        samples.push_back({first.tensor.get(), first.number});
        if (first.tensor && !(pattern.shared & bit(i)) && !is_same(calls, i)) rows |= bit(i);
    }
    if (!rows) {
        pattern.why_alone = "all calls have the same operands";
        return false;
    }
    const RowsFn way = way_for(pattern, {samples.data(), samples.size()}, rows);
    if (!way.fn) return false;
    Operands operands;
    Results keep;
    for (uint32_t i = 0; i < count; ++i) {
        const ListedOperand& first = operand_of(calls[0], i);
        if (!first.tensor) {
            if (way.counted && operands.size() == 1)
                operands.push_back({nullptr, Number::of(int64_t(calls.size()))});
            operands.push_back({nullptr, first.number});
        } else if (rows & bit(i)) {
            keep.push_back(gathered(calls, i, pattern.tracked && pattern.needed & bit(i)));
            operands.push_back({keep.back().get(), {}});
        } else {
            operands.push_back({&ready_tensor(first), {}});
        }
    }
    if (way.counted && operands.size() == 1)  // of a view to no dims
        operands.push_back({nullptr, Number::of(int64_t(calls.size()))});
    const Results results = call(*way.fn, {operands.data(), operands.size()});
    give_rows(calls, results);
    return true;
}

void ListRun::run_alone(uint32_t number) {
    const ListedCall& call = list_.calls_[number];
    Operands operands;
    for (uint32_t i = 0; i < call.operands; ++i) {
        const ListedOperand& x = operand_of(number, i);
        operands.push_back({x.tensor ? &ready_tensor(x) : nullptr, x.number});
    }
    Results results = kiln::call(*call.pattern->fn, {operands.data(), operands.size()});
    for (uint32_t k = 0; k < call.values; ++k) {
        ListedValue& value = list_.values_[call.first_value + k];
        KILN_CHECK(results[k]->sizes == value.tensor->sizes && results[k]->dtype == value.tensor->dtype,
                   internal, "batching: ", call.pattern->fn->name, " gave another shape than it said");
        if (results[k]->node) results[k]->node->line = call.line;
        value.batch = int32_t(batches_.size());
        batches_.push_back({results[k], nullptr, 0});
    }
}

void ListRun::give_rows(std::span<const uint32_t> calls, const Results& results) {
    const ListedCall& first = list_.calls_[calls[0]];
    const auto rows = int64_t(calls.size());
    for (uint32_t k = 0; k < first.values; ++k) {
        const TensorRef& whole = results[k];
        const Tensor& sample = *list_.values_[first.first_value + k].tensor;
        KILN_CHECK(whole->sizes == with_rows(rows, sample.sizes) && whole->dtype == sample.dtype, internal,
                   "batching: ", first.pattern->fn->name, " of ", rows, " calls gave ",
                   shape_text(whole->sizes), " of ", name(whole->dtype), " for ", shape_text(sample.sizes),
                   " of ", name(sample.dtype));
        NodeRef handed;
        if (whole->node) {
            std::vector<uint64_t> orders;
            orders.reserve(calls.size());
            for (uint32_t c : calls) orders.push_back(list_.calls_[c].order);
            whole->node->line = first.line;
            handed = make_handed(*whole, std::move(orders), first.line);
        }
        const auto batch = int32_t(batches_.size());
        batches_.push_back({whole, std::move(handed), rows});
        for (uint32_t i = 0; i < calls.size(); ++i) {
            ListedValue& value = list_.values_[list_.calls_[calls[i]].first_value + k];
            value.batch = batch;
            value.row = i;
        }
    }
}

// ---- operands ----

// An operand that has its values and history.
Tensor& ListRun::ready_tensor(const ListedOperand& operand) {
    if (operand.value >= 0)
        hand_out(list_.values_[size_t(operand.value)]);
    else
        give_memory(*operand.tensor->storage);
    return *operand.tensor;
}

// The operand of all calls without a copy, where it is what one launch gave, row by row in order; or a part
// of that. Null: it is not so.
TensorRef ListRun::side_by_side(std::span<const uint32_t> calls, uint32_t operand, bool needed) {
    const ListedOperand& first = operand_of(calls[0], operand);
    if (first.value < 0) return nullptr;
    const ListedValue& start = list_.values_[size_t(first.value)];
    const Batch& batch = batches_[size_t(start.batch)];
    if (!batch.rows || start.row + int64_t(calls.size()) > batch.rows) return nullptr;
    const Node* history = needed ? listed_history() : nullptr;
    for (size_t i = 0; i < calls.size(); ++i) {
        const ListedOperand& x = operand_of(calls[i], operand);
        if (x.value < 0) return nullptr;
        const ListedValue& value = list_.values_[size_t(x.value)];
        if (value.batch != start.batch || value.row != start.row + i) return nullptr;
        if (needed && !value.handed && x.tensor->node.get() != history) return nullptr;
        if (needed && value.handed && x.tensor->node != batch.handed) return nullptr;
    }
    if (int64_t(calls.size()) == batch.rows)
        return needed || !batch.whole->node ? batch.whole : alias(*batch.whole);
    const Tensor& whole = *batch.whole;
    TensorRef part = new_view(whole, with_rows(int64_t(calls.size()), first.tensor->sizes), whole.strides,
                              whole.offset + int64_t(start.row) * whole.strides[0]);
    if (!needed) return part;
    std::vector<Rows::Place> places;
    for (uint32_t i = 0; i < calls.size(); ++i) places.push_back({0, start.row + i, true});
    const Edge edge{batch.handed, nullptr, 0};
    make_gathered(*part, {&edge, 1}, std::move(places));
    return part;
}

TensorRef ListRun::gathered(std::span<const uint32_t> calls, uint32_t operand, bool needed) {
    if (TensorRef found = side_by_side(calls, operand, needed)) return found;
    const Tensor& sample = *operand_of(calls[0], operand).tensor;
    TensorRef all = new_tensor(sample.dtype, with_rows(int64_t(calls.size()), sample.sizes));
    const size_t bytes = size_t(sample.numel) * itemsize(sample.dtype);
    std::vector<Edge> edges;
    std::vector<Rows::Place> places;
    int32_t looked = -1;  // the batch looked at last,
    bool in_order = true;
    uint32_t input = 0;  // and which input of the node it is
    std::vector<std::pair<const Node*, uint32_t>> inputs;
    auto input_of = [&](const NodeRef& node) {
        for (const auto& [known, at] : inputs)
            if (known == node.get()) return at;
        inputs.emplace_back(node.get(), uint32_t(edges.size()));
        edges.push_back({node, nullptr, 0});
        return inputs.back().second;
    };
    for (size_t i = 0; i < calls.size(); ++i) {
        const ListedOperand& x = operand_of(calls[i], operand);
        std::byte* to = all->data() + i * bytes;
        if (x.value >= 0 && batches_[size_t(list_.values_[size_t(x.value)].batch)].rows) {
            const ListedValue& value = list_.values_[size_t(x.value)];
            const Batch& batch = batches_[size_t(value.batch)];
            const Tensor& whole = *batch.whole;
            const bool own = needed && (value.handed ? x.tensor->node == batch.handed
                                                     : x.tensor->node.get() == listed_history());
            if (value.batch != looked) {
                looked = value.batch;
                in_order = rows_in_order(whole);
                if (own) input = input_of(batch.handed);
            }
            if (in_order) {
                if (whole.storage->busy) wait_while_busy(*whole.storage, false);
                std::memcpy(
                    to, whole.data() + int64_t(value.row) * whole.strides[0] * int64_t(itemsize(whole.dtype)),
                    bytes);
            } else {
                const TensorRef row = row_of(whole, value.row), target = row_of(*all, int64_t(i));
                const Operand from{row.get(), {}};
                execute(*core_fns().copy, {&from, 1}, {&target, 1}, false);
            }
            if (own) {
                places.push_back({input, value.row, true});
                continue;
            }
        } else {
            Tensor& tensor = ready_tensor(x);
            settle(*tensor.storage);
            if (tensor.contiguous) {
                if (bytes) std::memcpy(to, tensor.data(), bytes);
            } else if (!copy_few(to, tensor)) {
                const TensorRef target = row_of(*all, int64_t(i));
                const Operand from{&tensor, {}};
                execute(*core_fns().copy, {&from, 1}, {&target, 1}, false);
            }
        }
        if (!needed) continue;
        Edge edge = edge_of(*x.tensor);
        if (edge.node && hands_out(*edge.node) && edge.index < edge.node->rows->count) {
            places.push_back({input_of(edge.node), edge.index, true});
        } else {
            places.push_back({uint32_t(edges.size()), 0, false});
            edges.push_back(std::move(edge));
        }
    }
    if (needed) make_gathered(*all, edges, std::move(places));
    return all;
}

// ---- what was listed gets its memory and history ----

void ListRun::give_memory(Storage& storage) {
    if (!is_listed(storage)) return;
    const ListedCall& call = list_.calls_[size_t(storage.recording_id)];
    for (uint32_t k = 0; k < call.values; ++k) {
        const ListedValue& value = list_.values_[call.first_value + k];
        if (!value.tensor || value.tensor->storage.get() != &storage) continue;
        const Batch& batch = batches_[size_t(value.batch)];
        TensorRef whole = batch.whole;
        if (!batch.rows && !whole->contiguous) whole = copy_of(*whole);
        const int64_t step = batch.rows ? int64_t(value.row) * whole->strides[0] : 0;
        return become_part(storage, *whole->storage, whole->data() + step * int64_t(itemsize(whole->dtype)));
    }
}

void ListRun::hand_out(ListedValue& value) {
    if (value.handed) return;
    value.handed = true;
    Tensor& tensor = *value.tensor;
    give_memory(*tensor.storage);
    const Batch& batch = batches_[size_t(value.batch)];
    if (tensor.node && tensor.node.get() == listed_history()) {
        if (batch.rows)
            set_history(tensor, batch.handed, value.row);
        else
            set_history(tensor, batch.whole->node, batch.whole->output);
    }
    if (!tensor.base) return;
    if (const int32_t base = list_.value_of(*tensor.base); base >= 0) hand_out(list_.values_[size_t(base)]);
    tensor.base_order = tensor.base->node ? tensor.base->node->order : 0;
}

// All that somebody outside the list has; the rest goes.
void ListRun::hand_out_all() {
    std::vector<ListedValue>& values = list_.values_;
    for (auto value = values.rbegin(); value != values.rend(); ++value) {
        if (value->batch < 0 || value->handed) continue;
        const Storage& storage = *value->tensor->storage;
        const bool own = is_listed(storage) && uint32_t(storage.recording_id) == value->call;
        if (value->tensor->refcount == 1 && (!own || storage.refcount == 1)) value->tensor = nullptr;
    }
    for (ListedValue& value : values)
        if (value.tensor && value.batch >= 0) hand_out(value);
}

// After an error: what ran is handed out, and the rest stays on the list.
void ListRun::drop_done() {
    CallList& list = list_;
    for (ListedCall& call : list.calls_)
        for (uint32_t i = 0; (call.done || call.failed) && i < call.operands; ++i)
            list.operands_[call.first_operand + i].tensor = nullptr;
    for (ListedOperand& x : list.operands_)  // what a waiting call reads of what ran
        if (x.tensor && x.after >= 0 && list.calls_[size_t(x.after)].done) {
            ready_tensor(x);
            x.value = x.after = -1;
        }
    hand_out_all();
    list.read_.clear();
    list.looked_at_ = 0;
    const auto calls = std::exchange(list.calls_, {});
    auto operands = std::exchange(list.operands_, {});
    auto values = std::exchange(list.values_, {});
    std::vector<int32_t> new_call(calls.size(), -1), new_value(values.size(), -1);
    for (Pattern* pattern : list.active_) {
        pattern->ready.clear();
        pattern->listed = pattern->depths = pattern->deepest = 0;
    }
    list.active_.clear();
    for (size_t c = 0; c < calls.size(); ++c) {
        ListedCall call = calls[c];
        if (call.done || call.failed) continue;
        new_call[c] = int32_t(list.calls_.size());
        const uint32_t first_operand = call.first_operand, first_value = call.first_value;
        call.first_operand = uint32_t(list.operands_.size());
        call.first_value = uint32_t(list.values_.size());
        for (uint32_t i = 0; i < call.operands; ++i) {
            ListedOperand& x = list.operands_.emplace_back(std::move(operands[first_operand + i]));
            if (x.value >= 0) x.value = new_value[size_t(x.value)];
            if (x.after >= 0) x.after = new_call[size_t(x.after)];
        }
        for (uint32_t k = 0; k < call.values; ++k) {
            ListedValue& value = list.values_.emplace_back(std::move(values[first_value + k]));
            value.call = uint32_t(new_call[c]);
            new_value[first_value + k] = int32_t(list.values_.size() - 1);
            Storage& storage = *value.tensor->storage;
            if (is_listed(storage) && uint32_t(storage.recording_id) == c &&
                value.tensor->listed == first_value + k + 1 && !call.pattern->views)
                storage.recording_id = new_call[c];
            value.tensor->listed = uint32_t(list.values_.size());
        }
        if (call.pattern->listed++ == 0) list.active_.push_back(call.pattern);
        call.pattern->depths += call.depth;
        call.pattern->deepest = std::max(call.pattern->deepest, call.depth);
        list.calls_.push_back(std::move(call));
    }
    if (list.calls_.empty()) --lists_in_use;
}

}  // namespace kiln
