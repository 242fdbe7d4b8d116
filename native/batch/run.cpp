#include "batch/run.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "autograd/autograd.h"
#include "autograd/engine.h"
#include "autograd/pass.h"
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

// The node that all results of a launch come from; null: they have none.
NodeRef history_of(const Results& results) {
    for (const TensorRef& result : results)
        if (result->node) return result->node;
    return nullptr;
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
void ListRun::mark_failed(uint32_t number, const std::string& why) {
    std::vector<uint32_t> stack{number};
    while (!stack.empty()) {
        const uint32_t c = stack.back();
        stack.pop_back();
        ListedCall& call = list_.calls_[c];
        if (call.done || call.failed) continue;
        call.failed = true;
        for (uint32_t k = 0; k < call.values; ++k) list_.give_up(list_.values_[call.first_value + k], why);
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
            pattern.transposed ? launch_apart(pattern, calls) : launch(pattern, calls);
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

// Whether a call's part of a matrix's gradient is kept as a product of rows: else it is an array, which is
// added where the call's own transposition stands.
bool ListRun::gives_product(uint32_t call, const Tensor& matrix) const {
    int64_t rows = 1;
    for (uint32_t i = 0; i < list_.calls_[call].operands; ++i) {
        const TensorRef& x = operand_of(call, i).tensor;
        if (x && x.get() != &matrix && x->ndim())
            rows = std::max(rows, x->numel / std::max<int64_t>(1, x->sizes[size_t(x->ndim() - 1)]));
    }
    return Pass::is_worth_keeping(matrix.sizes, rows);
}

// Of a transposed parameter that somebody else has, too, the gradient may be looked at: its calls are apart.
void ListRun::launch_apart(Pattern& pattern, std::span<const uint32_t> calls) {
    std::map<std::vector<const Tensor*>, std::vector<uint32_t>> groups;
    for (uint32_t c : calls) {
        std::vector<const Tensor*> held;
        for (uint32_t i = 0; i < list_.calls_[c].operands; ++i) {
            const TensorRef& x = operand_of(c, i).tensor;
            if (!pattern.transposed.has(i)) continue;
            const bool apart = x->refcount > 1 || (pattern.needed.has(i) && !gives_product(c, *x));
            held.push_back(apart ? x.get() : nullptr);
        }
        groups[held].push_back(c);
    }
    for (const auto& [held, some] : groups) launch(pattern, some);
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
                mark_failed(call, error.message);
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
bool does_rows_itself(const Pattern& pattern, std::span<const Operand> operands, const BitSet& rows) {
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
        if (rows.has(i) && x->ndim() != ndim) return false;
        if (!ndim && !first && x->dtype != dtype) return false;
        dtype = x->dtype;
        first = false;
    }
    return true;
}

}  // namespace

const RowsFn& ListRun::way_for(Pattern& pattern, std::span<const Operand> operands, const BitSet& rows) {
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
    BitSet rows;
    Operands samples;
    for (uint32_t i = 0; i < count; ++i) {
        const ListedOperand& first = operand_of(calls[0], i);
        samples.push_back({first.tensor.get(), first.number});
        if (first.tensor && !pattern.shared.has(i) && !is_same(calls, i)) rows.add(i);
    }
    if (!rows) {
        pattern.why_alone = "all calls have the same operands";
        return false;
    }
    const RowsFn way = way_for(pattern, {samples.data(), samples.size()}, rows);
    if (!way.fn) return false;
    Operands operands;
    Results keep;
    BitSet with_rows;  // of the launch's own operands
    const bool tracked = pattern.tracked;
    orders_ = tracked ? std::make_shared<Calls>() : nullptr;
    if (tracked) orders_->reserve(calls.size());
    for (uint32_t c : calls)
        if (tracked) orders_->push_back(list_.calls_[c].order);
    for (uint32_t i = 0; i < count; ++i) {
        const ListedOperand& first = operand_of(calls[0], i);
        if (!first.tensor) {
            if (way.counted && operands.size() == 1)
                operands.push_back({nullptr, Number::of(int64_t(calls.size()))});
            operands.push_back({nullptr, first.number});
        } else if (rows.has(i)) {
            with_rows.add(operands.size());
            operand_ = uint32_t(operands.size());
            keep.push_back(gathered(calls, i, tracked && pattern.needed.has(i)));
            operands.push_back({keep.back().get(), {}});
        } else {
            operands.push_back({&ready_tensor(first), {}});
        }
    }
    if (way.counted && operands.size() == 1)  // of a view to no dims
        operands.push_back({nullptr, Number::of(int64_t(calls.size()))});
    const Results results = call(*way.fn, {operands.data(), operands.size()});
    NodeRef launched;
    if (const NodeRef node = history_of(results)) {
        make_launch(*node, orders_, std::move(with_rows), way.counted);
        launched = node;
        RowsFn& known = *std::ranges::find(pattern.ways, rows, &RowsFn::rows);
        if (!known.differentiable) {
            if (const char* why = tells_rows_apart(*node, *pattern.fn, samples)) {
                known.fn = nullptr;
                pattern.why_alone = known.why = why;
                return false;
            }
            known.differentiable = true;
        }
    }
    give_rows(calls, results);
    if (launched) note_saved(calls, *launched);
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
        if (results[k]->node) {
            results[k]->node->line = call.line;
            results[k]->node->call = call.order;
        }
        value.batch = int32_t(batches_.size());
        batches_.push_back({results[k], nullptr, 0, nullptr});
        Node* node = results[k]->node.get();
        if (!node || k >= node->saved_outputs.size() || call.pattern->views) continue;
        SavedTensor& saved = node->saved_outputs[k];  // as the program has it
        if (!saved.tensor || saved.tensor->storage != results[k]->storage || !results[k]->contiguous)
            continue;
        give_memory(*value.tensor->storage);
        saved.tensor = new_tensor(value.tensor->dtype, value.tensor->sizes, value.tensor->storage);
        saved.version = value.tensor->storage->version;
    }
}

// Where what the node of a launch saved comes from: what the program writes over there is refused by
// backward.
void ListRun::note_saved(std::span<const uint32_t> calls, Node& node) {
    std::vector<SavedRows>& saved = node.rows->saved;
    const ListedCall& first = list_.calls_[calls[0]];
    const uint32_t added = uint32_t(node.inputs.size()) - first.operands;  // how many rows there are
    constexpr uint32_t elsewhere = ~uint32_t(0);
    auto note_row = [&](SavedRows& own, const ListedValue& value) {
        const std::shared_ptr<HeldRows>& held = batches_[size_t(value.batch)].held;
        if (!held) return false;
        auto known = std::find(own.held.rbegin(), own.held.rend(), held);
        const bool is_new = known == own.held.rend();
        if (is_new) own.held.push_back(held);
        own.rows.emplace_back(uint32_t(is_new ? own.held.size() - 1 : size_t(own.held.rend() - known) - 1),
                              value.row);
        return true;
    };
    auto note = [&](SavedRows& own, const ListedOperand& x) {
        if (x.value >= 0) {  // what a launch gave, and no view: its memory need not be looked at
            const ListedValue& value = list_.values_[size_t(x.value)];
            if (!list_.calls_[value.call].pattern->views && note_row(own, value)) return;
        }
        const StorageRef& storage = x.tensor->storage;
        if (!is_listed(*storage)) {
            own.rows.emplace_back(elsewhere, uint32_t(own.memory.size()));
            own.memory.push_back({storage, storage->version});
            return;
        }
        const ListedCall& call = list_.calls_[size_t(storage->recording_id)];
        for (uint32_t k = 0; k < call.values; ++k) {
            const ListedValue& value = list_.values_[call.first_value + k];
            if (!value.tensor || value.tensor->storage != storage) continue;
            if (!note_row(own, value)) break;
            return;
        }
        own.rows.emplace_back(elsewhere, uint32_t(own.memory.size()));
        own.memory.push_back({});
    };
    for (uint32_t i = 0; i < first.operands; ++i) {
        const uint32_t input = i ? i + added : i;
        const TensorRef& whole = node.inputs[input].saved.tensor;
        if (!node.rows->inputs.has(input) || !whole || !whole->storage) continue;
        SavedRows& own = saved.emplace_back();
        own.index = input;
        own.rows.reserve(calls.size());
        for (uint32_t c : calls) note(own, operand_of(c, i));
    }
    for (uint32_t k = 0; k < node.saved_outputs.size(); ++k) {
        if (!node.saved_outputs[k].tensor || !node.saved_outputs[k].tensor->storage) continue;
        SavedRows& own = saved.emplace_back();
        own.of_result = true;
        own.index = k;
        own.held.push_back(batches_[size_t(list_.values_[first.first_value + k].batch)].held);
        for (uint32_t i = 0; i < calls.size(); ++i) own.rows.emplace_back(0, i);
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
            whole->node->line = first.line;
            handed = make_handed(*whole, orders_, first.line);
        }
        const auto batch = int32_t(batches_.size());
        batches_.push_back({whole, std::move(handed), rows, std::make_shared<HeldRows>()});
        for (uint32_t i = 0; i < calls.size(); ++i) {
            ListedValue& value = list_.values_[list_.calls_[calls[i]].first_value + k];
            value.batch = batch;
            value.row = i;
        }
    }
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
        if (batch.held) {
            if (batch.held->empty()) batch.held->resize(size_t(batch.rows));
            (*batch.held)[value.row] = {StorageRef(&storage), storage.version};
        }
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
        if (values.rend() - value > ptrdiff_t(2 * ahead)) {
            if (const Tensor* far = value[2 * ahead].tensor.get()) come(far);
            if (const Tensor* near = value[ahead].tensor.get()) __builtin_prefetch(near->storage.get());
        }
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
