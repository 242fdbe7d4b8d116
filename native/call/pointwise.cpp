#include "call/pointwise.h"

#include <algorithm>

#include "base/check.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "program/program.h"
#include "record/record.h"

namespace kiln {

namespace {

constexpr int max_arrays = 24;  // inputs and outputs of one pointwise kernel
// A grain, about 8 us of one thread: so many elements of three arrays, fewer where more are walked.
int64_t grain_of(int arrays) { return arrays <= 3 ? 16384 : 3 * 16384 / arrays & ~63; }

// The iteration space: sizes outermost first, and for every array its strides in elements.
struct Space {
    int ndim = 0;
    int arrays = 0;
    int64_t sizes[64];
    int64_t strides[max_arrays][64];
};

// Fills the space with the operand's strides along the broadcast shape.
void add_array(Space& space, const Tensor& x, const Dims& shape) {
    int64_t* strides = space.strides[space.arrays++];
    int extra = shape.ndim() - x.ndim();
    for (int d = 0; d < shape.ndim(); ++d)
        strides[d] = d < extra || (x.sizes[d - extra] == 1 && shape[d] != 1) ? 0 : x.strides[d - extra];
}

void add_contiguous(Space& space, const Dims& shape) {
    int64_t* strides = space.strides[space.arrays++];
    int64_t step = 1;
    for (int d = shape.ndim() - 1; d >= 0; --d) {
        strides[d] = step;
        step *= shape[d];
    }
}

// Drops dims of size 1 and merges neighbours that every array walks as one.
void coalesce(Space& space, const Dims& shape) {
    int kept = 0;
    for (int d = 0; d < shape.ndim(); ++d) {
        if (shape[d] == 1) continue;
        bool merge = kept > 0;
        for (int a = 0; merge && a < space.arrays; ++a)
            merge = space.strides[a][kept - 1] == space.strides[a][d] * shape[d];
        int to = merge ? kept - 1 : kept++;
        space.sizes[to] = merge ? space.sizes[to] * shape[d] : shape[d];
        for (int a = 0; a < space.arrays; ++a) space.strides[a][to] = space.strides[a][d];
    }
    if (kept == 0) {
        kept = 1;
        space.sizes[0] = 1;
        for (int a = 0; a < space.arrays; ++a) space.strides[a][0] = 1;
    }
    space.ndim = kept;
}

// From so many elements on (8 MB of the widest dtype) a result may pass the caches: a layout class of its
// own, because a kernel that need not ask is made in four fifths of the time.
constexpr int64_t large_elements = 1 << 20;

uint8_t result_layout(int64_t elements) { return elements >= large_elements ? 3 : 1; }

// Whether an operand's neighbours lie along the last dim but one, and are so many that reading by squares
// pays: a layout class of operands, 3 as well.
bool transposed(const Space& space, int a) {
    if (space.ndim < 2) return false;
    int64_t across = space.sizes[space.ndim - 2], along = space.sizes[space.ndim - 1];
    return space.strides[a][space.ndim - 2] == 1 && stride_class(space.strides[a][space.ndim - 1]) == 2 &&
           across >= 16 && along >= 16 && across * along >= 4096;
}

// The look of a call whose arrays, and given results, have these layout classes.
Look look_of(std::span<const Operand> operands, std::span<const TensorRef> out, const uint8_t* layouts) {
    Look look;
    for (const Operand& operand : operands) look.add(operand, operand.tensor ? *layouts++ : 0);
    for (const TensorRef& target : out) look.add_result(target->dtype, *layouts++);
    if (out.empty()) look.add_new_results(*layouts);
    return look;
}

// `layouts`: of arrays, then of results, all that `look` has of them; `ndim`: of the space they are walked
// in.
PointwiseEntry& find_entry(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                           const Look& look, int ndim, std::span<const uint8_t> layouts) {
    static auto* table = new Table<PointwiseEntry>();
    Key key;
    key.push(fn.id | uint64_t(ndim) << 32);
    key.push(look);
    if (PointwiseEntry* entry = table->find(key)) return *entry;
    SmallVector<DType, 4> dtypes;
    for (const TensorRef& target : out) dtypes.push_back(target->dtype);
    return *table->insert(key, compiler::pointwise({&fn, operands}, ndim, layouts, dtypes));
}

// A launch that takes long, or comes while a kernel runs on another thread.
[[gnu::noinline]] void launch_apart(const Fn& fn, PointwiseEntry& entry, std::span<const Operand> operands,
                                    std::span<const TensorRef> results, void* const* pointers,
                                    const int64_t* args, int64_t units, int64_t grain) {
    code_of(*entry.kernel);  // may call up
    Unlocked unlocked;
    unlocked.uses(operands, results);
    unlocked.begin(units > grains_worth_it * grain);
    launch(*entry.kernel, fn.name, pointers, args, units, grain);
}

inline void launch_on(const Fn& fn, PointwiseEntry& entry, std::span<const Operand> operands,
                      std::span<const TensorRef> results, void* const* pointers, const int64_t* args,
                      int64_t units, int64_t grain) {
    if (units > grains_worth_it * grain || unlocked_runs) [[unlikely]]
        return launch_apart(fn, entry, operands, results, pointers, args, units, grain);
    if (SeenValues::any()) [[unlikely]] {
        code_of(*entry.kernel);  // may call up
        SeenValues::look_again();
    }
    launch(*entry.kernel, fn.name, pointers, args, units, grain);
}

void run_kernel(const Fn& fn, PointwiseEntry& entry, const Space& space, std::span<const Operand> operands,
                std::span<const TensorRef> results) {
    void* pointers[max_arrays];
    int arrays = 0;
    int64_t args[64 + 64 * max_arrays + 32];
    int64_t* arg = args;  // in the order of Nest.arguments (kiln/codegen/nests/nest.py)
    for (int d = 0; d < space.ndim; ++d) *arg++ = space.sizes[d];
    for (int a = 0; a < space.arrays; ++a)
        for (int d = 0; d < space.ndim; ++d) *arg++ = space.strides[a][d];
    for (const Operand& operand : operands) {
        if (operand.tensor)
            pointers[arrays++] =
                operand.tensor->storage ? operand.tensor->data() : nullptr;  // null: only its shape counts
        else
            *arg++ = operand.number.bits();
    }
    for (const TensorRef& result : results) pointers[arrays++] = result->data();
    int64_t units = 1, row = space.ndim > 1 ? space.sizes[space.ndim - 1] : 1;
    for (int d = 0; d < space.ndim - (space.ndim > 1); ++d) units *= space.sizes[d];
    launch_on(fn, entry, operands, results, pointers, args, units,
              std::max<int64_t>(grain_of(space.arrays) / std::max<int64_t>(row, 1), 1));
}

void check_count(const Fn& fn, std::span<const Operand> operands, size_t outputs) {
    KILN_CHECK(operands.size() + outputs <= max_arrays, not_implemented, fn.name, ": ", operands.size(),
               " operands and ", outputs, " results; a pointwise function has at most ", max_arrays,
               " of both");
}

// Whether writing `out` could change what another array operand still has to read.
bool clashes(const Tensor& out, const Tensor& x) {
    if (out.storage != x.storage) return false;
    const int64_t width = int64_t(itemsize(out.dtype)), other = int64_t(itemsize(x.dtype));
    if (out.offset == x.offset && width == other && out.sizes == x.sizes && out.strides == x.strides)
        return false;
    auto [low, high] = extent(out.sizes, out.strides, out.offset);
    auto [from, to] = extent(x.sizes, x.strides, x.offset);
    return low * width < to * other && from * other < high * width;
}

// Operands as they were before anything is written: those that overlap `out` otherwise than exactly are
// copied.
bool copy_clashing(Operands& operands, std::span<const TensorRef> out, Results& copies) {
    for (Operand& operand : operands)
        for (const TensorRef& target : out)
            if (operand.tensor && clashes(*target, *operand.tensor)) {
                copies.push_back(std::move(execute(*core_fns().copy, {&operand, 1}, {}, false)[0]));
                operand.tensor = copies.back().get();
                break;
            }
    return !copies.empty();
}

// Whether elements that are written share memory, in one tensor or between two.
bool overlap_each_other(std::span<const TensorRef> out) {
    for (size_t k = 0; k < out.size(); ++k) {
        if (overlaps_itself(*out[k])) return true;
        for (size_t j = 0; j < k; ++j)
            if (clashes(*out[k], *out[j])) return true;
    }
    return false;
}

// As if all operands were read before anything is written; then one element after the other is.
void execute_in_order(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    Results values;
    for (const TensorRef& target : out) values.push_back(new_tensor(target->dtype, target->sizes));
    execute_pointwise(fn, operands, values);
    for (size_t k = 0; k < out.size(); ++k) write_in_order(*out[k], values[k]->data());
}

}  // namespace

const Dims* common_shape(std::span<const Operand> operands) {
    static const Dims scalar{};
    const Dims* shape = nullptr;
    for (const Operand& operand : operands) {
        if (!operand.tensor || operand.tensor->ndim() == 0) continue;
        if (shape && !(operand.tensor->sizes == *shape)) return nullptr;
        shape = &operand.tensor->sizes;
    }
    return shape ? shape : &scalar;
}

Dims broadcast_shape(const Fn& fn, std::span<const Operand> operands) {
    Dims shape;
    for (const Operand& operand : operands) {
        if (!operand.tensor) continue;
        const Dims& sizes = operand.tensor->sizes;
        if (sizes.size() > shape.size()) {
            Dims wider(sizes.size(), 1);
            std::copy(shape.begin(), shape.end(), wider.end() - shape.size());
            shape = std::move(wider);
        }
        for (int d = sizes.ndim() - 1, to = shape.ndim() - 1; d >= 0; --d, --to) {
            if (shape[to] == 1) shape[to] = sizes[d];
            KILN_CHECK(sizes[d] == 1 || sizes[d] == shape[to], runtime, fn.name, ": The size of tensor a (",
                       shape[to], ") must match the size of tensor b (", sizes[d],
                       ") at non-singleton dimension ", to);
        }
    }
    return shape;
}

Results execute_pointwise(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    Results results;
    if (FlatCall flat; flat.look_at(fn, operands, out)) {
        results.resize(out.empty() ? fn.outputs : out.size());
        flat.run(fn, operands, out, results.data());
        return results;
    }
    const Dims* shape = common_shape(operands);
    Dims broadcast;
    if (!shape) {
        broadcast = broadcast_shape(fn, operands);
        shape = &broadcast;
    }
    if (!out.empty()) {
        shape = &out[0]->sizes;
        Results copies;
        Operands changed;
        for (const Operand& operand : operands) changed.push_back(operand);
        if (overlap_each_other(out)) {
            execute_in_order(fn, operands, out);
            for (const TensorRef& target : out) results.push_back(target);
            return results;
        }
        if (copy_clashing(changed, out, copies)) return execute_pointwise(fn, changed, out);
    }
    KILN_CHECK(shape->size() <= 64, not_implemented, fn.name, ": more than 64 dims");
    Space space;
    uint8_t layouts[max_arrays];
    int outputs = out.empty() ? fn.outputs : int(out.size());
    check_count(fn, operands, size_t(outputs));
    for (const Operand& operand : operands)
        if (operand.tensor) add_array(space, *operand.tensor, *shape);
    for (int k = 0; k < outputs; ++k)
        out.empty() ? add_contiguous(space, *shape) : add_array(space, *out[k], *shape);
    coalesce(space, *shape);
    for (int a = 0; a < space.arrays; ++a)
        layouts[a] = uint8_t(stride_class(space.strides[a][space.ndim - 1]));
    for (int a = 0; a < space.arrays - outputs; ++a)
        if (transposed(space, a)) layouts[a] = 3;
    for (int a = space.arrays - outputs; a < space.arrays; ++a)
        if (layouts[a] == 1) layouts[a] = result_layout(checked_numel(*shape));
    PointwiseEntry& entry = find_entry(fn, operands, out, look_of(operands, out, layouts), space.ndim,
                                       {layouts, size_t(space.arrays)});
    if (out.empty())
        for (DType dtype : entry.outputs) results.push_back(new_tensor(dtype, *shape));
    else
        for (const TensorRef& target : out) results.push_back(target);
    run_kernel(fn, entry, space, operands, results);
    return results;
}

bool FlatCall::look_at(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (operands.size() + std::max<size_t>(out.size(), fn.outputs) > most) return false;
    Look seen;  // not the member: it stays in registers
    shape = out.empty() ? nullptr : out[0].get();
    for (const Operand& operand : operands) {
        uint8_t layout = 0;
        if (const Tensor* x = operand.tensor) {
            if (!x->storage) return false;
            if (x->ndim() > 0) {
                if (!x->contiguous || (shape && !(x->sizes == shape->sizes))) return false;
                shape = x;
                layout = 1;
            }
            pending_ |= x->storage->recording || !x->storage->data;
            args_[1 + arrays_] = layout;
            pointers_[arrays_++] = x->data();
        }
        seen.add(operand, layout);
    }
    const uint8_t layout = result_layout(shape ? shape->numel : 1);
    for (const TensorRef& target : out) {
        if (!target->contiguous || !(target->sizes == shape->sizes)) return false;
        pending_ |= target->storage->recording || !target->storage->data;
        for (const Operand& operand : operands)
            if (operand.tensor && clashes(*target, *operand.tensor)) return false;
        seen.add_result(target->dtype, layout);
    }
    if (out.empty()) seen.add_new_results(layout);
    look = seen;
    return true;
}

inline PointwiseEntry& FlatCall::entry(Fn& fn, std::span<const Operand> operands,
                                       std::span<const TensorRef> out) const {
    if (!fn.last.flat.entry || fn.last.flat.look != look) [[unlikely]] {
        uint8_t layouts[most];
        for (int a = 0; a < arrays_; ++a) layouts[a] = uint8_t(args_[1 + a]);
        size_t outputs = out.empty() ? fn.outputs : out.size();
        std::fill(layouts + arrays_, layouts + arrays_ + outputs, result_layout(shape ? shape->numel : 1));
        PointwiseEntry& found = find_entry(fn, operands, out, look, 1, {layouts, arrays_ + outputs});
        fn.last.flat = {look, &found};
    }
    return *fn.last.flat.entry;
}

bool FlatCall::can_run_or_record(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    recording_ = current_recording();
    if (!recording_) return !pending_;
    entry(fn, operands, out);
    return recording_->takes(fn, operands, out);
}

void FlatCall::run(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                   TensorRef* results) {
    PointwiseEntry& entry = this->entry(fn, operands, out);
    const size_t count = entry.outputs.size();
    for (size_t k = 0; k < count; ++k) {
        if (!out.empty()) {
            results[k] = out[k];
            continue;
        }
        const DType dtype = entry.outputs[k];
        const size_t bytes = size_t(shape ? shape->numel : 1) * itemsize(dtype);
        StorageRef memory = recording_ ? reserve(bytes) : allocate(bytes);
        results[k] = shape ? new_tensor_like(dtype, *shape, std::move(memory))
                           : new_tensor(dtype, Dims(), std::move(memory));
    }
    if (recording_) return recording_->append_flat(fn, operands, {results, count}, !out.empty());
    for (size_t k = 0; k < count; ++k) {
        args_[1 + arrays_] = 1;
        pointers_[arrays_++] = results[k]->data();
    }
    int64_t* arg = args_ + 1 + arrays_;
    for (const Operand& operand : operands)
        if (!operand.tensor) *arg++ = operand.number.bits();
    args_[0] = shape ? shape->numel : 1;
    launch_on(fn, entry, operands, {results, count}, pointers_, args_, args_[0], grain_of(arrays_));
}

namespace {

// The entry for arrays of unit stride; what results it gives does not depend on that.
PointwiseEntry& plain_entry(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    const size_t outputs = out.empty() ? fn.outputs : out.size();
    check_count(fn, operands, outputs);
    size_t arrays = outputs;
    for (const Operand& operand : operands) arrays += operand.tensor != nullptr;
    uint8_t layouts[max_arrays];
    std::fill(layouts, layouts + arrays, uint8_t(1));
    return find_entry(fn, operands, out, look_of(operands, out, layouts), 1, {layouts, arrays});
}

}  // namespace

std::span<const DType> pointwise_dtypes(Fn& fn, std::span<const Operand> operands) {
    return plain_entry(fn, operands, {}).outputs;
}

void check_pointwise_dtypes(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    plain_entry(fn, operands, out);
}

}  // namespace kiln
