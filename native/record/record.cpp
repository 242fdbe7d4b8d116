#include "record/record.h"

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

namespace kiln {

namespace {

constexpr size_t most_ops = 10000;              // a recording past this flushes itself
constexpr size_t most_spare = 1024;             // ops whose memory is kept for the next recording
constexpr int most_dims = 24;                   // of an argument: what is hashed of them are 64 bits
constexpr size_t most_bytes = size_t(1) << 30;  // the same, of memory nobody but the recording holds

thread_local struct {
    std::shared_ptr<Recording> recording;  // nested regions join it
    std::shared_ptr<Recording> spare;      // one that ended: the next one has its memory
    std::vector<char> entered;             // per region on this thread: whether it counts
    int depth = 0;
    bool paused = false;
} state;

std::vector<Recording*>& recordings() {
    static auto* list = new std::vector<Recording*>();
    return *list;
}

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

bool anomaly_mode = false;

namespace {
thread_local CallTrace* trace_here = nullptr;
}  // namespace

CallTrace* current_trace() { return trace_here; }

// What was recorded around a trace waits for its end.
struct Traced::Recorded {
    std::shared_ptr<Recording> before = std::move(state.recording);
    bool paused_before = std::exchange(state.paused, false);
};

Traced::Traced(CallTrace& trace)
    : trace_(trace), list_paused_before_(std::exchange(listing_of_thread().paused, true)) {
    trace.outer = trace_here;
    if (trace.abstract) {
        auto own = std::make_shared<Recording>();
        own->begin(std::make_shared<Region>());
        recorded_ = new Recorded();
        state.recording = std::move(own);
        ++state.depth;
    }
    trace_here = &trace;
    ++traces;
}

Traced::~Traced() {
    listing_of_thread().paused = list_paused_before_;
    --traces;
    trace_here = trace_.outer;
    if (!recorded_) return;
    const std::shared_ptr<Recording> ended = std::move(state.recording);
    --state.depth;
    state.recording = std::move(recorded_->before);
    state.paused = recorded_->paused_before;
    delete recorded_;
    ended->give_up();
}

bool in_region() { return bool(state.recording); }
Recording* current_recording() { return state.paused || anomaly_mode ? nullptr : state.recording.get(); }

int recording_depth() { return state.depth; }
RecordingPaused::RecordingPaused() : before_(std::exchange(state.paused, true)) {}
RecordingPaused::~RecordingPaused() { state.paused = before_; }

void begin_recording(const std::shared_ptr<Region>& region) {
    const bool counts = state.depth > 0 || region->off.empty();
    state.entered.push_back(counts);
    try {
        if (counts && state.depth == 0) {
            state.recording = state.spare ? std::move(state.spare) : std::make_shared<Recording>();
            state.recording->begin(region);
        }
    } catch (...) {
        state.entered.pop_back();
        state.recording.reset();
        throw;
    }
    state.depth += counts;
}

void end_recording(const char* cause) {
    bool counts = state.entered.back();
    state.entered.pop_back();
    if (!counts || --state.depth > 0) return;
    // Still this thread's recording while it runs: values made by the flush are found in it.
    struct Drop {
        ~Drop() {
            const std::shared_ptr<Recording> ended = std::move(state.recording);
            if (ended.use_count() != 1) return;  // another thread waits for it
            ended->end();
            if (ended->list().ops.capacity() <= most_spare) state.spare = ended;
        }
    } drop;
    const std::shared_ptr<Region> region = state.recording->region();
    state.recording->flush(cause);
    region->end_call();
}

void flush_all(const char* cause) {
    // A flush may let another thread end its recording.
    std::vector<Recording*> all = recordings();
    for (Recording* recording : all)
        if (std::find(recordings().begin(), recordings().end(), recording) != recordings().end())
            recording->flush(cause);
}

void before_fork() {
    hold_runs();
    wait_until_alone();
    run_lists();
    flush_all("of a fork");
}

void after_fork(bool in_child) {
    let_runs();
    if (!in_child) return;
    for (Recording* recording : recordings())
        if (recording != state.recording.get()) recording->give_up();
}

StorageRef reserve(size_t nbytes) {
    StorageRef storage = allocate(0);
    storage->data = nullptr;
    storage->nbytes = nbytes;
    return storage;
}

void take_memory(Storage& to, Storage& from) {
    std::swap(to.data, from.data);
    std::swap(to.size_class, from.size_class);
    std::swap(to.nbytes, from.nbytes);
}

void settle(Storage& storage, bool for_write) {
    if (traces && read_in_trace(storage, for_write)) [[unlikely]]
        return;
    if (auto* recording = static_cast<Recording*>(storage.recording); recording) [[unlikely]]
        if (for_write || recording->pending(storage))
            recording->flush(for_write ? "of a write" : "a value was read");
    if (is_listed(storage)) [[unlikely]]
        run_list_of(storage);
    if (for_write && lists_in_use) [[unlikely]]
        run_lists_that_read(storage);  // as it is
    if (storage.busy) [[unlikely]]
        wait_while_busy(storage, for_write);
    if (const char* why = storage.data ? nullptr : why_gone(storage))
        raise(ErrorKind::runtime, concat(why, "; so the value was never computed"));
    KILN_CHECK(storage.data || storage.nbytes == shape_only, runtime,
               "the value was never computed: what was to run before it failed or was interrupted");
}

void settle_target(Storage& storage) {
    if (auto* recording = static_cast<Recording*>(storage.recording)) recording->flush("of a write");
    if (is_listed(storage)) [[unlikely]]
        run_list_of(storage);
    if (storage.busy) [[unlikely]]
        wait_while_busy(storage, true);
    if (is_part(storage)) [[unlikely]]
        leave_whole(storage);
    if (!storage.data) take_memory(storage, *allocate(storage.nbytes));
}

void Recording::begin(std::shared_ptr<Region> region) {
    recordings().push_back(this);
    region_ = std::move(region);
    region_->keeps_lines = region_->made != std::exchange(region_->met, region_->made);
    keep_lines_ = check_mode || on_call || region_->keeps_lines;
    timed_ = region_->measuring > 0;
    recount_ = most_bytes;
    if (!region_->last) return;
    const RegionEntry& last = *region_->last;
    list_.ops.reserve(last.list.ops.size());
    list_.args.reserve(last.list.args.size());
    list_.outs.reserve(last.list.outs.size());
    storages_.reserve(last.storages.size());
    environment_.reserve(last.environment.size());
}

void Recording::end() {
    if (!region_) return;  // then it may go with its thread, without the interpreter's lock
    std::erase(recordings(), this);
    clear();
    region_.reset();
}

// Another thread may be running what was recorded here so far; whether it was so.
bool Recording::wait_until_idle() {
    auto running = [this] { return flushing_ && flusher_ != std::this_thread::get_id(); };
    if (!running()) [[likely]]
        return false;
    Away here;
    while (running() && wait_for_others()) {}
    return true;
}

bool Recording::holds_too_much() {
    if (bytes_ < recount_) [[likely]]
        return false;
    snapshots_.drop();
    size_t alone = 0;
    for (const RecordedStorage& s : storages_)
        if (s.storage->refcount == 1 && s.storage->nbytes != shape_only) alone += s.storage->nbytes;
    if (alone >= most_bytes) return true;
    recount_ = bytes_ + (most_bytes - alone);
    return false;
}

TensorRef fresh_tensor(DType dtype, const Dims& sizes) {
    if (!current_recording()) return new_tensor(dtype, sizes);
    return new_tensor(dtype, sizes, reserve(checked_nbytes(checked_numel(sizes), itemsize(dtype))));
}

// What a flush is about to compute is its own ops' to wait for, in their order.
bool is_settled(const Storage& storage) {
    const auto* recording = static_cast<const Recording*>(storage.recording);
    if (recording && !recording->flushing() && recording->pending(storage)) return false;
    return storage.data || storage.nbytes == 0 || storage.nbytes == shape_only;
}

bool Recording::pending(const Storage& storage) const {
    const RecordedStorage& s = storages_[storage.recording_id];
    return s.pending || s.written;
}

TensorRef Recording::tensor_of(const ListedArg& arg) const {
    const RecordedStorage& s = storages_[arg.value];
    const int64_t* env = environment_.data();
    if (arg.cls == ArgClass::whole)
        return new_tensor(s.dtype, Dims(std::span(env + s.slot, s.ndim)), s.storage);
    const int64_t* at = env + arg.slot;
    TensorRef base = new_tensor(arg.dtype, Dims(), s.storage);
    return new_view(*base, Dims(std::span(at, arg.ndim)), Dims(std::span(at + arg.ndim, arg.ndim)),
                    at[2 * arg.ndim]);
}

// Whether a call can be recorded. Storages pending elsewhere are settled first; as waiting for another thread
// lets it record or flush, that goes on until nothing had to be waited for.
bool Recording::accepts(std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (bool waited = true; waited;) {
        waited = wait_until_idle();
        if (list_.ops.size() >= most_ops) flush("the recording grew to its bound");
        if (holds_too_much()) flush("the recording held too many bytes");
        auto settled = [&](Storage* storage) {
            if (!storage || storage->recording == this || storage->nbytes == shape_only) return;
            const bool nothing_runs = trace_here && trace_here->abstract && !is_listed(*storage);
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
    int64_t numel = 1;
    for (int d = 0; d < s.ndim; ++d) numel *= sizes[d];
    if (x.contiguous && x.offset == 0 && x.numel == numel) {
        if (x.ndim() == s.ndim && std::equal(x.sizes.begin(), x.sizes.end(), sizes)) return ArgClass::whole;
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
    make_room({own.data(), own.size()}, {results.data(), results.size()});
    const ListedOp op{.fn = &fn,
                      .hidden = hidden,
                      .writes = !out.empty(),
                      .first_arg = uint32_t(list_.args.size()),
                      .args = uint32_t(own.size()),
                      .first_out = uint32_t(list_.outs.size()),
                      .outs = uint32_t(results.size())};
    mix_op(op);
    for (const Operand& operand : own) append_arg(operand);
    for (const TensorRef& result : results) append_out(*result, op.writes);
    list_.ops.push_back(op);
    if (keep_lines_) [[unlikely]]
        lines_.push_back(SourceLine::current());
    return true;
}

void Recording::append_arg(const Operand& operand) {
    ListedArg& arg = list_.args.emplace_back();  // written where it stays
    if (operand.tensor)
        describe_arg(arg, *operand.tensor);
    else
        describe_number(arg, operand.number);
    if (operand.tensor && operand.tensor->storage->nbytes == shape_only) storages_[arg.value].pending = false;
    mix_arg(arg);
}

void Recording::append_out(Tensor& result, bool writes) {
    ListedArg& out = list_.outs.emplace_back();
    describe_arg(out, result);
    if (writes) {
        mix_arg(out);
        RecordedStorage& s = storages_[out.value];
        s.written = s.written || !s.pending;
    } else if (out.ones) {
        mix(out.ones | ones_of_result);
    }
}

// Memory for one more op, so that nothing fails once it is half recorded.
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

// While it lives, the recording runs, and nothing is recorded on this thread. What it only reads others may
// read, and record reads of, too.
struct Recording::Flush {
    explicit Flush(Recording& r) : recording(r) {
        r.flushing_ = true;
        r.flusher_ = std::this_thread::get_id();
        for (RecordedStorage& s : r.storages_)
            if (!s.pending && !s.written) {
                s.storage->recording = nullptr;
                add_reader(*s.storage);
            }
    }
    ~Flush() {
        state.paused = paused_before;
        recording.give_up();
    }
    Recording& recording;
    const bool paused_before = std::exchange(state.paused, true);
};

void Recording::flush(const char* cause) {
    if (traces && state.recording.get() == this) [[unlikely]]
        refuse_if_traced(cause, true);
    std::shared_ptr<Recording> kept = shared_from_this();  // its owner may end it while this thread waits
    wait_until_idle();
    assert_locked();
    if (flushing_) return;  // from inside its own flush: what is not there yet, settle() refuses
    if (list_.ops.empty()) return clear();
    snapshots_.drop();  // what holds a value keeps a program from using its memory again
    Flush running(*this);
    const CallNumbers numbers = call_numbers;  // of the call that needs its values
    run_recording(*this, cause);
    call_numbers = numbers;
}

void Recording::give_up() {
    if (flushing_)
        for (RecordedStorage& s : storages_)
            if (!s.pending && !s.written) drop_reader(*s.storage);
    clear();
    flushing_ = false;
    tell_others();
}

void Recording::clear() {
    for (RecordedStorage& s : storages_) {
        if (s.storage->recording != this) continue;  // another's since this one's flush began
        s.storage->recording = nullptr;
        s.storage->recording_id = -1;
    }
    list_.clear();
    snapshots_.forget();
    environment_.clear();
    std::vector<RecordedStorage> dying;
    std::swap(dying, storages_);
    hash_ = Hash128();
    lines_.clear();
    keep_lines_ = check_mode || on_call || region_->keeps_lines;
    timed_ = region_->measuring > 0;
    bytes_ = 0;
    recount_ = most_bytes;
    seconds_ = 0;
}

}  // namespace kiln
