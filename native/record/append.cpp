// How a call is appended to a recording: what it looks like there, which its hash is made of.
#include <algorithm>

#include "base/check.h"
#include "base/invariants.h"
#include "batch/list.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "call/join.h"
#include "call/pointwise.h"
#include "call/trace.h"
#include "program/program_call.h"
#include "record/record.h"

namespace kiln {

namespace {

constexpr size_t most_ops = 10000;  // a recording past this flushes itself
constexpr int most_dims = 24;       // of an argument: what is hashed of them are 64 bits

Dims without_ones(std::span<const int64_t> sizes) {
    Dims kept;
    for (int64_t size : sizes)
        if (size != 1) kept.push_back(size);
    return kept;
}

// Whether `x` repeats a contiguous value of these sizes along dims of stride 0.
bool is_expansion(const Tensor& x, const int64_t* sizes, int ndim) {
    int extra = x.ndim() - ndim;
    if (extra < 0 || x.offset != 0) return false;
    int64_t step = 1;
    for (int d = x.ndim() - 1; d >= 0; --d) {
        int from = d - extra;
        if (from < 0 || (sizes[from] == 1 && x.sizes[d] != 1)) {
            if (x.sizes[d] != 1 && x.strides[d] != 0) return false;
        } else if (x.sizes[d] != sizes[from] || (x.sizes[d] != 1 && x.strides[d] != step)) {
            return false;
        }
        if (from >= 0) step *= sizes[from];
    }
    return true;
}

}  // namespace

// Whether a call can be recorded. Storages pending elsewhere are settled first; as waiting for another thread
// lets it record or flush, that goes on until nothing had to be waited for.
bool Recording::accepts(std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (bool waited = true; waited;) {
        waited = wait_until_idle();
        if (list_.ops.size() >= most_ops) flush("the recording grew to its bound");
        if (holds_too_much()) flush("the recording held too many bytes");
        auto settled = [&](Storage* storage) {
            if (!storage || storage->recording == this || storage->nbytes == shape_only) return;
            const CallTrace* trace = current_trace();
            const bool nothing_runs = trace && trace->abstract && !is_listed(*storage);
            if (!storage->recording && (storage->data || nothing_runs)) return;
            settle(*storage, true);
            waited = true;
        };
        for (const Operand& operand : operands)
            if (operand.tensor) settled(operand.tensor->storage.get());
        for (const TensorRef& target : out)
            if (target->storage->recording) settled(target->storage.get());
    }
    for (const Operand& operand : operands)
        if (operand.tensor && operand.tensor->ndim() > most_dims) return false;
    for (const TensorRef& target : out)
        if (target->storage->outside || target->storage->foreign() || overlaps_itself(*target)) {
            flush(target->storage->foreign() || target->storage->outside
                      ? "of a write to memory that others can see"
                      : "of a write to elements that share memory");
            return false;
        }
    return true;
}

int32_t Recording::add_storage(StorageRef storage, const Tensor& like, bool pending, bool flat) {
    RecordedStorage entry{storage, like.dtype, pending, false, flat, 0, uint32_t(environment_.size()), 0};
    if (flat) {
        const auto count = int64_t(storage->nbytes / itemsize(like.dtype));
        entry.ndim = 1;
        entry.ones = count == 1;
        environment_.push_back(count);
    } else {
        entry.ndim = uint8_t(like.ndim());
        entry.ones = ones_of(like.sizes);
        for (int64_t size : like.sizes) environment_.push_back(size);
    }
    storage->recording = this;
    storage->recording_id = int32_t(storages_.size());
    if (storage->nbytes != shape_only) bytes_ += storage->nbytes;
    storages_.push_back(std::move(entry));
    return storages_.back().storage->recording_id;
}

int32_t Recording::ordinal(Tensor& tensor) {
    Storage& storage = *tensor.storage;
    if (storage.recording == this) return storage.recording_id;
    bool pending = storage.data == nullptr;
    bool whole = pending || (tensor.contiguous && tensor.offset == 0 &&
                             size_t(tensor.numel) == storage.nbytes / itemsize(tensor.dtype));
    return add_storage(tensor.storage, tensor, pending, !whole);
}

ArgClass Recording::classify(const Tensor& x, const RecordedStorage& s) const {
    const int64_t* sizes = environment_.data() + s.slot;
    const bool from_start = x.contiguous && x.offset == 0;
    if (from_start && x.ndim() == s.ndim && std::equal(x.sizes.begin(), x.sizes.end(), sizes))
        return ArgClass::whole;
    int64_t numel = 1;
    for (int d = 0; d < s.ndim; ++d) numel *= sizes[d];
    if (from_start && x.numel == numel) {
        const bool same = without_ones(x.sizes) == without_ones({sizes, s.ndim});
        return same ? ArgClass::squeeze : ArgClass::reshape;
    }
    return is_expansion(x, sizes, s.ndim) ? ArgClass::expand : ArgClass::strided;
}

void Recording::describe_arg(ListedArg& arg, Tensor& tensor) {
    arg.value = ordinal(tensor);
    arg.dtype = tensor.dtype;
    arg.ndim = uint8_t(tensor.ndim());
    arg.cls = classify(tensor, storages_[arg.value]);
    arg.ones = ones_of(tensor.sizes);
    arg.slot = uint32_t(environment_.size());
    if (arg.cls != ArgClass::whole) {
        for (int64_t size : tensor.sizes) environment_.push_back(size);
        for (int d = 0; d < tensor.ndim(); ++d) {
            environment_.push_back(tensor.strides[d]);
            arg.classes |= stride_class(tensor.strides[d]) << 2 * d;
        }
        environment_.push_back(tensor.offset);
    }
}

namespace {

// What is hashed of a recording, in words of 64 bits. They hold no id of this process, as the hash finds
// programs on disk too.

struct OpWord {
    uint32_t args;
    bool hidden, writes;
    uint16_t outs;  // a few: the word's highest bit is 0
};

struct ArgWord {
    ArgClass cls;
    DType dtype;
    uint8_t ndim;
    bool single;  // of a storage that is taken as one dim, and has one element
    int32_t value;
};

// Of an argument that is an array.
struct ArrayWord {
    uint32_t ones;
    DType stored_as;
    bool flat, pending, shape_only;
};

// A size of a result that came as a number may be 1: then a word with the highest bit says which.
constexpr uint64_t ones_of_result = uint64_t(1) << 63;

}  // namespace

void Recording::mix_op(const ListedOp& op) {
    mix(OpWord{op.args, op.hidden, op.writes, uint16_t(op.outs)});
    for (uint64_t word : op.fn->identity) mix(word);
}

void Recording::mix_arg(const ListedArg& arg) {
    if (arg.cls == ArgClass::number) return mix(ArgWord{arg.cls, arg.dtype, 0, false, arg.value});
    const RecordedStorage& s = storages_[arg.value];
    const bool shapes = s.storage->nbytes == shape_only;
    mix(ArgWord{arg.cls, arg.dtype, arg.ndim, s.flat && s.ones, arg.value});
    mix(ArrayWord{uint32_t(arg.ones), s.dtype, s.flat, s.pending, shapes});
    if (arg.cls == ArgClass::strided) mix(arg.classes);
}

void Recording::describe_number(ListedArg& arg, const Number& number) {
    arg.dtype = dtype_of(number.kind);
    arg.slot = uint32_t(environment_.size());
    environment_.push_back(number.bits());
}

namespace {

// What a call gives. Found before the call is recorded: it may call up, and other threads run meanwhile.
struct Given {
    DType dtype;
    Dims sizes;
};

void results_of(Fn& fn, std::span<const Operand> operands, bool hidden, SmallVector<Given, 2>& given) {
    if (fn.cls == FnClass::pointwise) {
        Dims shape = broadcast_shape(fn, operands);
        for (DType dtype : pointwise_dtypes(fn, operands)) given.push_back({dtype, shape});
        return;
    }
    if (fn.cls == FnClass::join)
        return given.push_back({operands[0].tensor->dtype, join_sizes(fn, operands)});
    const Program& program = program_for(fn, operands, hidden ? ProgramFor::hidden : ProgramFor::results);
    const Dims slots = slots_of(program, fn, operands);
    for (size_t k = 0; k < program.outputs.size(); ++k)
        given.push_back({program.outputs[k].dtype, output_sizes(program, k, slots.data())});
}

}  // namespace

// Replaces what cannot be recorded as it is; `held` keeps what stands for it.
void Recording::take_snapshots(Operands& operands, Results& held) {
    for (Operand& operand : operands) {
        if (!operand.tensor) continue;
        const Tensor& x = *operand.tensor;
        if (x.storage && !is_public(*x.storage)) continue;
        held.push_back(x.storage ? snapshots_.of(operand)
                                 : new_tensor(x.dtype, x.sizes, reserve(shape_only)));  // its sizes only
        operand.tensor = held.back().get();
    }
}

bool Recording::append(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden,
                       Results& results) {
    assert_locked();
    if (fn.op && fn.op->at_once && out.empty()) return false;
    Stopwatch watch(timed_ ? &seconds_ : nullptr);
    SmallVector<Given, 2> given;
    if (out.empty()) results_of(fn, operands, hidden, given);
    if (fn.identity == Identity{}) [[unlikely]]
        compiler::identify(fn);
    Results snapshots;
    Operands own;
    for (const Operand& operand : operands) own.push_back(operand);
    take_snapshots(own, snapshots);
    if (!accepts({own.data(), own.size()}, out)) return false;
    SeenValues::look_again();
    for (const Given& g : given) results.push_back(fresh_tensor(g.dtype, g.sizes));
    for (const TensorRef& target : out) results.push_back(target);
    append_op(fn, {own.data(), own.size()}, {results.data(), results.size()}, hidden, !out.empty());
    return true;
}

bool Recording::takes(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) const {
    if (flushing_ || list_.ops.size() >= most_ops || bytes_ >= recount_ || fn.identity == Identity{} ||
        (fn.op && fn.op->at_once && out.empty()))
        return false;
    auto fits = [this](const Tensor& x) {
        const Storage& s = *x.storage;
        return !is_public(s) && x.ndim() <= most_dims &&
               (s.recording ? s.recording == this : s.data != nullptr);
    };
    for (const Operand& operand : operands)
        if (operand.tensor && !fits(*operand.tensor)) return false;
    for (const TensorRef& target : out)
        if (!fits(*target) || target->storage->foreign()) return false;
    return true;
}

void Recording::append_flat(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results,
                            bool writes) {
    assert_locked();
    Stopwatch watch(timed_ ? &seconds_ : nullptr);
    SeenValues::look_again();
    append_op(fn, operands, results, false, writes);
}

// Nothing fails once the op is half recorded.
void Recording::append_op(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results,
                          bool hidden, bool writes) {
    make_room(operands, results);
    const ListedOp op{.fn = &fn,
                      .hidden = hidden,
                      .writes = writes,
                      .first_arg = uint32_t(list_.args.size()),
                      .args = uint32_t(operands.size()),
                      .first_out = uint32_t(list_.outs.size()),
                      .outs = uint32_t(results.size())};
    mix_op(op);
    for (const Operand& operand : operands) append_arg(operand);
    for (const TensorRef& result : results) append_out(*result, writes);
    list_.ops.push_back(op);
    if (keep_lines_) [[unlikely]]
        lines_.push_back(SourceLine::current());
}

void Recording::append_arg(const Operand& operand) {
    ListedArg& arg = list_.args.emplace_back();  // written where it stays
    if (operand.tensor) {
        describe_arg(arg, *operand.tensor);
        if (operand.tensor->storage->nbytes == shape_only) storages_[arg.value].pending = false;
    } else {
        describe_number(arg, operand.number);
    }
    mix_arg(arg);
}

void Recording::append_out(Tensor& result, bool writes) {
    ListedArg& out = list_.outs.emplace_back();
    if (writes) {
        describe_arg(out, result);
        mix_arg(out);
        RecordedStorage& s = storages_[out.value];
        s.written = s.written || !s.pending;
        return;
    }
    out.cls = ArgClass::whole;
    out.dtype = result.dtype;
    out.ndim = uint8_t(result.ndim());
    out.value = add_storage(result.storage, result, true, false);
    out.slot = uint32_t(environment_.size());
    out.ones = storages_.back().ones;
    if (out.ones) mix(out.ones | ones_of_result);
}

// Memory for one more op.
void Recording::make_room(std::span<const Operand> operands, std::span<const TensorRef> results) {
    auto reserve = [](auto& list, size_t more) {
        if (list.capacity() - list.size() < more)
            list.reserve(std::max(2 * list.capacity(), list.size() + more));
    };
    size_t numbers = 0;  // of each array its sizes, twice where its storage is new, strides and offset
    auto count = [&](const Tensor* x) { numbers += x ? 3 * size_t(x->ndim()) + 2 : 1; };
    for (const Operand& operand : operands) count(operand.tensor);
    for (const TensorRef& result : results) count(result.get());
    const size_t arrays = operands.size() + results.size();
    reserve(list_.args, operands.size());
    reserve(list_.outs, results.size());
    reserve(storages_, arrays);
    reserve(list_.ops, 1);
    environment_.reserve(environment_.size() + numbers);
    if (keep_lines_) reserve(lines_, 1);
}

}  // namespace kiln
