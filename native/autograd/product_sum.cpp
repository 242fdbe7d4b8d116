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

// Room for `rows` rows, of which the first `used` stay what they are.
void enlarge(TensorRef& memory, const Tensor& like, int64_t used, int64_t rows) {
    if (memory && memory->sizes[0] >= rows) return;
    TensorRef larger = fresh_rows(like.dtype, rows, like.sizes[1]);
    if (used) copy_into(view_slice(*larger, 0, 0, used, 1), *view_slice(*memory, 0, 0, used, 1));
    memory = std::move(larger);
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

void ProductSum::add(const TensorRef& left, const TensorRef& right, bool create_graph) {
    if (create_graph) {
        lefts_.push_back(left);
        rights_.push_back(right);
        return;
    }
    const int64_t rows = left->sizes[0];
    for (int64_t at = 0; at < rows;) {
        const int64_t count = std::min(rows - at, segment - rows_);
        append(*view_slice(*left, 0, at, count, 1), *view_slice(*right, 0, at, count, 1));
        at += count;
        if (rows_ == segment) multiply();
    }
}

void ProductSum::add_rows(const Tensor& left, const Tensor& right, int64_t at, int64_t count) {
    const auto put = [&](const TensorRef& memory, const Tensor& values, int64_t rows) {
        const size_t bytes = size_t(values.sizes[1]) * itemsize(values.dtype);
        std::memcpy(memory->data() + size_t(rows_) * bytes, values.data() + size_t(at) * bytes,
                    size_t(rows) * bytes);
    };
    for (const int64_t end = at + count; at < end;) {
        const int64_t rows = std::min(end - at, segment - rows_);
        make_room(left, right, rows);
        put(left_, left, rows);
        put(right_, right, rows);
        rows_ += rows;
        at += rows;
        if (rows_ == segment) multiply();
    }
}

void ProductSum::make_room(const Tensor& left, const Tensor& right, int64_t count) {
    const int64_t need = rows_ + count, room = need <= 32 ? 32 : need <= 128 ? 128 : segment;
    enlarge(left_, left, rows_, room);
    enlarge(right_, right, rows_, room);
}

void ProductSum::append(const Tensor& left, const Tensor& right) {
    const int64_t count = left.sizes[0];
    make_room(left, right, count);
    copy_into(view_slice(*left_, 0, rows_, count, 1), const_cast<Tensor&>(left));
    copy_into(view_slice(*right_, 0, rows_, count, 1), const_cast<Tensor&>(right));
    rows_ += count;
}

void ProductSum::multiply() {
    add_gradient(sum_, product(view_slice(*left_, 0, 0, rows_, 1), view_slice(*right_, 0, 0, rows_, 1)));
    rows_ = 0;
}

TensorRef ProductSum::evaluate(bool create_graph) {
    if (create_graph) return product(joined(std::move(lefts_)), joined(std::move(rights_)));
    if (rows_) multiply();
    return std::move(sum_);
}

}  // namespace kiln
