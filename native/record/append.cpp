// How a call is appended to a recording: what it looks like there, and the hash of all that.
#include <algorithm>
#include <bit>

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

// Whether `x` is exactly the value of a storage.
bool is_whole(const Tensor& x, const RecordedStorage& s, const int64_t* sizes) {
    if (!x.contiguous || x.offset != 0 || x.ndim() != s.ndim) return false;
    for (int d = 0; d < x.ndim(); ++d)
        if (x.sizes[d] != sizes[d]) return false;
    return true;
}

// How it looks at the value, if it is not that.
ArgClass class_of_part(const Tensor& x, const RecordedStorage& s, const int64_t* sizes) {
    int64_t numel = 1;
    for (int d = 0; d < s.ndim; ++d) numel *= sizes[d];
    if (x.contiguous && x.offset == 0 && x.numel == numel) {
        const bool same = without_ones(x.sizes) == without_ones({sizes, s.ndim});
        return same ? ArgClass::squeeze : ArgClass::reshape;
    }
    return is_expansion(x, sizes, s.ndim) ? ArgClass::expand : ArgClass::strided;
}

// Why writes of these are not recorded; null: they are.
const char* refusal_of(std::span<const TensorRef> out) {
    for (const TensorRef& target : out) {
        if (target->storage->outside || target->storage->foreign())
            return "of a write to memory that others can see";
        if (overlaps_itself(*target)) return "of a write to elements that share memory";
    }
    return nullptr;
}

}  // namespace

