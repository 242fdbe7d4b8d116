// What a region remembers between its runs: programs by what was recorded, and how they did. What follows
// from that, and how it is told, is kiln/capture/policy.py's and explain.py's.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/source_line.h"
#include "base/hash.h"
#include "base/invariants.h"
#include "call/op_list.h"
#include "program/program.h"

namespace kiln {

struct RegionVariant {
    LiveSet live;                      // what the program leaves in memory
    std::shared_ptr<Program> program;  // shared: another thread may replace it during a run
    std::vector<int32_t> outputs;      // storage ordinal of each output
};

// The shortest times seen, in seconds.
struct RegionTimes {
    double program = std::numeric_limits<double>::infinity();
    double replay = std::numeric_limits<double>::infinity();
    double record = std::numeric_limits<double>::infinity();
};

struct RecordedStorage {
    StorageRef storage;
    DType dtype = DType::float32;
    bool pending = false;     // has no memory yet
    bool written = false;     // an input some recorded op writes
    bool flat = false;        // an input first seen through a view: its value is taken as one dim
    bool shape_only = false;  // it never has values
    uint8_t ndim = 0;
    uint32_t slot = 0;  // sizes in the environment
    uint64_t ones = 0;
    const void* identity = nullptr;  // which one it was, once `storage` is forgotten

    bool looks_like(const RecordedStorage& other) const {
        return dtype == other.dtype && pending == other.pending && flat == other.flat &&
               shape_only == other.shape_only && ndim == other.ndim && ones == other.ones;
    }
};

// What ended a recording, and where.
struct RegionEnd {
    const char* cause;
    SourceLine line;
    uint64_t times;
};

class Recording;
struct Region;

// One recording, seen any number of times.
struct RegionEntry {
    Hash128 hash, next;  // `next`: of the recording that came after this one the last time
    uint64_t seen = 0, runs = 0, replays = 0, compiles = 0;
    uint64_t last_use = 0, number = 0;
    OpList list;  // as first seen, for explain() and the check mode, as are its storages and environment
    std::vector<RecordedStorage> storages;
    Dims environment;
    std::vector<SourceLine> lines;  // of the ops, from the first sight that kept them
    std::vector<RegionEnd> ends;
    std::shared_ptr<RegionVariant> variant;
    RegionTimes times;
    LiveSet looked;          // the live set last looked for on disk
    uint64_t settled = 0;    // sights since it is known how it runs
    bool pending = false;    // its program is being compiled
    bool failed = false;     // compiling it failed: runs op by op
    bool measuring = false;  // its next runs are timed
    bool decided = false;    // whether its program pays is known
    bool slower = false;     // it does not: runs op by op

    // Takes its program; null: there is none.
    void give(Region& region, std::shared_ptr<RegionVariant> program);
    // A recording ended for this cause; if that was in the middle of a call, on this line.
    void note_end(const char* cause);
};

// What the ops of one call came to: how many ran by programs, how many wait for one that is being compiled,
// and how many ran op by op with none in sight.
struct RegionOps {
    uint64_t ran = 0, waiting = 0, lost = 0;
};

// The shortest of some calls made in turn, recorded and not, in seconds.
struct RegionTrial {
    uint32_t left = 0;  // calls to be made
    double recorded = std::numeric_limits<double>::infinity();
    double plain = std::numeric_limits<double>::infinity();
};

struct HashOf128 {
    size_t operator()(const Hash128& h) const { return h.low; }
};

struct Region {
    static constexpr int64_t most_patience = 16;
    static constexpr uint64_t until_compiled = ~uint64_t(0);
    static constexpr uint64_t first_trial = 20;

    std::string name;
    bool wait = false;  // compile at first sight
    std::string off;    // why nothing is recorded at present; empty: it is
    uint64_t rest = 0;  // calls until it records again, to see whether that is so still
    std::unordered_map<Hash128, std::shared_ptr<RegionEntry>, HashOf128> entries;
    uint64_t uses = 0, runs = 0, compiles = 0, replays = 0, evicted = 0, made = 0;
    uint64_t met = ~uint64_t(0);  // of `made`, before this call
    bool keeps_lines = false;     // at this call, as the one before made a recording, or it is the first
    uint64_t measuring = 0;       // entries being measured
    std::shared_ptr<RegionEntry> last;  // seen: so much room the next recording starts with
    size_t copied = 0;                  // in it: bytes of memory that others can see
    RegionOps call;                     // of the call in progress
    int64_t patience = most_patience;   // what calls without a program may still use up
    uint64_t ran = 0;                   // calls by programs, one after the other
    uint64_t trial_at = first_trial;    // of these, when whole calls are timed
    RegionTrial trial;
    uint64_t waits = 0;       // entries whose programs are being compiled
    uint64_t next_rest = 0;   // calls of the next rest because nothing repeats; 0: it never rested
    uint64_t next_trial = 0;  // the same because recording costs more than it saves
    bool anew = false;        // what was measured is forgotten after this rest

    // What is recorded next, if that is what came after the last recording the last time; or null.
    std::shared_ptr<RegionEntry> expected() const;
    // The entry of a recording, made if there is none; the least recently used one makes room.
    std::shared_ptr<RegionEntry> entry(const Recording& recording);

    // Whether a recording of so many ops has been seen often enough to be compiled.
    bool repeats(const RegionEntry& entry, size_t ops) const;
    // Counts what ran of the call in progress.
    void note(const RegionEntry& entry, size_t ops, bool by_program);
    // Ends a recorded call: goes on, or rests where its calls do not repeat.
    void end_call();
    // Of a region that is off: whether this call is not recorded either.
    bool rests();
    // Whether it records, or will as soon as a program is there.
    bool records() const { return off.empty() || rest == until_compiled; }
    // Ends a rest.
    void wake();
    // Records nothing for a while, as it does not pay.
    void stop(const std::string& why);
    // A recording's program is being compiled, or is not any more.
    void wait_for(RegionEntry& entry);
    void stop_waiting(RegionEntry& entry);
};

// Entries of many ops whose programs are being compiled: one at a time, as each takes long.
inline uint64_t large_pending = 0;
inline constexpr size_t large_program = 256;  // ops

// Whether every hit is compared in full and run op by op as well, and passes verify what they make
// (KILN_CHECK=1): slow, for tests.
inline bool check_mode = asked_to_check();

}  // namespace kiln
