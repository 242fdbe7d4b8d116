#include "call/tensor.h"

#include <algorithm>
#include <new>
#include <string>

#include "base/check.h"
#include "base/free_list.h"

namespace kiln {

void (*Opaque::retain)(void*) = nullptr;
void (*Opaque::drop)(void*) = nullptr;

AutogradMeta& ensure_meta(Tensor& tensor) {
    if (!tensor.meta) {
        tensor.meta = MetaRef(new_meta());
        tensor.meta->owner = &tensor;
    }
    return *tensor.meta;
}

Dims contiguous_strides(const Dims& sizes) {
    Dims strides(sizes.size());
    int64_t step = 1;
    for (int d = sizes.ndim() - 1; d >= 0; --d) {
        strides[d] = step;
        step *= std::max<int64_t>(sizes[d], 1);
    }
    return strides;
}

bool is_contiguous(const Dims& sizes, const Dims& strides) {
    int64_t step = 1;
    for (int d = sizes.ndim() - 1; d >= 0; --d) {
        if (sizes[d] == 0) return true;
        if (sizes[d] != 1 && strides[d] != step) return false;
        step *= sizes[d];
    }
    return true;
}

int64_t checked_numel(const Dims& sizes) {
    int64_t count = 1;
    bool overflow = false;
    int64_t smallest = 0;
    for (int64_t size : sizes) {
        smallest = std::min(smallest, size);
        overflow |= __builtin_mul_overflow(count, size, &count);
    }
    KILN_CHECK(smallest >= 0, runtime, "Trying to create tensor with negative dimension ", smallest, ": ",
               shape_text(sizes));
    if (overflow) [[unlikely]] {
        bool zero = std::any_of(sizes.begin(), sizes.end(), [](int64_t s) { return s == 0; });
        KILN_CHECK(zero, runtime, "shape ", shape_text(sizes),
                   ": the number of elements does not fit in 64 bits");
        return 0;
    }
    return count;
}

std::string shape_text(const Dims& sizes) {
    std::string text = "[";
    for (size_t d = 0; d < sizes.size(); ++d) text += (d ? ", " : "") + std::to_string(sizes[d]);
    return text + "]";
}

TensorRef new_tensor(DType dtype, const Dims& sizes, StorageRef storage) {
    TensorRef tensor(FreeList<Tensor>::make());
    tensor->dtype = dtype;
    tensor->sizes = sizes;
    tensor->strides = contiguous_strides(sizes);
    tensor->numel = checked_numel(sizes);
    tensor->storage = std::move(storage);
    return tensor;
}

TensorRef new_tensor(DType dtype, const Dims& sizes) {
    return new_tensor(dtype, sizes, allocate(checked_nbytes(checked_numel(sizes), itemsize(dtype))));
}

TensorRef new_tensor_like(DType dtype, const Tensor& like, StorageRef storage) {
    TensorRef tensor(FreeList<Tensor>::make());
    tensor->dtype = dtype;
    tensor->sizes = like.sizes;
    tensor->strides = like.strides;
    if (std::any_of(like.sizes.begin(), like.sizes.end(), [](int64_t size) { return size <= 1; }))
        tensor->strides = contiguous_strides(like.sizes);  // like's own may be others there
    tensor->numel = like.numel;
    tensor->storage = std::move(storage);
    return tensor;
}

namespace {

// A tensor over source's storage that has no sizes yet.
TensorRef over(const Tensor& source) {
    TensorRef view(FreeList<Tensor>::make());
    view->dtype = source.dtype;
    view->storage = source.storage;
    view->untracked = source.untracked;
    return view;
}

}  // namespace

TensorRef new_view(const Tensor& source, Dims sizes, Dims strides, int64_t offset) {
    TensorRef view = over(source);
    view->offset = offset;
    view->numel = checked_numel(sizes);
    view->contiguous = is_contiguous(sizes, strides);
    view->sizes = std::move(sizes);
    view->strides = std::move(strides);
    return view;
}

void resize(Tensor& tensor, const Dims& sizes) {
    TensorRef made = new_tensor(tensor.dtype, sizes);
    made->storage->version = tensor.storage->version;
    tensor.storage = made->storage;
    tensor.sizes = made->sizes;
    tensor.strides = made->strides;
    tensor.numel = made->numel;
    tensor.offset = 0;
    tensor.contiguous = true;
}

TensorRef alias(const Tensor& source) {
    TensorRef view = over(source);
    view->offset = source.offset;
    view->numel = source.numel;
    view->contiguous = source.contiguous;
    view->sizes = source.sizes;
    view->strides = source.strides;
    return view;
}

std::pair<int64_t, int64_t> extent(const Dims& sizes, const Dims& strides, int64_t offset) {
    int64_t low = offset, high = offset, span = 0;
    bool overflow = false;
    for (size_t d = 0; d < sizes.size(); ++d) {
        if (sizes[d] == 0) return {offset, offset};
        overflow |= __builtin_mul_overflow(sizes[d] - 1, strides[d], &span);
        int64_t& end = span < 0 ? low : high;
        overflow |= __builtin_add_overflow(end, span, &end);
    }
    overflow |= __builtin_add_overflow(high, 1, &high);
    KILN_CHECK(!overflow, runtime, "Storage size calculation overflowed with sizes=", shape_text(sizes),
               ", strides=", shape_text(strides), " and storage offset ", offset);
    return {low, high};
}

bool is_expanded(const Tensor& tensor) {
    if (tensor.contiguous || tensor.numel <= 1) return false;
    for (int d = 0; d < tensor.ndim(); ++d)
        if (tensor.sizes[d] > 1 && tensor.strides[d] == 0) return true;
    return false;
}

namespace {

// Calls visit(place) for every element in logical order, until it returns false.
template <class Visit>
void visit_places(const Tensor& x, Visit visit) {
    Dims at(x.sizes.size());
    int64_t place = x.offset;
    for (int64_t left = x.numel; left > 0 && visit(place); --left)
        for (int d = x.ndim() - 1; d >= 0; --d) {
            place += x.strides[d];
            if (++at[d] < x.sizes[d]) break;
            place -= at[d] * x.strides[d];
            at[d] = 0;
        }
}

// Whether every step goes beyond what the narrower dims reach, so that no two elements can meet.
bool steps_apart(const Tensor& x) {
    using Step = std::pair<int64_t, int64_t>;  // and the size it is taken over
    SmallVector<Step, 8> dims;
    int64_t reach = 0;
    auto apart = [&reach](const Step& dim) {
        const bool beyond = dim.first > reach;
        reach += (dim.second - 1) * dim.first;
        return beyond;
    };
    bool all = true;
    for (int d = x.ndim() - 1; d >= 0; --d)
        if (x.sizes[d] > 1) {
            dims.push_back({std::abs(x.strides[d]), x.sizes[d]});
            all = all && apart(dims[dims.size() - 1]);
        }
    if (all) return true;  // in order, as most are
    std::sort(dims.begin(), dims.end());
    reach = 0;
    return std::all_of(dims.begin(), dims.end(), apart);
}

}  // namespace

bool overlaps_itself(const Tensor& tensor) {
    if (tensor.contiguous || tensor.numel <= 1 || steps_apart(tensor)) return false;
    auto [low, high] = extent(tensor.sizes, tensor.strides, tensor.offset);
    if (tensor.numel > high - low) return true;
    std::vector<bool> seen(size_t(high - low));
    bool met = false;
    visit_places(tensor, [&, first = low](int64_t place) {
        met = seen[size_t(place - first)];
        seen[size_t(place - first)] = true;
        return !met;
    });
    return met;
}

void write_in_order(Tensor& target, const std::byte* values) {
    auto* start = static_cast<std::byte*>(target.storage->data);
    const size_t width = itemsize(target.dtype);
    visit_places(target, [&](int64_t place) {
        std::memcpy(start + size_t(place) * width, values, width);
        values += width;
        return true;
    });
}

namespace {

// Whether a tensor's elements lie side by side, in some order of its dims.
bool is_dense(const Tensor& x) {
    if (x.contiguous) return true;
    int64_t step = 1;
    uint64_t done = 0;
    for (int round = 0; round < x.ndim(); ++round) {
        int next = -1;
        for (int d = 0; d < x.ndim() && next < 0; ++d)
            if (!(done >> d & 1) && (x.sizes[d] == 1 || x.strides[d] == step)) next = d;
        if (next < 0) return false;
        done |= uint64_t(1) << next;
        step *= x.sizes[next];
    }
    return true;
}

}  // namespace

bool overlaps_partly(const Tensor& a, const Tensor& b) {
    if (a.storage != b.storage || a.numel == 0 || b.numel == 0 || &a == &b) return false;
    if (!is_dense(a) || !is_dense(b)) return false;
    int64_t width = int64_t(itemsize(a.dtype)), other = int64_t(itemsize(b.dtype));
    int64_t low = a.offset * width, high = low + a.numel * width;
    int64_t from = b.offset * other, to = from + b.numel * other;
    if (low == from && high == to) {
        bool same = a.ndim() == b.ndim() && width == other;
        for (int d = 0; same && d < a.ndim(); ++d)
            same = a.strides[d] == b.strides[d] || (a.sizes[d] == 1 && b.sizes[d] == 1);
        return !same;
    }
    return low < to && from < high;
}

bool can_view(const Tensor& x, const Dims& sizes, Dims* strides) {
    if (x.contiguous || x.numel == 0) {
        *strides = contiguous_strides(sizes);
        return true;
    }
    // Walk both shapes from the end; a run of x's dims that is contiguous in itself may be split or merged.
    *strides = Dims(sizes.size());
    int to = sizes.ndim() - 1;
    int64_t chunk = 1, step = 1;
    bool open = false;
    for (int d = x.ndim() - 1; d >= 0; --d) {
        if (!open) step = x.strides[d];
        open = true;
        chunk *= x.sizes[d];
        bool last = d == 0 || (x.sizes[d - 1] != 1 && x.strides[d - 1] != chunk * step);
        if (!last) continue;
        int64_t filled = 1;
        while (to >= 0 && (filled < chunk || sizes[to] == 1)) {
            (*strides)[to] = filled * step;
            filled *= sizes[to--];
        }
        if (filled != chunk) return false;
        chunk = 1;
        open = false;
    }
    return to == -1;
}

TensorRef view_reshape(const Tensor& x, const Dims& sizes, bool must_view) {
    KILN_CHECK(checked_numel(sizes) == x.numel, runtime, "shape '", shape_text(sizes),
               "' is invalid for input of size ", x.numel);
    Dims strides;
    if (can_view(x, sizes, &strides)) return new_view(x, sizes, std::move(strides), x.offset);
    KILN_CHECK(!must_view, runtime, "view size is not compatible with input tensor's size and stride (input ",
               shape_text(x.sizes), " with strides ", shape_text(x.strides), ", asked for ",
               shape_text(sizes), "). Use .reshape(...) instead.");
    return nullptr;
}

TensorRef view_permute(const Tensor& x, const Dims& dims) {
    KILN_CHECK(dims.size() == x.sizes.size(), runtime,
               "permute(sparse_coo): number of dimensions in the tensor input does not match the length of "
               "the desired ordering of dimensions i.e. input.dim() = ",
               x.ndim(), " is not equal to len(dims) = ", dims.ndim());
    Dims sizes(dims.size()), strides(dims.size());
    Dims seen(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) {
        int64_t from = dims[d] < 0 ? dims[d] + x.ndim() : dims[d];
        KILN_CHECK(from >= 0 && from < x.ndim(), index,
                   "Dimension out of range (expected to be in range of [", -x.ndim(), ", ", x.ndim() - 1,
                   "], but got ", dims[d], ")");
        KILN_CHECK(!seen[from], runtime, "permute: duplicate dims are not allowed");
        seen[from] = 1;
        sizes[d] = x.sizes[from];
        strides[d] = x.strides[from];
    }
    return new_view(x, std::move(sizes), std::move(strides), x.offset);
}

TensorRef view_expand(const Tensor& x, const Dims& sizes) {
    int extra = sizes.ndim() - x.ndim();
    KILN_CHECK(extra >= 0, runtime, "expand: the number of sizes provided (", sizes.ndim(),
               ") must be greater or equal to the number of dimensions in the tensor (", x.ndim(), ")");
    Dims out(sizes), strides(sizes.size());
    for (int d = sizes.ndim() - 1; d >= 0; --d) {
        int from = d - extra;
        if (from < 0) {
            KILN_CHECK(sizes[d] >= 0, runtime, "The expanded size of the tensor (", sizes[d],
                       ") isn't allowed in a leading, non-existing dimension ", d);
            strides[d] = x.ndim() && sizes[d] == 1 ? out[d + 1] * strides[d + 1] : 0;
            continue;
        }
        if (sizes[d] == -1) out[d] = x.sizes[from];
        KILN_CHECK(out[d] == x.sizes[from] || x.sizes[from] == 1, runtime,
                   "The expanded size of the tensor (", out[d], ") must match the existing size (",
                   x.sizes[from], ") at non-singleton dimension ", d, ". Target sizes: ", shape_text(sizes),
                   ". Tensor sizes: ", shape_text(x.sizes));
        strides[d] = x.sizes[from] == 1 && out[d] != 1 ? 0 : x.strides[from];
    }
    return new_view(x, std::move(out), std::move(strides), x.offset);
}

TensorRef view_slice(const Tensor& x, int64_t dim, int64_t start, int64_t length, int64_t step) {
    KILN_CHECK(dim >= 0 && dim < x.ndim(), index, "slice: dim ", dim, " of a tensor with ", x.ndim(),
               " dims");
    KILN_CHECK(step > 0 && length >= 0 && start >= 0 &&
                   (length == 0 || (start < x.sizes[dim] && length - 1 <= (x.sizes[dim] - 1 - start) / step)),
               index, "slice: start ", start, ", length ", length, ", step ", step,
               " is out of bounds for size ", x.sizes[dim]);
    Dims sizes(x.sizes), strides(x.strides);
    sizes[dim] = length;
    strides[dim] *= step;
    return new_view(x, std::move(sizes), std::move(strides),
                    x.offset + (length ? start * x.strides[dim] : 0));
}

TensorRef view_select(const Tensor& x, int64_t dim, int64_t place) {
    KILN_CHECK(dim >= 0 && dim < x.ndim() && place >= 0 && place < x.sizes[dim], index, "select(): index ",
               place, " out of range for tensor of size ", shape_text(x.sizes), " at dimension ", dim);
    Dims sizes(x.sizes.size() - 1), strides(x.sizes.size() - 1);
    for (size_t d = 0, to = 0; d < x.sizes.size(); ++d)
        if (d != size_t(dim)) {
            sizes[to] = x.sizes[d];
            strides[to++] = x.strides[d];
        }
    return new_view(x, std::move(sizes), std::move(strides), x.offset + place * x.strides[dim]);
}

TensorRef view_as_strided(const Tensor& x, const Dims& sizes, const Dims& strides, int64_t offset) {
    KILN_CHECK(sizes.size() == strides.size(), runtime,
               "as_strided: mismatch in length of strides and shape");
    for (int64_t stride : strides)
        KILN_CHECK(stride >= 0, runtime,
                   "as_strided: Negative strides are not supported at the moment, got strides: ",
                   shape_text(strides));
    auto [low, high] = extent(sizes, strides, offset);
    KILN_CHECK(checked_numel(sizes) == 0 ||
                   (low >= 0 && size_t(high) <= x.storage->nbytes / itemsize(x.dtype)),
               runtime, "setStorage: sizes ", shape_text(sizes), ", strides ", shape_text(strides),
               ", storage offset ", offset, " are out of bounds for storage of size ", x.storage->nbytes);
    return new_view(x, sizes, strides, offset);
}

}  // namespace kiln
