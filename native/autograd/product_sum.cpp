#include "autograd/product_sum.h"

#include <algorithm>
#include <cstring>

#include "autograd/accumulate.h"
#include "call/dispatch.h"
#include "record/record.h"

namespace kiln {

namespace {

TensorRef fresh_rows(DType dtype, int64_t rows, int64_t width) {
    const Dims sizes{rows, width};
    if (!current_recording()) return new_tensor(dtype, sizes);
    return full_like(*new_tensor(dtype, sizes, StorageRef()),
                     0.0);  // what is recorded reads no memory without values
}

void copy_into(TensorRef target, Tensor& values) {
    const Operand operand{&values, {}};
    call(*core_fns().copy, {&operand, 1}, {&target, 1});
}

// Whether these are the same elements in the same order.
bool are_same(const Tensor& a, const Tensor& b) {
    return a.storage == b.storage && a.offset == b.offset && a.dtype == b.dtype && a.sizes == b.sizes &&
           a.strides == b.strides;
}

// Rows below each other: a tree of joins, as few operands of a call can have gradients.
TensorRef joined(std::vector<TensorRef> rows) {
    constexpr size_t most = 32;
    while (rows.size() > 1) {
        std::vector<TensorRef> next;
        for (size_t i = 0; i < rows.size(); i += most) {
            Operands operands;
            for (size_t k = i; k < std::min(i + most, rows.size()); ++k)
                operands.push_back({rows[k].get(), {}});
            next.push_back(operands.size() == 1
                               ? rows[i]
                               : call_one(*core_fns().concat(int(operands.size())), operands));
        }
        rows = std::move(next);
    }
    return rows[0];
}

// left.T @ right
TensorRef product(const TensorRef& left, const TensorRef& right) {
    const Operand rows{left.get(), {}};
    const TensorRef columns = call_one(*core_fns().transpose, {&rows, 1});
    const Operand operands[2] = {{columns.get(), {}}, {right.get(), {}}};
    return call_one(*core_fns().product, operands);
}

}  // namespace

void ProductSum::add(const TensorRef& left, const TensorRef& right, bool create_graph, Last* last) {
    if (create_graph) {
        lefts_.push_back(left);
        rights_.push_back(right);
        return;
    }
    if (current_recording()) last = nullptr;
    const int64_t rows = left->sizes[0];
    for (int64_t at = 0; at < rows;) {
        const int64_t count = std::min(rows - at, segment - rows_);
        append(left_, view_slice(*left, 0, at, count, 1), last);
        append(right_, view_slice(*right, 0, at, count, 1), last ? last + 1 : nullptr);
        rows_ += count;
        at += count;
        if (rows_ == segment) multiply();
    }
}

void ProductSum::add_rows(const Tensor& left, const Tensor& right, int64_t at, int64_t count) {
    const auto put = [&](std::shared_ptr<Rows>& own, const Tensor& values, int64_t rows) {
        const size_t bytes = size_t(values.sizes[1]) * itemsize(values.dtype);
        std::memcpy(room(own, values, rows)->data(), values.data() + size_t(at) * bytes,
                    size_t(rows) * bytes);
    };
    for (const int64_t end = at + count; at < end;) {
        const int64_t rows = std::min(end - at, segment - rows_);
        put(left_, left, rows);
        put(right_, right, rows);
        rows_ += rows;
        at += rows;
        if (rows_ == segment) multiply();
    }
}

TensorRef ProductSum::room(std::shared_ptr<Rows>& rows, const Tensor& like, int64_t count) {
    const int64_t need = rows_ + count, height = need <= 32 ? 32 : need <= 128 ? 128 : segment;
    const bool apart = rows && rows->used > rows_;  // another sum went on with other rows
    if (!rows || apart || rows->memory->sizes[0] < need) {
        TensorRef larger = fresh_rows(like.dtype, height, like.sizes[1]);
        if (rows_) copy_into(view_slice(*larger, 0, 0, rows_, 1), *view_slice(*rows->memory, 0, 0, rows_, 1));
        if (!rows || apart) rows = std::make_shared<Rows>();
        rows->memory = std::move(larger);
    }
    rows->used = need;
    return view_slice(*rows->memory, 0, rows_, count, 1);
}

void ProductSum::append(std::shared_ptr<Rows>& rows, const TensorRef& values, Last* last) {
    const int64_t count = values->sizes[0];
    if (last && last->values && last->at == rows_ && last->version == values->storage->version &&
        are_same(*last->values, *values)) {
        const std::shared_ptr<Rows> there = last->in.lock();
        if (there && there->used == rows_ + count && (rows_ ? rows == there : true)) {
            rows = there;
            return;
        }
    }
    copy_into(room(rows, *values, count), *values);
    if (last) *last = {values, values->storage->version, rows, rows_};
}

void ProductSum::multiply() {
    add_gradient(sum_, product(view_slice(*left_->memory, 0, 0, rows_, 1),
                               view_slice(*right_->memory, 0, 0, rows_, 1)));
    rows_ = 0;
    for (std::shared_ptr<Rows>* rows : {&left_, &right_})
        if (rows->use_count() > 1)
            rows->reset();
        else
            (*rows)->used = 0;
}

TensorRef ProductSum::evaluate(bool create_graph) {
    if (create_graph) return product(joined(std::move(lefts_)), joined(std::move(rights_)));
    if (rows_) multiply();
    return std::move(sum_);
}

}  // namespace kiln
