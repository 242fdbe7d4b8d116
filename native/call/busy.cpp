#include "call/busy.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include <pthread.h>

#include "base/check.h"
#include "base/invariants.h"

namespace kiln {

void* (*Interpreter::let_go)() = nullptr;
void (*Interpreter::take_back)(void*) = nullptr;
bool (*Interpreter::ending)() = nullptr;
bool (*Interpreter::interrupted)() = nullptr;

int unlocked_runs = 0;

namespace {

constexpr uint32_t reading = 1, writing = 1 << 20;  // added to Storage::busy for each use

int away = 0;                    // threads inside an Away, counted once for each
thread_local int away_here = 0;  // of these, this thread's
thread_local uint64_t times_away = 0;
int held = 0;                    // threads that fork ...
thread_local int held_here = 0;  // ... and whether this one does

struct Ends {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t count = 0;  // written under both locks
    int waiting = 0;     // under the interpreter's
};
Ends* ends = new Ends;  // never destroyed: threads may wait as the process ends
auto* const kept = new std::vector<TensorRef>;

struct Awaited {
    const Storage* storage;
    bool for_write;
};
auto* const awaited = new std::vector<Awaited>;  // by threads in `wait_while_busy`

// In the child nobody else is away, in a kernel or waiting; someone may have held the mutex.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
    ends = new Ends;
    away = away_here;
    held = held_here;
    unlocked_runs = 0;
    awaited->clear();
});

}  // namespace

bool wait_for_others() {
    if (Interpreter::ending()) return false;
    const uint64_t seen = ends->count;
    ++ends->waiting;
    void* thread = Interpreter::let_go();
    {
        std::unique_lock lock(ends->mutex);
        ends->changed.wait(lock, [&] { return ends->count != seen; });
    }
    Interpreter::take_back(thread);
    --ends->waiting;
    return true;
}

void tell_others() {
    if (!ends->waiting) return;
    std::lock_guard lock(ends->mutex);
    ++ends->count;
    ends->changed.notify_all();
}

void stop_if_interrupted() {
    if (Interpreter::interrupted()) [[unlikely]]
        raise(ErrorKind::python, "");
}

Away::Away() {
    assert_locked();
    ++away;
    ++away_here;
    ++times_away;
}

Away::~Away() {
    --away;
    --away_here;
    tell_others();
}

bool Away::here() { return away_here; }

void drop_when_alone(TensorRef tensor) {
    if (away > away_here) kept->push_back(std::move(tensor));
}

CallEnd::~CallEnd() {
    if (!kept->empty() && !away) const auto dropped = std::exchange(*kept, {});
}

void wait_until_alone() {
    while (away > away_here && wait_for_others()) {}
}

void hold_runs() {
    if (!held_here) ++held;
    held_here = 1;
}

void let_runs() {
    held -= std::exchange(held_here, 0);
    tell_others();
}

void wait_for_runs() {
    while (held > held_here && !away_here && wait_for_others()) {}
}

void wait_while_busy(Storage& storage, bool for_write) {
    StorageRef kept(&storage);
    Away here;
    while (!is_free(storage, for_write)) {
        awaited->push_back({&storage, for_write});
        const bool waited = wait_for_others();
        const auto same = [&](const Awaited& w) { return w.storage == &storage && w.for_write == for_write; };
        awaited->erase(std::ranges::find_if(*awaited, same));
        if (!waited) return;
    }
}

void add_reader(Storage& storage) {
    assert_locked();
    storage.busy += reading;
}

void drop_reader(Storage& storage) {
    assert_locked();
    storage.busy -= reading;
}

bool is_free(const Storage& storage, bool for_write) {
    return storage.busy < (for_write ? reading : writing) || Interpreter::ending();
}

constinit thread_local SeenValues* SeenValues::innermost_ = nullptr;

SeenValues::SeenValues(FunctionRef<void()> look) : outer_(innermost_), look_(look) {
    look_();
    times_away_ = times_away;
    innermost_ = this;
}
bool SeenValues::look_if_away() {
    const bool away_since = times_away_ != times_away;
    if (away_since) look_();  // which may wait, and looks when it has
    times_away_ = times_away;
    return away_since;
}

void Unlocked::reads(Storage& storage) { uses_.push_back({StorageRef(&storage), reading}); }
void Unlocked::writes(Storage& storage) { uses_.push_back({StorageRef(&storage), writing}); }

void Unlocked::uses(std::span<const Operand> operands, std::span<const TensorRef> results) {
    for (const Operand& operand : operands)
        if (operand.tensor && operand.tensor->storage) reads(*operand.tensor->storage);
    for (const TensorRef& result : results) writes(*result->storage);
}

// Whether a thread was told that a storage is free, and has not come to look: who uses it again and again
// would have it busy each time.
bool Unlocked::others_are_next() const {
    return !awaited->empty() && std::ranges::any_of(uses_, [](const Use& use) {
        return std::ranges::any_of(*awaited, [&](const Awaited& w) {
            return w.storage == use.storage.get() && is_free(*use.storage, w.for_write);
        });
    });
}

void Unlocked::begin(bool let_go) {
    bool gave_way = false;
    for (bool waited = true; waited;) {  // all free at one moment
        waited = false;
        if (let_go && !held && !gave_way && others_are_next()) {
            Away here;
            gave_way = waited = wait_for_others();
        }
        for (Use& use : uses_) {
            const bool writes = use.amount == writing;
            if (is_free(*use.storage, writes)) continue;
            wait_while_busy(*use.storage, writes);
            waited = true;
        }
        waited = waited || SeenValues::look_again();
    }
    assert_locked();
    for (const Use& use : uses_) {
        assert_free(*use.storage, use.amount == writing);
        if (use.amount == reading) assert_settled(*use.storage);
    }
    if (!let_go || held) return;  // keeping the lock keeps everyone else off
    for (Use& use : uses_) use.storage->busy += use.amount;
    ++unlocked_runs;
    away_.emplace();
    looked_ = std::chrono::steady_clock::now();
    thread_ = Interpreter::let_go();
}

void Unlocked::stop_if_interrupted() {
    if (!away_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < std::chrono::milliseconds(100)) return;
    looked_ = now;
    Interpreter::take_back(thread_);
    const bool stop = Interpreter::interrupted();
    thread_ = Interpreter::let_go();
    if (stop) raise(ErrorKind::python, "");
}

Unlocked::~Unlocked() {
    if (!away_) return;
    Interpreter::take_back(thread_);
    assert_locked();
    --unlocked_runs;
    for (Use& use : uses_) use.storage->busy -= use.amount;
}

}  // namespace kiln
