// Storages: the memory of tensors, from the cache of blocks (block_cache.h) or from elsewhere.
//
// Every function here is called with the interpreter lock held: there is no locking inside. Worker threads
// see only the addresses inside a storage; they never touch a Storage or a StorageRef.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/ref.h"

namespace kiln {

inline constexpr size_t memory_alignment = 64;  // of every block: a cache line, a 512-bit vector

// Frees foreign memory; called once, when its storage dies.
using Deleter = void (*)(void* context);

// A piece of memory that tensors share. Tensors are views of it; it outlives them all.
struct alignas(64) Storage {
    void* data = nullptr;
    size_t nbytes = 0;  // as asked for
    uint32_t refcount = 0;
    uint32_t version = 0;        // bumped by each write through kiln
    bool borrowed : 1 = false;   // of an object whose other holders can be counted (others_hold)
    bool read_only : 1 = false;  // foreign memory that must not be written
    bool inference : 1 = false;  // made in inference mode: it has no version, backward may not keep it
    bool noted : 1 = false;      // batch/items.cpp knows of it, and is told when it goes
    uint8_t outside = 0;         // loans to arrays and other holders outside kiln; or for_good
    uint16_t size_class = 0;     // of its block; meaningless for foreign memory
    int32_t recording_id = -1;   // both owned by record.cpp: the place of this storage in a recording
    union {
        void* recording = nullptr;
        Storage* next_dying;  // of foreign memory without a reference, which no recording has
    };
    uint32_t busy = 0;          // uses by kernels that run without the interpreter lock (busy.h)
    uint32_t below = 0;         // what all values are known to lie below, as none is negative; 0: nothing
    Deleter deleter = nullptr;  // set for foreign memory only
    void* context = nullptr;

    bool foreign() const { return deleter != nullptr; }
};

[[gnu::noinline]] void release(Storage* storage);  // the last reference is gone
inline void (*noted_is_gone)(const Storage& storage) = nullptr;
using StorageRef = Ref<Storage>;

// Of `outside`: an address was given away, and nobody tells when it is used no more.
inline constexpr uint8_t for_good = 255;
// Whether more than this storage holds the object that borrowed memory belongs to.
inline bool (*others_hold)(const Storage& storage) = nullptr;
// Whether someone outside kiln can read or write the memory.
inline bool is_public(const Storage& s) { return s.outside || (s.borrowed && others_hold(s)); }

// While it lives, someone outside kiln has the memory.
class Loan {
public:
    explicit Loan(StorageRef storage) : storage_(std::move(storage)) {
        storage_->below = 0;  // whoever has it may write without telling
        if (storage_->outside < for_good) ++storage_->outside;
    }
    ~Loan() {
        if (storage_->outside < for_good) --storage_->outside;
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

private:
    StorageRef storage_;
};

// Uninitialised memory of at least `nbytes`, aligned to 64 bytes; `data` is never null, even for 0 bytes.
// Error{memory} when the system has no more, after the cache was given back.
StorageRef allocate(size_t nbytes);
// A storage whose memory comes later, or never.
StorageRef reserve(size_t nbytes);

// Whether this thread is in inference mode: what it allocates and adopts is marked as made there.
bool inference_mode();
void set_inference_mode(bool inference);

// Memory from elsewhere, not copied: NumPy, DLPack, a mapped file. `deleter(context)` runs when the last
// reference goes. The storage is public for good unless the caller knows better.
StorageRef adopt(void* data, size_t nbytes, Deleter deleter, void* context, bool read_only = false);

// Makes a storage without memory of its own a part of another one, which it keeps.
void become_part(Storage& part, Storage& whole, void* data);
void drop_part(void* whole);
inline bool is_part(const Storage& storage) { return storage.deleter == drop_part; }
// Gives a part memory of its own, with the same values: before it is written, or seen from outside.
void leave_whole(Storage& part);

// count * itemsize, or Error{runtime} when that is negative or does not fit in memory.
size_t checked_nbytes(int64_t count, size_t itemsize);

// ---- the cache of blocks ----

struct MemoryStats {
    size_t allocated_bytes;  // in storages now, in whole blocks
    size_t reserved_bytes;   // the same and what the cache keeps
    size_t peak_allocated;   // the largest allocated_bytes since the last reset_peak_allocated
    uint64_t allocations;    // calls of allocate so far
    uint64_t cache_hits;     // of these, served without asking the system
};

MemoryStats memory_stats();
void reset_peak_allocated();

// Gives every kept block back to the system and returns how many bytes that were.
size_t empty_cache();

// The most bytes the cache keeps; at first a quarter of the machine's memory.
void set_cache_limit(size_t bytes);

}  // namespace kiln
