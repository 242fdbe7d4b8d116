// Blocks of memory, kept when they are given back: the caching allocator under storages, whose only user is
// memory.cpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"
#include "base/memory.h"
#include "base/system_memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace kiln::blocks {

// Size classes: multiples of 64 bytes to 1 KiB, then eight steps to every doubling (12.5 % waste at most).
//
//     class   0   1 ..  16    17    18 ..   24    25 ..
//     bytes   0  64   1024  1152  1280    2048  2304
inline constexpr int small_classes = 16;
inline constexpr int steps = 8;
inline constexpr size_t largest = size_t(1) << 47;
inline constexpr int class_count = small_classes + steps * (47 - 10) + 1;

inline constexpr size_t big = 64 << 10;  // from here free blocks are kept in order of age
inline constexpr size_t doubtful = 256
                                   << 20;  // from here a request is compared with what the machine has left

constexpr int class_of(size_t nbytes) {
    if (nbytes <= 1024) return int((nbytes + 63) / 64);
    const int log = std::bit_width(nbytes - 1) - 1;  // 2^log <= nbytes - 1 < 2^(log + 1)
    const size_t step = size_t(1) << (log - 3);
    return small_classes + steps * (log - 10) + int((nbytes - (size_t(1) << log) + step - 1) / step);
}

struct ClassTable {
    size_t bytes[class_count];

    constexpr ClassTable() : bytes() {
        for (int size_class = 0; size_class < class_count; ++size_class) {
            const int above = size_class - small_classes - 1, log = 10 + above / steps;
            bytes[size_class] = above < 0 ? size_t(size_class) * 64
                                          : (size_t(1) << log) + (size_t(above % steps + 1) << (log - 3));
        }
    }
};

inline constexpr ClassTable class_table;
constexpr size_t class_bytes(int size_class) { return class_table.bytes[size_class]; }

static_assert(class_bytes(class_of(1025)) == 1152 && class_bytes(class_of(2048)) == 2048);
static_assert(class_bytes(class_of(65537)) == 73728 && class_of(largest) == class_count - 1);

// Under AddressSanitizer free blocks and the unused end of blocks in use may not be touched.
inline void poison([[maybe_unused]] void* address, [[maybe_unused]] size_t nbytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(address, nbytes);
#endif
}

inline void unpoison([[maybe_unused]] void* address, [[maybe_unused]] size_t nbytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(address, nbytes);
#endif
}

struct Block {
    void* data;           // never null
    uint16_t size_class;  // 0: of no bytes
};

alignas(memory_alignment) inline std::byte no_bytes[memory_alignment];  // the block of no bytes

// Trivially destructible: storages may outlive every other static.
class Cache {
public:
    // At least `nbytes`, aligned to memory_alignment. Error{memory} when the system has no more.
    Block take(size_t nbytes) {
        KILN_CHECK(nbytes <= largest, memory, "allocate: ", nbytes, " bytes are more than any machine has");
        int size_class = class_of(nbytes);
        ++stats_.allocations;
        if (!size_class) return {no_bytes, 0};
        void* data = from_cache(size_class);
        stats_.cache_hits += data != nullptr;
        if (!data) data = new_block(size_class, nbytes);
        const size_t block_bytes = class_bytes(size_class);
        unpoison(data, nbytes);
        poison(static_cast<std::byte*>(data) + nbytes, block_bytes - nbytes);
        stats_.allocated_bytes += block_bytes;
        stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated_bytes);
        return {data, uint16_t(size_class)};
    }

    void give(Block given) {
        const int size_class = given.size_class;
        if (!size_class) return;
        const size_t nbytes = class_bytes(size_class);
        unpoison(given.data, nbytes);
        stats_.allocated_bytes -= nbytes;
        FreeBlock* block = static_cast<FreeBlock*>(given.data);
        nbytes < big ? keep_small(block, size_class, nbytes) : keep_big(block, size_class, nbytes);
    }

    const MemoryStats& stats() const { return stats_; }
    void reset_peak() { stats_.peak_allocated = stats_.allocated_bytes; }
    size_t empty() {
        const size_t before = stats_.reserved_bytes;
        empty_small();
        empty_big(0);
        return before - stats_.reserved_bytes;
    }

    void set_limit(size_t bytes) {
        limit_small_ = bytes / 4;
        limit_big_ = bytes - bytes / 4;
        limits_known_ = true;
        if (kept_small_ > limit_small_) empty_small();
        empty_big(limit_big_);
    }

