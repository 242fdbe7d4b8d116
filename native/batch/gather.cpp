#include <cstring>

#include "autograd/autograd.h"
#include "autograd/engine.h"
#include "autograd/rows.h"
#include "batch/run.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "record/record.h"

namespace kiln {

namespace {

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

}  // namespace

Dims with_rows(int64_t rows, const Dims& sizes) {
    Dims all(sizes.size() + 1, rows);
    std::copy(sizes.begin(), sizes.end(), all.begin() + 1);
    return all;
}

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
        if (needed) come(calls, i, operand);
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
    places.reserve(calls.size());
    for (uint32_t i = 0; i < calls.size(); ++i) places.push_back({0, start.row + i, true});
    const Edge edge{batch.handed, nullptr, 0};
    make_gathered(*part, {&edge, 1}, std::move(places), orders_, operand_);
    return part;
}

TensorRef ListRun::gathered(std::span<const uint32_t> calls, uint32_t operand, bool needed) {
    if (TensorRef found = side_by_side(calls, operand, needed)) return found;
    const Tensor& sample = *operand_of(calls[0], operand).tensor;
    TensorRef all = new_tensor(sample.dtype, with_rows(int64_t(calls.size()), sample.sizes));
    const size_t bytes = size_t(sample.numel) * itemsize(sample.dtype);
    std::vector<Edge> edges;
    std::vector<Rows::Place> places;
    if (needed) places.reserve(calls.size());
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
        come(calls, i, operand);
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
    if (needed) make_gathered(*all, edges, std::move(places), orders_, operand_);
    return all;
}

}  // namespace kiln
