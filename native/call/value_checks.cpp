#include "call/value_checks.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "record/record.h"

namespace kiln {

namespace {

std::string position_error(const Fn& fn, int64_t value, int dim, int64_t bound) {
    std::string text = fn.index_error;
    for (const auto& [name, number] :
         {std::pair<const char*, int64_t>{"{index}", value}, {"{dim}", dim}, {"{size}", bound}})
        if (size_t at = text.find(name); at != std::string::npos)
            text.replace(at, std::char_traits<char>::length(name), std::to_string(number));
    return text;
}

constexpr int class_dim = 100;  // dim 1, or dim 0 of a vector

struct Bound {
    int64_t low, high;  // low <= 0 <= high
    bool has_ignored;
    int64_t ignored;
    bool holds(int64_t value) const {
        return (value >= low && value < high) || (has_ignored && value == ignored);
    }
    int64_t suspect(int64_t value) const {  // negative if not in range (unsigned: no overflow)
        return int64_t((uint64_t(value) - uint64_t(low)) | (uint64_t(high) - 1 - uint64_t(value)));
    }
};

struct NotZero {
    bool holds(int64_t value) const { return value != 0; }
    int64_t suspect(int64_t value) const { return -int64_t(value == 0); }
};

// The first of n values, `stride` apart, that does not hold, or n. Neighbours are looked at 64 at a time,
// without a branch, and one by one where that makes them suspect.
template <class Integer, class Condition>
int64_t first_of_row(const Integer* row, int64_t n, int64_t stride, const Condition& bound) {
    for (int64_t i = 0, suspect = -1; i < n; suspect = -1) {
        const int64_t end = std::min<int64_t>(i + 64, n);
        if (stride == 1 && end == i + 64)
            for (int64_t j = suspect = 0; j < 64; ++j) suspect |= bound.suspect(row[i + j]);
        for (; suspect < 0 && i < end; ++i)
            if (!bound.holds(row[i * stride])) return i;
        i = end;
    }
    return n;
}

// The first value that does not hold in logical order; an expanded dim is read once. False if all do.
template <class Integer, class Condition>
bool first_outside(const Tensor& index, const Condition& bound, int64_t* found) {
    const auto* base = reinterpret_cast<const Integer*>(index.data());
    const bool flat = index.contiguous;
    const int last = index.ndim() - 1;
    Dims sizes(index.sizes);
    for (int d = 0; d <= last; ++d)
        if (index.strides[d] == 0) sizes[d] = 1;
    const int64_t count = checked_numel(sizes), length = flat ? count : sizes[last];
    const int64_t stride = flat ? 1 : index.strides[last];
    for (int64_t row = 0; row < count; row += length) {
        int64_t offset = 0, rest = row / length;
        for (int d = flat ? -1 : last - 1; d >= 0; rest /= sizes[d--])
            offset += rest % sizes[d] * index.strides[d];
        if (int64_t i = first_of_row(base + offset, length, stride, bound); i < length) {
            *found = base[offset + i * stride];
            return true;
        }
    }
    return false;
}

// Raises unless all positions are in range.
void check_positions(const Fn& fn, std::span<const Operand> operands) {
    const Tensor& index = *operands[fn.index_input].tensor;
    const Tensor& indexed = *operands[fn.indexed_input].tensor;
    if (index.numel == 0) return;
    int dim = fn.index_dim == class_dim ? (indexed.ndim() > 1 ? 1 : 0)
              : fn.index_dim < 0        ? fn.index_dim + indexed.ndim()
                                        : fn.index_dim;
    int64_t size = dim >= 0 && dim < indexed.ndim() ? indexed.sizes[dim] : 1;
    if (const uint32_t below = index.storage->below; below && below <= size && !is_public(*index.storage))
        return;
    settle(*index.storage);
    Bound bound{fn.index_negative ? -size : 0, size, fn.index_ignore >= 0, 0};
    if (bound.has_ignored) bound.ignored = operands[fn.index_ignore].number.integer;
    int64_t found = 0;
    bool outside = index.dtype == DType::int64   ? first_outside<int64_t>(index, bound, &found)
                   : index.dtype == DType::int32 ? first_outside<int32_t>(index, bound, &found)
                   : index.dtype == DType::uint8 ? first_outside<uint8_t>(index, bound, &found)
                                                 : false;  // the op's own rule refuses other dtypes
    if (outside) raise(fn.index_error_kind, position_error(fn, found, dim, size));
    const bool all = index.contiguous && size_t(index.numel) * itemsize(index.dtype) == index.storage->nbytes;
    if (all && bound.low == 0 && !bound.has_ignored && size <= UINT32_MAX && !is_public(*index.storage))
        index.storage->below = uint32_t(size);  // seen once, until it is written
}

// Raises where integers are divided by 0.
void check_divisor(const Fn& fn, std::span<const Operand> operands) {
    for (const Operand& operand : operands)
        if (operand.tensor ? is_float(operand.tensor->dtype) || operand.tensor->numel == 0
                           : operand.number.kind == Kind::float_)
            return;
    const Operand& by = operands[1];
    if (by.tensor) settle(*by.tensor->storage);
    int64_t found = 0;
    size_t bytes = by.tensor ? itemsize(by.tensor->dtype) : 0;
    bool zero = bytes == 0   ? by.number.integer == 0
                : bytes == 1 ? first_outside<int8_t>(*by.tensor, NotZero(), &found)
                : bytes == 2 ? first_outside<int16_t>(*by.tensor, NotZero(), &found)
                : bytes == 4 ? first_outside<int32_t>(*by.tensor, NotZero(), &found)
                             : first_outside<int64_t>(*by.tensor, NotZero(), &found);
    KILN_CHECK(!zero, runtime, fn.name, ": ZeroDivisionError: an integer divided by 0");
}

}  // namespace

void check_values(const Fn& fn, std::span<const Operand> operands) {
    if (fn.index_input >= 0) check_positions(fn, operands);
    if (fn.op && fn.op->divides) check_divisor(fn, operands);
}

void note_positions(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results) {
    if (fn.gives_along == no_dim) return;
    const Tensor& source = *operands[0].tensor;
    const int dim = fn.gives_along < 0 ? fn.gives_along + source.ndim() : fn.gives_along;
    const int64_t bound = dim == flat_array ? source.numel : dim < source.ndim() ? source.sizes[dim] : 1;
    results[0]->storage->below = bound <= UINT32_MAX ? uint32_t(bound) : 0;
}

}  // namespace kiln
