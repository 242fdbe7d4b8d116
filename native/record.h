// Recorded regions: ops are appended instead of run. What was recorded, hashed as it grows, is the key of the
// program that runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dispatch.h"
#include "op.h"
#include "program.h"
#include "tensor.h"

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

struct RecordedStorage {
    StorageRef storage;
    DType dtype;
    bool pending;  // has no memory yet
    bool written;  // an input some recorded op writes
    bool flat;     // an input first seen through a view: its value is taken as one dim
    uint8_t ndim;
    uint32_t slot;  // sizes in the environment
    uint64_t ones;
};

struct Hash128 {
    uint64_t low = 0x13198A2E03707344ull, high = 0xA4093822299F31D0ull;
    void mix(uint64_t word) {
        low = (low ^ word) * 0x9E3779B97F4A7C15ull;
        low ^= low >> 32;
        high = (high + word) * 0xD6E8FEB86659FD93ull;
        high ^= high >> 29;
    }
    bool operator==(const Hash128&) const = default;
};

// What a region remembers between its runs: programs by what was recorded.
struct RegionVariant {
    std::vector<bool> live;  // per storage ordinal: what the program leaves in memory
    std::unique_ptr<Program> program;
    std::vector<int32_t> outputs;  // storage ordinal of each output
};
struct RegionEntry {
    uint64_t seen = 0;
    std::vector<uint64_t> words;  // in full when checking is on
    std::vector<RegionVariant> variants;
    bool failed = false;  // compiling it failed: runs op by op
};
struct HashOf128 {
    size_t operator()(const Hash128& h) const { return h.low; }
};
struct RegionEvent {
    std::string what;   // "ran", "compiled", "first sight", ...
    std::string cause;  // what ended the recording
    uint64_t ops;
    uint64_t launches;
};
struct Region {
    std::string name;
    bool wait = false;   // compile at first sight
    bool check = false;  // rerun op by op and compare bits
    std::unordered_map<Hash128, RegionEntry, HashOf128> entries;
    std::vector<RegionEvent> events;
    uint64_t runs = 0, compiles = 0, replays = 0;
};

class Recording {
public:
    explicit Recording(Region& region) : region_(&region) {}

    // Whether a call can be recorded; storages pending elsewhere are settled first.
    bool accepts(std::span<const Operand> operands, std::span<const TensorRef> out);
    Results append(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden);
    void flush(const char* cause);
    bool empty() const { return ops_.empty(); }
    bool pending(const Storage& storage) const;

    std::span<const RecordedOp> ops() const { return ops_; }
    std::span<const RecordedArg> args() const { return args_; }
    std::span<const RecordedArg> outs() const { return outs_; }
    std::span<const RecordedStorage> storages() const { return storages_; }
    const Dims& environment() const { return environment_; }
    Region& region() const { return *region_; }
    TensorRef tensor_of(const RecordedArg& arg) const;

private:
    int32_t ordinal(Tensor& tensor);
    int32_t add_storage(StorageRef storage, const Tensor& like, bool pending, bool flat);
    RecordedArg describe_arg(Tensor& tensor);
    ArgClass classify(const Tensor& tensor, const RecordedStorage& storage) const;
    void mix_arg(const RecordedArg& arg);
    Results append_new(Fn& fn, std::span<const Operand> operands, bool hidden);
    void replay_ops();
    bool run_program(RegionEntry& entry, const std::vector<bool>& live);
    void run_variant(const RegionVariant& variant);
    void clear();

    Region* region_;
    Hash128 hash_;
    std::vector<RecordedOp> ops_;
    std::vector<RecordedArg> args_, outs_;
    std::vector<RecordedStorage> storages_;
    Dims environment_;
    size_t bytes_ = 0;
    bool flushing_ = false;
};

// The recording ops of this thread are appended to; null outside compiled regions and during a flush.
Recording* current_recording();
void begin_recording(Region& region);
// Ends the innermost region; the outermost one flushes.
void end_recording(const char* cause);

// Makes the storage's values be there: flushes the recording that has them pending. `for_write`: also if one
// only reads the storage.
void settle(Storage& storage, bool for_write = false);

// A contiguous tensor whose memory comes when it is first needed, if something is being recorded.
TensorRef fresh_tensor(DType dtype, const Dims& sizes);

}  // namespace kiln
