#include "record.h"

#include <algorithm>
#include <bit>

#include "check.h"
#include "compiler.h"
#include "pointwise.h"

namespace kiln {

namespace {

constexpr size_t most_ops = 20000;                // a recording past this flushes itself
constexpr size_t most_bytes = size_t(1) << 30;    // of results nobody but the recording may hold
constexpr size_t most_entries = 256;              // programs remembered per region
constexpr size_t most_events = 64;
constexpr size_t shape_only = ~size_t(0);         // nbytes of a storage that never has values

thread_local struct {
    std::vector<std::unique_ptr<Recording>> stack;  // one recording; nested regions join it
    int depth = 0;
    bool paused = false;
} state;

// Gives a storage without memory the memory of another.
void take_memory(Storage& to, Storage& from) {
    std::swap(to.data, from.data);
    std::swap(to.size_class, from.size_class);
    std::swap(to.nbytes, from.nbytes);
}

StorageRef reserve(size_t nbytes) {
    StorageRef storage = allocate(0);
    storage->data = nullptr;
    storage->nbytes = nbytes;
    return storage;
}

uint64_t ones_of(const Dims& sizes) {
    uint64_t ones = 0;
    for (size_t d = 0; d < sizes.size(); ++d) ones |= uint64_t(sizes[d] == 1) << d;
    return ones;
}

int64_t bits_of(const Number& number) {
    return number.kind == Kind::float_ ? std::bit_cast<int64_t>(number.real) : number.integer;
}

bool equal_ignoring_ones(const Dims& sizes, const int64_t* other, int ndim) {
    int o = 0;
    for (int64_t size : sizes) {
        if (size == 1) continue;
        while (o < ndim && other[o] == 1) ++o;
        if (o == ndim || other[o++] != size) return false;
    }
    while (o < ndim && other[o] == 1) ++o;
    return o == ndim;
}

// Whether `x` repeats a contiguous value of these sizes along dims of stride 0.
bool is_expansion(const Tensor& x, const int64_t* sizes, int ndim) {
    int extra = x.ndim() - ndim;
    if (extra < 0 || x.offset != 0) return false;
    int64_t step = 1;
    for (int d = x.ndim() - 1; d >= 0; --d) {
        int from = d - extra;
        if (from < 0 || (sizes[from] == 1 && x.sizes[d] != 1)) {
            if (x.strides[d] != 0) return false;
        } else if (x.sizes[d] != sizes[from] || (x.sizes[d] != 1 && x.strides[d] != step)) {
            return false;
        }
        if (from >= 0) step *= sizes[from];
    }
    return true;
}

void note(Region& region, const char* what, const char* cause, size_t ops, size_t launches) {
    if (region.events.size() < most_events) region.events.push_back({what, cause, ops, launches});
}

}  // namespace

Recording* current_recording() {
    if (state.paused || state.stack.empty()) return nullptr;
    return state.stack.back().get();
}

void begin_recording(Region& region) {
    if (state.depth++ == 0) state.stack.push_back(std::make_unique<Recording>(region));
}

void end_recording(const char* cause) {
    if (--state.depth > 0) return;
    struct Pop {
        ~Pop() { state.stack.pop_back(); }
    } pop;
    state.stack.back()->flush(cause);
}

void settle(Storage& storage, bool for_write) {
    auto* recording = static_cast<Recording*>(storage.recording);
    if (recording && (for_write || recording->pending(storage))) recording->flush(for_write ? "a write" : "a value was read");
}

TensorRef fresh_tensor(DType dtype, const Dims& sizes) {
    if (!current_recording()) return new_tensor(dtype, sizes);
    return new_tensor(dtype, sizes, reserve(checked_nbytes(checked_numel(sizes), itemsize(dtype))));
}

bool Recording::pending(const Storage& storage) const {
    const RecordedStorage& s = storages_[storage.recording_id];
    return s.pending || s.written;
}

TensorRef Recording::tensor_of(const RecordedArg& arg) const {
    const RecordedStorage& s = storages_[arg.storage];
    const int64_t* env = environment_.data();
    if (arg.cls == ArgClass::whole)
        return new_tensor(s.dtype, Dims(std::span(env + s.slot, s.ndim)), s.storage);
    const int64_t* at = env + arg.slot;
    TensorRef base = new_tensor(arg.dtype, Dims(), s.storage);
    return new_view(*base, Dims(std::span(at, arg.ndim)), Dims(std::span(at + arg.ndim, arg.ndim)), at[2 * arg.ndim]);
}

bool Recording::accepts(std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (ops_.size() >= most_ops) flush("the recording grew to its bound");
    if (bytes_ >= most_bytes) flush("the recording held too many bytes");
    for (const Operand& operand : operands) {
        if (!operand.tensor) continue;
        Storage* storage = operand.tensor->storage.get();
        if (storage && storage->recording && storage->recording != this) settle(*storage);
        if (operand.tensor->ndim() > 24) return false;
    }
    for (const TensorRef& target : out) {
        if (target->storage->recording && target->storage->recording != this) settle(*target->storage, true);
        if (target->storage->public_) {
            flush("a write to memory that others can see");
            return false;
        }
    }
    return true;
}

int32_t Recording::add_storage(StorageRef storage, const Tensor& like, bool pending, bool flat) {
    RecordedStorage entry{storage, like.dtype, pending, false, flat, 0, uint32_t(environment_.size()), 0};
    if (flat) {
        entry.ndim = 1;
        environment_.push_back(int64_t(storage->nbytes / itemsize(like.dtype)));
    } else {
        entry.ndim = uint8_t(like.ndim());
        entry.ones = ones_of(like.sizes);
        for (int64_t size : like.sizes) environment_.push_back(size);
    }
    storage->recording = this;
    storage->recording_id = int32_t(storages_.size());
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
    int64_t numel = 1;
    for (int d = 0; d < s.ndim; ++d) numel *= sizes[d];
    if (x.contiguous && x.offset == 0 && x.numel == numel) {
        if (x.ndim() == s.ndim && std::equal(x.sizes.begin(), x.sizes.end(), sizes)) return ArgClass::whole;
        return equal_ignoring_ones(x.sizes, sizes, s.ndim) ? ArgClass::squeeze : ArgClass::reshape;
    }
    return is_expansion(x, sizes, s.ndim) ? ArgClass::expand : ArgClass::strided;
}

RecordedArg Recording::describe_arg(Tensor& tensor) {
    RecordedArg arg;
    arg.storage = ordinal(tensor);
    arg.dtype = tensor.dtype;
    arg.ndim = uint8_t(tensor.ndim());
    arg.cls = classify(tensor, storages_[arg.storage]);
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
    return arg;
}

void Recording::mix_arg(const RecordedArg& arg) {
    hash_.mix(uint64_t(arg.cls) | uint64_t(arg.dtype) << 8 | uint64_t(arg.ndim) << 16 | uint64_t(uint32_t(arg.storage)) << 32);
    if (arg.cls == ArgClass::number) return;
    hash_.mix(arg.ones | uint64_t(storages_[arg.storage].flat) << 63);
    if (arg.cls == ArgClass::strided) hash_.mix(arg.classes);
}

Results Recording::append(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    // Memory that others can see is read now: what they write later must not be noticed.
    Results snapshots;
    Operands own;
    for (Operand operand : operands) {
        if (operand.tensor && operand.tensor->storage && operand.tensor->storage->public_) {
            snapshots.push_back(std::move(execute(*core_fns().copy, {&operand, 1}, {}, false)[0]));
            operand.tensor = snapshots.back().get();
        }
        if (operand.tensor && !operand.tensor->storage) {  // stands for its sizes only
            snapshots.push_back(new_tensor(operand.tensor->dtype, operand.tensor->sizes, reserve(shape_only)));
            operand.tensor = snapshots.back().get();
        }
        own.push_back(operand);
    }
    std::span<const Operand> given(own.data(), own.size());
    Results results;
    if (out.empty())
        results = append_new(fn, given, hidden);
    else
        for (const TensorRef& target : out) results.push_back(target);
    RecordedOp op{&fn, hidden, !out.empty(), uint32_t(args_.size()), uint32_t(operands.size()), uint32_t(outs_.size()),
                  uint32_t(results.size())};
    hash_.mix(fn.id | uint64_t(hidden) << 32 | uint64_t(op.writes) << 33 | uint64_t(op.args) << 40 | uint64_t(op.outs) << 52);
    for (const Operand& operand : given) {
        if (operand.tensor) {
            args_.push_back(describe_arg(*operand.tensor));
            if (operand.tensor->storage->nbytes == shape_only) storages_[args_.back().storage].pending = false;
        } else {
            RecordedArg arg;
            arg.dtype = operand.number.kind == Kind::float_  ? DType::float64
                        : operand.number.kind == Kind::bool_ ? DType::bool_
                                                             : DType::int64;
            arg.slot = uint32_t(environment_.size());
            environment_.push_back(bits_of(operand.number));
            args_.push_back(arg);
        }
        mix_arg(args_.back());
    }
    for (const TensorRef& result : results) {
        RecordedArg written = describe_arg(*result);
        if (op.writes) {
            mix_arg(written);
            RecordedStorage& s = storages_[written.storage];
            s.written = s.written || !s.pending;
        }
        outs_.push_back(written);
    }
    ops_.push_back(op);
    return results;
}

Results Recording::append_new(Fn& fn, std::span<const Operand> operands, bool hidden) {
    Results results;
    auto add = [&](DType dtype, const Dims& sizes) {
        results.push_back(fresh_tensor(dtype, sizes));
        bytes_ += results.back()->storage->nbytes;
    };
    if (fn.cls == FnClass::pointwise) {
        Dims shape = broadcast_shape(fn, operands);
        for (DType dtype : pointwise_dtypes(fn, operands)) add(dtype, shape);
        return results;
    }
    const Program& program = program_for(fn, operands, hidden);
    Dims slots;
    for (const Operand& operand : operands) append_environment(operand, slots);
    slots.resize(program.slots());
    if (!evaluate(program, slots.data())) compiler::explain({&fn, operands});
    for (size_t k = 0; k < program.outputs.size(); ++k)
        add(program.outputs[k].dtype, output_sizes(program, k, slots.data()));
    return results;
}

// First sight: every op runs as it would have, on kernels that are ready.
void Recording::replay_ops() {
    for (const RecordedOp& op : ops_) {
        std::vector<TensorRef> tensors;
        Operands operands;
        for (uint32_t i = 0; i < op.args; ++i) {
            const RecordedArg& arg = args_[op.first_arg + i];
            if (arg.cls == ArgClass::number) {
                int64_t bits = environment_[arg.slot];
                Number number = arg.dtype == DType::float64 ? Number::of(std::bit_cast<double>(bits))
                                : arg.dtype == DType::bool_ ? Number::of(bits != 0)
                                                            : Number::of(bits);
                operands.push_back({nullptr, number});
            } else {
                tensors.push_back(tensor_of(arg));
                operands.push_back({tensors.back().get(), {}});
            }
        }
        Results targets;
        if (op.writes)
            for (uint32_t k = 0; k < op.outs; ++k) {
                Storage& storage = *storages_[outs_[op.first_out + k].storage].storage;
                if (!storage.data) take_memory(storage, *allocate(storage.nbytes));
                targets.push_back(tensor_of(outs_[op.first_out + k]));
            }
        Results results =
            execute(*op.fn, {operands.data(), operands.size()}, {targets.data(), targets.size()}, op.hidden);
        if (op.writes) continue;
        for (uint32_t k = 0; k < op.outs; ++k)
            take_memory(*storages_[outs_[op.first_out + k].storage].storage, *results[k]->storage);
    }
}

void Recording::run_variant(const RegionVariant& variant) {
    const Program& program = *variant.program;
    Dims slots(environment_);
    slots.resize(program.slots());
    if (!evaluate(program, slots.data())) raise(ErrorKind::internal, "a recorded program does not fit its recording");
    std::vector<void*> inputs;
    for (const RecordedStorage& s : storages_)
        if (!s.pending) inputs.push_back(s.storage->data);
    std::vector<StorageRef> outputs;
    for (int32_t index : variant.outputs) outputs.push_back(storages_[index].storage);
    for (StorageRef& output : outputs)  // all memory before the first write
        if (!output->data) take_memory(*output, *allocate(output->nbytes));
    run(program, slots.data(), inputs.data(), outputs);
}

bool Recording::run_program(RegionEntry& entry, const std::vector<bool>& live) {
    auto covers = [&](const RegionVariant& variant) {
        for (size_t i = 0; i < live.size(); ++i)
            if (live[i] && !variant.live[i]) return false;
        return true;
    };
    for (const RegionVariant& variant : entry.variants)
        if (covers(variant)) {
            run_variant(variant);
            return true;
        }
    if (entry.failed || (entry.seen < 2 && !region_->wait)) return false;
    RegionVariant made;
    made.live = live;
    for (const RegionVariant& variant : entry.variants)
        for (size_t i = 0; i < live.size(); ++i) made.live[i] = made.live[i] || variant.live[i];
    made.program = compiler::region(*this, made.live, made.outputs);
    if (!made.program) {
        entry.failed = true;
        return false;
    }
    ++region_->compiles;
    note(*region_, "compiled", "", ops_.size(), made.program->steps.size());
    entry.variants.clear();
    entry.variants.push_back(std::move(made));
    run_variant(entry.variants.back());
    return true;
}

void Recording::flush(const char* cause) {
    if (ops_.empty() || flushing_) {
        if (!flushing_) clear();
        return;
    }
    struct Flushing {
        Recording& recording;
        bool paused = state.paused;
        explicit Flushing(Recording& r) : recording(r) {
            state.paused = true;
            r.flushing_ = true;
        }
        ~Flushing() {
            state.paused = paused;
            recording.flushing_ = false;
            recording.clear();
        }
    } flushing(*this);
    std::vector<bool> live;
    for (const RecordedStorage& s : storages_) live.push_back(s.pending ? s.storage->refcount > 1 : s.written);
    if (region_->entries.size() >= most_entries && !region_->entries.contains(hash_)) {
        note(*region_, "forgot its programs", "too many different recordings", 0, 0);
        region_->entries.clear();
    }
    RegionEntry& entry = region_->entries[hash_];
    ++entry.seen;
    if (run_program(entry, live)) {
        ++region_->runs;
        note(*region_, "ran", cause, ops_.size(), 0);
    } else {
        ++region_->replays;
        note(*region_, entry.failed ? "ran op by op" : "first sight", cause, ops_.size(), 0);
        replay_ops();
    }
}

void Recording::clear() {
    for (RecordedStorage& s : storages_) {
        s.storage->recording = nullptr;
        s.storage->recording_id = -1;
    }
    ops_.clear();
    args_.clear();
    outs_.clear();
    environment_.resize(0);
    std::vector<RecordedStorage> dying;
    std::swap(dying, storages_);
    hash_ = Hash128();
    bytes_ = 0;
}

}  // namespace kiln
