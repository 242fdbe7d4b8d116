#include "record/snapshots.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kiln {

namespace {

constexpr size_t most_kept = 16;

bool same_values(const Tensor& a, const Tensor& b) {
    return a.contiguous && b.contiguous && a.dtype == b.dtype && a.sizes == b.sizes &&
           std::memcmp(a.data(), b.data(), size_t(a.numel) * itemsize(a.dtype)) == 0;
}

}  // namespace

TensorRef Snapshots::of(const Operand& operand) {
    const Tensor& x = *operand.tensor;
    const auto same = [&](const Snapshot& s) { return s.data == x.data() && same_values(x, *s.values); };
    if (const auto known = std::find_if(made_.begin(), made_.end(), same); known != made_.end())
        return known->values;
    TensorRef values = std::move(execute(*core_fns().copy, {&operand, 1}, {}, false)[0]);
    copied_ += size_t(values->numel) * itemsize(values->dtype);
    if (made_.size() == most_kept) made_.erase(made_.begin());
    made_.push_back({x.data(), values});
    return values;
}

}  // namespace kiln
