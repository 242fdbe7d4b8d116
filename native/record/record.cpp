#include "record/record.h"

#include <algorithm>

#include "base/check.h"
#include "base/invariants.h"
#include "batch/list.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "call/trace.h"

namespace kiln {

namespace {

constexpr size_t most_spare = 1024;             // ops whose memory is kept for the next recording
constexpr size_t most_bytes = size_t(1) << 30;  // of memory nobody but the recording holds: it flushes itself

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
    if (ops_ == 0) return clear();
    if (expected_ && ops_ < expected_->list.ops.size()) differ();
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
    ops_ = args_ = outs_ = 0;
    expected_.reset();
    snapshots_.forget();
    environment_.clear();
    std::vector<RecordedStorage> dying = std::move(storages_);
    lines_.clear();
    keep_lines_ = check_mode || on_call || region_->keeps_lines;
    timed_ = region_->measuring > 0;
    bytes_ = 0;
    recount_ = most_bytes;
    seconds_ = 0;
    dying.clear();  // what goes with them may record
    if (storages_.empty()) storages_ = std::move(dying);
}

}  // namespace kiln
