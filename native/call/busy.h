// Kernels without the interpreter lock: long ones run while other threads of the interpreter go on. What
// they use is busy meanwhile: nobody reads what they write, nobody writes what they read.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/small_vector.h"
#include "base/threads.h"
#include "call/op.h"
#include "call/tensor.h"

namespace kiln {

// The interpreter's lock, as the binding knows it.
struct Interpreter {
    static void* (*let_go)();
    static void (*take_back)(void* thread);  // does not return once the interpreter is ending
    static bool (*ending)();
    static bool (*interrupted)();  // whether Ctrl-C was pressed and raises: then the exception is set
};

// Everything below is called with the lock held, and counts under it.

// With more grains of work (a grain is about 8 us of one thread) a launch lets go of the lock and goes to the
// pool. Taking the lock back costs 0.1 us, and up to a switch interval (5 ms) where a thread of Python code
// took it; a parked worker wakes within 10 to 30 us.
inline constexpr int64_t grains_worth_it = 5;

extern int unlocked_runs;  // how many threads are in kernels without the lock

// Between two pieces of work: raises if Ctrl-C was pressed. Handlers of the user's own run when the call is
// over.
void stop_if_interrupted();

// While it lives, other threads may run in the middle of this thread's call: in a kernel, a wait, a call up.
class Away {
public:
    Away();
    ~Away();
    Away(const Away&) = delete;
    static bool here();  // whether this thread is inside one
};

// What a call saw of its operands' values: positions within range, divisors that are not 0. Other threads may
// write them while this one waits or asks the compiler. So a launch, once nothing stands before it any more,
// has the values looked at again if the thread was away since.
class SeenValues {
public:
    explicit SeenValues(FunctionRef<void()> look);  // looks
    ~SeenValues() { innermost_ = outer_; }
    SeenValues(const SeenValues&) = delete;
    static bool any() { return innermost_; }
    static bool look_again() { return any() && innermost_->look_if_away(); }  // whether it did

    // What runs meanwhile is not this call's.
    class Pause {
    public:
        Pause() : paused_(std::exchange(innermost_, nullptr)) {}
        ~Pause() { innermost_ = paused_; }
        Pause(const Pause&) = delete;

    private:
        SeenValues* const paused_;
    };

private:
    bool look_if_away();

    static constinit thread_local SeenValues* innermost_;
    SeenValues* const outer_;
    const FunctionRef<void()> look_;
    uint64_t times_away_;
};

// One launch or program. It waits for storages that others use, and keeps others off its own until it ends.
// In between the thread may let go of the lock: then it must not call up, count references or allocate
// tensors.
class Unlocked {
public:
    Unlocked() = default;
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;

    void reads(Storage& storage);
    void writes(Storage& storage);
    void uses(std::span<const Operand> operands, std::span<const TensorRef> results);
    void begin(bool let_go);
    void stop_if_interrupted();  // between two launches; looks ten times a second

private:
    bool others_are_next() const;

    struct Use {
        StorageRef storage;
        uint32_t amount;  // added to Storage::busy
    };
    SmallVector<Use, 8> uses_;
    std::optional<Away> away_;  // once it has begun without the lock
    void* thread_ = nullptr;
    std::chrono::steady_clock::time_point looked_;
};

// Keeps others from writing a storage until it is taken back.
void add_reader(Storage& storage);
void drop_reader(Storage& storage);

// Until the storage can be read, or written.
void wait_while_busy(Storage& storage, bool for_write);

// Lets other threads run until one of them has ended a run, a flush or a call up. False if the interpreter
// is ending: then nobody ends anything any more.
bool wait_for_others();
void tell_others();  // something that others may wait for has ended

// Returns when no other thread is away: each stands between two calls of the core, or in one that has not
// begun. So it stays until this thread gives up the lock.
void wait_until_alone();

// Keeps what calls of other threads may use without owning it until no thread is away and a call ends: who
// was away goes on with it. (Waiting for that would never end where two threads' hooks do it.)
void drop_when_alone(TensorRef tensor);
struct CallEnd {  // of each call from Python
    ~CallEnd();
};

// Around a fork: from `hold_runs` on, kernels keep the lock, and regions of other threads wait before they
// begin (`wait_for_runs`, where a thread holds nothing): else one that compiles all the time would hardly
// ever be seen outside a call. Each is done once for a thread, however often it is called.
void hold_runs();
void let_runs();
void wait_for_runs();

}  // namespace kiln
