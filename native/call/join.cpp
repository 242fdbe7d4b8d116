#include "call/join.h"

#include <cstring>
#include <optional>

#include "call/busy.h"
#include "call/compiler.h"
#include "call/pointwise.h"

namespace kiln {

namespace {

constexpr int64_t most_copied = 1 << 15;  // bytes of an operand: more is a kernel's, which may take threads
constexpr int64_t short_row = 32;         // many rows of fewer bytes are a kernel's as well

bool fits(const Tensor& x, const Tensor& first, int dim, bool stacks) {
    bool same = x.dtype == first.dtype && x.ndim() == first.ndim();
    for (int d = 0; same && d < x.ndim(); ++d)
        same = x.sizes[size_t(d)] == first.sizes[size_t(d)] || (d == dim && !stacks);
    return same;
}

// Keeps others from writing operands while copies of large ones let go of the lock: all are read as they were
// at one moment.
class Readers {
public:
    explicit Readers(std::span<const Operand> operands) {
        Unlocked free;
        free.uses(operands, {});
        free.begin(false);
        for (const Operand& operand : operands) {
            storages_.push_back(operand.tensor->storage);
            add_reader(*operand.tensor->storage);
        }
    }
    ~Readers() {
        for (const StorageRef& storage : storages_) drop_reader(*storage);
        tell_others();
    }
    Readers(const Readers&) = delete;

private:
    SmallVector<StorageRef, 4> storages_;
};

// The place of an operand in the result: sizes as the result has them.
TensorRef place_of(const Tensor& y, int dim, int64_t start, int64_t length) {
    Dims sizes(y.sizes);
    sizes[size_t(dim)] = length;
    return new_view(y, std::move(sizes), y.strides, start * y.strides[size_t(dim)]);
}

}  // namespace

Dims join_sizes(Fn& fn, std::span<const Operand> operands) {
    const Tensor& first = *operands[0].tensor;
    const int dim = int(fn.dims[0]);
    const bool stacks = fn.op->join == JoinKind::stack;
    bool right = dim >= 0 && dim < first.ndim() + stacks;
    int64_t length = 0;
    for (const Operand& operand : operands) {
        right = right && fits(*operand.tensor, first, dim, stacks);
        length += !right || stacks ? 1 : operand.tensor->sizes[size_t(dim)];
    }
    if (!right) [[unlikely]]
        compiler::explain({&fn, operands});
    if (!stacks) {
        Dims sizes(first.sizes);
        sizes[size_t(dim)] = length;
        return sizes;
    }
    Dims sizes(first.sizes.size() + 1);
    for (int d = 0; d <= first.ndim(); ++d)
        sizes[size_t(d)] = d == dim ? length : first.sizes[size_t(d - (d > dim))];
    return sizes;
}

Results execute_join(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    const int dim = int(fn.dims[0]);
    const bool stacks = fn.op->join == JoinKind::stack;
    Results results;
    results.push_back(new_tensor(operands[0].tensor->dtype, join_sizes(fn, operands)));
    Tensor& y = *results[0];
    const auto width = int64_t(itemsize(y.dtype));
    const int64_t step = y.strides[size_t(dim)], along = y.sizes[size_t(dim)];
    const int64_t rows = y.numel ? y.numel / (step * along) : 0;
    std::optional<Readers> readers;
    if (unlocked_runs || y.numel * width > most_copied) readers.emplace(operands);
    int64_t start = 0;
    for (const Operand& operand : operands) {
        Tensor& x = *operand.tensor;
        const int64_t length = stacks ? 1 : x.sizes[size_t(dim)], row = length * step * width;
        if (x.numel && x.contiguous && x.numel * width <= most_copied && (rows <= 16 || row >= short_row)) {
            std::byte* to = y.data() + start * step * width;
            const std::byte* from = x.data();
            for (int64_t i = 0; i < rows; ++i, to += along * step * width, from += row)
                std::memcpy(to, from, size_t(row));
        } else if (x.numel) {
            const TensorRef place = place_of(y, dim, start, length);
            TensorRef source(&x);
            if (stacks) {  // with the new dim
                Dims sizes(place->sizes), strides(y.sizes.size());
                for (int d = 0; d < y.ndim(); ++d)
                    strides[size_t(d)] = d == dim ? 1 : x.strides[size_t(d - (d > dim))];
                source = new_view(x, std::move(sizes), std::move(strides), x.offset);
            }
            const Operand copied{source.get(), {}};
            execute_pointwise(*core_fns().copy, {&copied, 1}, {&place, 1});
        }
        start += length;
    }
    readers.reset();
    if (out.empty()) return results;
    // Into a tensor that an operand may share memory with: all of them have been read by now.
    const Operand made{&y, {}};
    return execute_pointwise(*core_fns().copy, {&made, 1}, out);
}

}  // namespace kiln