// Whether a call can be recorded. Storages pending elsewhere are settled first; as waiting for another thread
// lets it record or flush, that goes on until nothing had to be waited for.
bool Recording::accepts(std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (bool waited = true; waited;) {
        waited = wait_until_idle();
        if (ops_ >= most_ops) flush("the recording grew to its bound");
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
    return true;
}

int32_t Recording::add_storage(const StorageRef& storage, const Tensor& like, bool pending, bool flat) {
    const size_t index = storages_.size();
    RecordedStorage& entry = storages_.emplace_back();
    entry.storage = storage;
    entry.dtype = like.dtype;
    entry.shape_only = storage->nbytes == shape_only;
    entry.pending = pending && !entry.shape_only;
    entry.flat = flat;
    entry.slot = uint32_t(environment_.size());
    if (flat) {
        const auto count = int64_t(storage->nbytes / itemsize(like.dtype));
        entry.ndim = 1;
        entry.ones = count == 1;
        environment_.push_back(count);
    } else {
        entry.ndim = uint8_t(like.ndim());
        for (int d = 0; d < like.ndim(); ++d) {
            entry.ones |= uint64_t(like.sizes[d] == 1) << d;
            environment_.push_back(like.sizes[d]);
        }
    }
    if (expected_ && !(index < expected_->storages.size() && expected_->storages[index].looks_like(entry)))
        [[unlikely]]
        differ();
    storage->recording = this;
    storage->recording_id = int32_t(index);
    if (!entry.shape_only) bytes_ += storage->nbytes;
    return int32_t(index);
}

int32_t Recording::ordinal(Tensor& tensor) {
    Storage& storage = *tensor.storage;
    if (storage.recording == this) return storage.recording_id;
    bool pending = storage.data == nullptr;
    bool whole = pending || (tensor.contiguous && tensor.offset == 0 &&
                             size_t(tensor.numel) == storage.nbytes / itemsize(tensor.dtype));
    return add_storage(tensor.storage, tensor, pending, !whole);
}

ListedArg Recording::arg_of(Tensor& tensor) {
    ListedArg arg{.dtype = tensor.dtype, .ndim = uint8_t(tensor.ndim()), .value = ordinal(tensor)};
    arg.slot = uint32_t(environment_.size());
    const RecordedStorage& s = storages_[arg.value];
    const int64_t* stored = environment_.data() + s.slot;
    if (is_whole(tensor, s, stored)) [[likely]] {
        arg.cls = ArgClass::whole;
        arg.ones = s.ones;
        return arg;
    }
    arg.cls = class_of_part(tensor, s, stored);
    arg.ones = ones_of(tensor.sizes);
    for (int64_t size : tensor.sizes) environment_.push_back(size);
    for (int d = 0; d < tensor.ndim(); ++d) {
        environment_.push_back(tensor.strides[d]);
        arg.classes |= stride_class(tensor.strides[d]) << 2 * d;
    }
    environment_.push_back(tensor.offset);
    return arg;
}

ListedArg Recording::number_of(const Number& number) {
    const ListedArg arg{.dtype = dtype_of(number.kind), .slot = uint32_t(environment_.size())};
    environment_.push_back(number.bits());
    return arg;
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

// Adds a word, or something of 64 bits, to a hash.
void mix(Hash128& hash, const auto& word) { hash.mix(std::bit_cast<uint64_t>(word)); }

void mix_arg(Hash128& hash, const ListedArg& arg, std::span<const RecordedStorage> storages) {
    if (arg.cls == ArgClass::number) return mix(hash, ArgWord{arg.cls, arg.dtype, 0, false, arg.value});
    const RecordedStorage& s = storages[arg.value];
    mix(hash, ArgWord{arg.cls, arg.dtype, uint8_t(arg.ndim), s.flat && s.ones, arg.value});
    mix(hash, ArrayWord{uint32_t(arg.ones), s.dtype, s.flat, s.pending, s.shape_only});
    if (arg.cls == ArgClass::strided) mix(hash, arg.classes);
}

}  // namespace

Hash128 Recording::hash() const {
    Hash128 hash;
    const OpList& all = list();
    for (const ListedOp& op : all.ops) {
        mix(hash, OpWord{op.args, op.hidden, op.writes, uint16_t(op.outs)});
        for (uint64_t word : op.identity) mix(hash, word);
        for (const ListedArg& arg : all.args_of(op)) mix_arg(hash, arg, storages_);
        for (const ListedArg& out : all.outs_of(op)) {
            if (op.writes)
                mix_arg(hash, out, storages_);
            else if (out.ones)
                mix(hash, out.ones | ones_of_result);
        }
    }
    return hash;
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
    if (const char* cause = refusal_of(out)) return flush(cause), false;
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
    if (const char* cause = refusal_of(out)) return flush(cause), false;  // since others ran
    SeenValues::look_again();
    for (const Given& g : given) results.push_back(fresh_tensor(g.dtype, g.sizes));
    for (const TensorRef& target : out) results.push_back(target);
    append_op(fn, {own.data(), own.size()}, {results.data(), results.size()}, hidden, !out.empty());
    return true;
}

bool Recording::takes(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) const {
    if (flushing_ || ops_ >= most_ops || bytes_ >= recount_ || !(fn.identity[0] | fn.identity[1]) ||
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

// Keeps what was said of a call: nothing, as long as the same was said of the recording that is expected.
template <class Said>
[[gnu::always_inline]] inline void Recording::keep(std::vector<Said> OpList::* part, uint32_t& count,
                                                   const Said& said) {
    if (expected_) {
        const std::vector<Said>& known = expected_->list.*part;
        if (count < known.size() && known[count] == said) [[likely]] {
            ++count;
            if (check_mode) [[unlikely]]
                (list_.*part).push_back(said);
            return;
        }
        differ();
    }
    (list_.*part).push_back(said);
    ++count;
}

// It is not the recording that was expected, though it was so far.
void Recording::differ() {
    const std::shared_ptr<RegionEntry> entry = std::move(expected_);
    const OpList& known = entry->list;
    list_.ops.assign(known.ops.begin(), known.ops.begin() + ops_);
    list_.args.assign(known.args.begin(), known.args.begin() + args_);
    list_.outs.assign(known.outs.begin(), known.outs.begin() + outs_);
}

// Nothing fails once the op is half recorded.
void Recording::append_op(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results,
                          bool hidden, bool writes) {
    if (ops_ == 0) expected_ = region_->expected();
    make_room(operands.size() + results.size());
    keep(&OpList::ops, ops_,
         {.fn = &fn,
          .hidden = hidden,
          .writes = writes,
          .first_arg = args_,
          .args = uint32_t(operands.size()),
          .first_out = outs_,
          .outs = uint32_t(results.size()),
          .identity = fn.identity});
    for (const Operand& operand : operands)
        keep(&OpList::args, args_, operand.tensor ? arg_of(*operand.tensor) : number_of(operand.number));
    for (const TensorRef& result : results)
        keep(&OpList::outs, outs_, writes ? written(*result) : made(*result));
    if (keep_lines_) [[unlikely]]
        lines_.push_back(SourceLine::current());
}

ListedArg Recording::written(Tensor& target) {
    const ListedArg out = arg_of(target);
    RecordedStorage& s = storages_[out.value];
    s.written = s.written || !s.pending;
    return out;
}

ListedArg Recording::made(Tensor& result) {
    ListedArg out{.cls = ArgClass::whole, .dtype = result.dtype, .ndim = uint8_t(result.ndim())};
    out.value = add_storage(result.storage, result, true, false);
    out.slot = uint32_t(environment_.size());
    out.ones = storages_.back().ones;
    return out;
}

// Memory for one more op of so many arguments and results.
void Recording::make_room(size_t arrays) {
    auto reserve = [](auto& list, size_t count) {
        if (list.capacity() < count) [[unlikely]]
            list.reserve(std::max(2 * list.capacity(), count));
    };
    reserve(list_.args, args_ + arrays);
    reserve(list_.outs, outs_ + arrays);
    reserve(storages_, storages_.size() + arrays);
    reserve(list_.ops, ops_ + size_t(1));
    // of each its sizes, twice where its storage is new, strides and offset
    environment_.reserve(environment_.size() + arrays * (3 * most_dims + 2));
    if (keep_lines_) [[unlikely]]
        reserve(lines_, lines_.size() + 1);
}

}  // namespace kiln
