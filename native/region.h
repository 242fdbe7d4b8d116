// What a region remembers between its runs: programs by what was recorded, and how they did.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hash.h"
#include "op.h"
#include "program.h"
#include "source_line.h"

namespace kiln {

// How an argument looks at the value of its storage.
enum class ArgClass : uint8_t {
    number,
    whole,    // exactly the value
    squeeze,  // the value with dims of size 1 added or dropped
    reshape,  // the value in another shape, contiguous
    expand,   // the value repeated along dims of stride 0
    strided,  // any sizes, strides and offset
};

struct RecordedArg {
    ArgClass cls = ArgClass::number;
    DType dtype = DType::float32;  // of a number: int64, float64 or bool_
    uint8_t ndim = 0;
    int32_t storage = -1;  // ordinal
    uint32_t slot = 0;     // environment: a number's bits; sizes, strides and offset unless whole
    uint64_t ones = 0;     // bit d: size d is 1
    uint64_t classes = 0;  // stride class per dim, two bits each
};

struct RecordedOp {
    Fn* fn;
    bool hidden;
    bool writes;  // outputs are existing tensors
    uint32_t first_arg, args;
    uint32_t first_out, outs;
};

struct RegionVariant {
    std::vector<bool> live;            // per storage ordinal: what the program leaves in memory
    std::shared_ptr<Program> program;  // shared: another thread may replace it during a run
    std::vector<int32_t> outputs;      // storage ordinal of each output
};

// The shortest times seen, in seconds.
struct RegionTimes {
    double program = std::numeric_limits<double>::infinity();
    double replay = std::numeric_limits<double>::infinity();
    double record = std::numeric_limits<double>::infinity();
};

// How much the last recording held: so much room the next one starts with.
struct RegionSizes {
    size_t ops = 0, args = 0, outs = 0, storages = 0, environment = 0;
};

// What ended a recording, and where.
struct RegionEnd {
    const char* cause;
    SourceLine line;
    uint64_t times;
};

struct Region;

// One recording, seen any number of times.
struct RegionEntry {
    uint64_t seen = 0, runs = 0, replays = 0, compiles = 0;
    uint64_t last_use = 0, number = 0;
    std::vector<uint64_t> words;  // in full, in the check mode
    std::vector<RecordedOp> ops;  // as first seen, for explain()
    std::vector<RecordedArg> args;
    std::vector<RegionEnd> ends;
    std::string anew;  // why no earlier recording served
    std::shared_ptr<RegionVariant> variant;
    RegionTimes times;
    std::vector<bool> looked;  // the live set last looked for on disk
    uint64_t settled = 0;      // sights since it is known how it runs
    bool pending = false;      // its program is being compiled
    bool failed = false;       // compiling it failed: runs op by op
    bool measuring = false;    // its next runs are timed
    bool decided = false;      // whether its program pays is known
    bool slower = false;       // it does not: runs op by op

    // Takes its program; null: there is none.
    void give(Region& region, std::shared_ptr<RegionVariant> program);
};

struct HashOf128 {
    size_t operator()(const Hash128& h) const { return h.low; }
};

struct Region {
    std::string name;
    bool wait = false;          // compile at first sight
    const char* off = nullptr;  // why nothing is recorded any more
    std::unordered_map<Hash128, std::shared_ptr<RegionEntry>, HashOf128> entries;
    uint64_t uses = 0, runs = 0, compiles = 0, replays = 0, evicted = 0, made = 0;
    uint64_t measuring = 0;  // entries being measured
    RegionSizes last;

    // The entry of a recording, made if there is none; the least recently used one makes room.
    std::shared_ptr<RegionEntry> entry(const Hash128& hash, bool* is_new);
    void describe(RegionEntry& entry, std::span<const RecordedOp> ops, std::span<const RecordedArg> args);
    // Takes note of one measured run.
    void measured(RegionEntry& entry);
    // Switches the region off if hardly anything recorded is seen again.
    void forgot_one();
};

// Whether every hit is compared in full and run op by op as well (KILN_CHECK=1): slow, for tests.
bool checking();
void set_checking(bool on);

}  // namespace kiln