private:
    // The start of a free block. Only blocks of `big` bytes and more use the last three.
    struct FreeBlock {
        FreeBlock* next;      // in its class
        FreeBlock* previous;  // in its class
        FreeBlock* older;
        FreeBlock* newer;
        int size_class;
    };

    // ---- from and to the system ----

    // A new block, or null.
    void* from_system(size_t nbytes) {
        if (nbytes >= doubtful &&
            (nbytes > available_memory() || nbytes + stats_.reserved_bytes > total_memory()))
            return nullptr;
        return nbytes >= huge_page ? map_aligned(nbytes, true) : std::aligned_alloc(memory_alignment, nbytes);
    }

    void to_system(void* block, int size_class) {
        const size_t nbytes = class_bytes(size_class);
        unpoison(block, nbytes);
        stats_.reserved_bytes -= nbytes;
        nbytes >= huge_page ? unmap(block, nbytes) : std::free(block);
    }

    // ---- the cache ----

    void link_age(FreeBlock* block) {
        block->older = newest_;
        block->newer = nullptr;
        (newest_ ? newest_->newer : oldest_) = block;
        newest_ = block;
    }

    void unlink_age(FreeBlock* block) {
        (block->older ? block->older->newer : oldest_) = block->newer;
        (block->newer ? block->newer->older : newest_) = block->older;
    }

    void link_big(FreeBlock* block, int size_class) {
        FreeBlock*& head = free_[size_class];
        block->size_class = size_class;
        block->previous = nullptr;
        block->next = head;
        if (head) head->previous = block;
        head = block;
        link_age(block);
        kept_big_ += class_bytes(size_class);
    }

    void unlink_big(FreeBlock* block) {
        (block->previous ? block->previous->next : free_[block->size_class]) = block->next;
        if (block->next) block->next->previous = block->previous;
        unlink_age(block);
        kept_big_ -= class_bytes(block->size_class);
    }

    void empty_small() {
        for (int size_class = 1; class_bytes(size_class) < big; ++size_class)
            while (FreeBlock* block = free_[size_class]) {
                free_[size_class] = block->next;
                to_system(block, size_class);
            }
        kept_small_ = 0;
    }

    void empty_big(size_t until) {
        while (oldest_ && kept_big_ > until) {
            FreeBlock* block = oldest_;
            unlink_big(block);
            to_system(block, block->size_class);
        }
    }

    void keep_small(FreeBlock* block, int size_class, size_t nbytes) {
        if (kept_small_ + nbytes > limit_small_) [[unlikely]] {
            empty_small();
            if (nbytes > limit_small_) return to_system(block, size_class);
        }
        block->next = free_[size_class];
        free_[size_class] = block;
        kept_small_ += nbytes;
        poison(block + 1, nbytes - sizeof(FreeBlock));
    }

    void keep_big(FreeBlock* block, int size_class, size_t nbytes) {
        if (nbytes > limit_big_) return to_system(block, size_class);
        empty_big(limit_big_ - nbytes);
        link_big(block, size_class);
        poison(block + 1, nbytes - sizeof(FreeBlock));
    }

    // A kept block of this class or, for a big one, at most two classes (25 %) above; null when there is
    // none.
    void* from_cache(int& size_class) {
        FreeBlock* block = free_[size_class];
        if (class_bytes(size_class) < big) {
            if (!block) return nullptr;
            free_[size_class] = block->next;
            kept_small_ -= class_bytes(size_class);
            return block;
        }
        for (int above = 1; !block && above <= 2 && size_class + above < class_count; ++above)
            block = free_[size_class + above];
        if (!block) return nullptr;
        size_class = block->size_class;
        unlink_big(block);
        return block;
    }

    [[gnu::noinline]] void* new_block(int size_class, size_t nbytes) {
        const size_t block_bytes = class_bytes(size_class);
        if (!limits_known_) set_limit(total_memory() / 4);
        void* block = from_system(block_bytes);
        if (!block) {
            empty();
            block = from_system(block_bytes);
        }
        KILN_CHECK(block, memory, "allocate: ", nbytes, " bytes were asked for and the system has no more; ",
                   stats_.allocated_bytes, " bytes are in use by tensors");
        stats_.reserved_bytes += block_bytes;
        return block;
    }

    FreeBlock* free_[class_count] = {};
    FreeBlock* oldest_ = nullptr;
    FreeBlock* newest_ = nullptr;
    size_t kept_small_ = 0, kept_big_ = 0;
    size_t limit_small_ = 0, limit_big_ = 0;  // of these
    bool limits_known_ = false;
    MemoryStats stats_ = {};
};

}  // namespace kiln::blocks
