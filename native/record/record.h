// Recorded regions: ops are appended instead of run. What was recorded is the key of the program that runs
// it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "call/dispatch.h"
#include "call/tensor.h"
#include "record/region.h"
#include "record/snapshots.h"

namespace kiln {

// Adds the time it lives to a total, if there is one.
class Stopwatch {
public:
    explicit Stopwatch(double* total) : total_(total) {
        if (total_) start_ = std::chrono::steady_clock::now();
    }
    ~Stopwatch() { stop(); }
    void stop() {
        if (!total_) return;
        *total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
        total_ = nullptr;
    }

private:
    double* total_;
    std::chrono::steady_clock::time_point start_;
};

class Recording : public std::enable_shared_from_this<Recording> {
public:
    Recording() = default;
    ~Recording() { end(); }
    Recording(const Recording&) = delete;

    // Takes calls of a region, or no more of any.
    void begin(std::shared_ptr<Region> region);
    void end();

    // Records a call, or leaves it to be run at once: false.
    bool append(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden,
                Results& results);
    // Whether a call of arrays that lie there or are this recording's can be recorded with nothing to be
    // waited for, run or copied before; and then records it, with results whose memory is to come, or writes.
    bool takes(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) const;
    void append_flat(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results,
                     bool writes);
    // Runs what is pending. From a thread other than the owner's too: whoever comes second waits.
    void flush(const char* cause);
    void give_up();  // forgets what is pending: values not there yet never will be
    bool pending(const Storage& storage) const;
    bool flushing() const { return flushing_; }

    const OpList& list() const { return expected_ && !check_mode ? expected_->list : list_; }
    // What it turned out to be, if it is what was expected.
    const std::shared_ptr<RegionEntry>& expected() const { return expected_; }
    std::span<const RecordedStorage> storages() const { return storages_; }
    const Dims& environment() const { return environment_; }
    const std::shared_ptr<Region>& region() const { return region_; }
    Hash128 hash() const;
    std::span<const SourceLine> lines() const { return lines_; }
    double seconds() const { return seconds_; }
    size_t copied() const { return snapshots_.copied(); }
    TensorRef tensor_of(const ListedArg& arg) const;

private:
    void append_op(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> results, bool hidden,
                   bool writes);
    template <class Said>
    void keep(std::vector<Said> OpList::* part, uint32_t& count, const Said& said);
    void differ();
    ListedArg arg_of(Tensor& tensor);
    ListedArg number_of(const Number& number);
    ListedArg written(Tensor& target);
    ListedArg made(Tensor& result);
    struct Flush;
    bool wait_until_idle();
    void take_snapshots(Operands& operands, Results& held);
    bool accepts(std::span<const Operand> operands, std::span<const TensorRef> out);
    void make_room(size_t arrays);
    bool holds_too_much();
    int32_t ordinal(Tensor& tensor);
    int32_t add_storage(const StorageRef& storage, const Tensor& like, bool pending, bool flat);
    void clear();

    std::shared_ptr<Region> region_;
    bool keep_lines_ = false, timed_ = false;
    std::vector<SourceLine> lines_;  // of every op, if they are kept
    Snapshots snapshots_;
    std::shared_ptr<RegionEntry> expected_;   // what was said so far is the beginning of its list,
    OpList list_;                             // or this one
    uint32_t ops_ = 0, args_ = 0, outs_ = 0;  // said so far
    std::vector<RecordedStorage> storages_;
    Dims environment_;
    size_t bytes_ = 0;    // of all storages
    size_t recount_ = 0;  // bytes_ at which to look how many of them nobody else holds
    double seconds_ = 0;  // spent recording, while the region is being measured
    bool flushing_ = false;
    std::thread::id flusher_;
};

// Runs what was recorded, as a program or op by op (flush.cpp). The recording stays as it is.
void run_recording(Recording& recording, const char* cause);

// Every node keeps where in the program it was made, and gradients are watched: ops run on their lines.
extern bool anomaly_mode;

// The recording ops of this thread are appended to; null outside compiled regions, during a flush and in
// anomaly mode.
Recording* current_recording();
bool in_region();        // also during a flush
class RecordingPaused {  // while it lives, ops of this thread run
public:
    RecordingPaused();
    ~RecordingPaused();
    RecordingPaused(const RecordingPaused&) = delete;

private:
    const bool before_;
};
void begin_recording(const std::shared_ptr<Region>& region);
// How many of the regions that this thread is in count: those that record or are a part of one that does.
int recording_depth();
// Ends the innermost region; the outermost one flushes.
void end_recording(const char* cause);

// Runs what is pending anywhere.
void flush_all(const char* cause);

// Around a fork: before it nothing is pending, and nobody else is in the middle of a call or a kernel. In the
// child, what other threads recorded since is given up.
void before_fork();
void after_fork(bool in_child);

// Makes the storage's values be there: flushes the recording that has them pending. `for_write`: also one
// that only reads the storage. Raises if they never came to be because the flush that was to make them
// failed.
void settle(Storage& storage, bool for_write = false);
// The same for memory about to be written; gives it memory if it has none yet.
void settle_target(Storage& storage);

// Gives a storage without memory the memory of another.
void take_memory(Storage& to, Storage& from);

// A contiguous tensor whose memory comes when it is first needed, if something is being recorded.
TensorRef fresh_tensor(DType dtype, const Dims& sizes);

inline constexpr size_t shape_only = ~size_t(0);  // nbytes of a storage that never has values

}  // namespace kiln
