#include "call/look.h"

#include "base/check.h"

namespace kiln {

uint64_t ones_of(const Dims& sizes) {
    uint64_t ones = 0;
    for (size_t d = 0; d < sizes.size(); ++d) ones |= uint64_t(sizes[d] == 1) << d;
    return ones;
}

void describe(const Operand& operand, Key& key) {
    if (!operand.tensor) {
        key.push(1 | uint64_t(operand.number.kind) << 8);
        return;
    }
    const Tensor& x = *operand.tensor;
    KILN_CHECK(x.ndim() <= 24, not_implemented, "a tensor of ", x.ndim(),
               " dims: at most 24 are supported here");
    key.push(2 | uint64_t(x.dtype) << 8 | uint64_t(x.ndim()) << 16 | uint64_t(x.contiguous) << 24 |
             ones_of(x.sizes) << 32);
    if (x.contiguous) return;
    uint64_t classes = 0;
    for (int d = 0; d < x.ndim(); ++d) classes |= stride_class(x.strides[d]) << 2 * d;
    key.push(classes);
}

}  // namespace kiln
