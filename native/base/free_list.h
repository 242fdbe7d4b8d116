// Objects that are made and dropped at every op: they lie side by side in blocks of 2 MB, each kept for the
// next one. A graph of a million nodes touches few pages, and its blocks go back to the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/invariants.h"
#include "base/system_memory.h"

namespace kiln {

// Room for objects of one size. Called with the interpreter lock held.
class Slabs {
public:
    explicit constexpr Slabs(size_t object_bytes) : object_bytes_(object_bytes) {}

    void* take() {
        assert_locked();
        Slab* slab = room_ ? room_ : add();
        if (slab->used++ == 0) --empty_;
        void* object = slab->dropped;
        if (object)
            come(slab->dropped = slab->dropped->next);
        else
            object = reinterpret_cast<std::byte*>(slab) + first + slab->opened++ * object_bytes_;
        if (slab->used == capacity()) leave(slab);
        return object;
    }
    void give(void* object) {
        assert_locked();
        auto* slab = reinterpret_cast<Slab*>(uintptr_t(object) & ~uintptr_t(block_bytes - 1));
        if (slab->used == capacity()) enter(slab);
        slab->dropped = new (object) Link{slab->dropped};
        if (--slab->used == 0 && ++empty_ > most_empty) remove(slab);
    }

private:
    struct Link {
        Link* next;
    };
    struct Slab {  // at the start of its block
        Slab *next, *previous;
        Link* dropped;
        uint32_t used, opened;  // objects in use; objects that ever were
    };
    static constexpr size_t block_bytes = 2 << 20, first = 64;
    static constexpr uint32_t most_empty = 4;

    // What is taken next was dropped long ago, where a program holds many: it comes to the cache meanwhile.
    void come(const void* object) const {
        for (size_t at = 0; at < object_bytes_; at += 64)
            __builtin_prefetch(static_cast<const std::byte*>(object) + at, 1);
    }
    uint32_t capacity() const { return uint32_t((block_bytes - first) / object_bytes_); }
    void enter(Slab* slab) {
        slab->next = room_;
        slab->previous = nullptr;
        if (room_) room_->previous = slab;
        room_ = slab;
    }
    void leave(Slab* slab) {
        (slab->previous ? slab->previous->next : room_) = slab->next;
        if (slab->next) slab->next->previous = slab->previous;
    }
    Slab* add();
    void remove(Slab* slab);

    size_t object_bytes_;
    Slab* room_ = nullptr;  // a list of those that are not full
    uint32_t empty_ = 0;
    bool grown_ = false;
};

// The first block is filled page by page: a small program must not pay for 2 MB at once.
[[gnu::noinline]] inline Slabs::Slab* Slabs::add() {
    void* block = map_aligned(block_bytes, std::exchange(grown_, true));
    KILN_CHECK(block, memory, "allocate: no memory for tensors and nodes");
    auto* slab = new (block) Slab{};
    ++empty_;
    enter(slab);
    return slab;
}

[[gnu::noinline]] inline void Slabs::remove(Slab* slab) {
    leave(slab);
    --empty_;
    unmap(slab, block_bytes);
}

// Drops an object whose destructor may release others of its kind, and those others still: one after the
// other, so that no chain is too long for the stack. Those that wait are linked by `next`. Each thread has a
// list of its own: in a forked child nobody works on the other threads' lists.
template <class Object, class Drop>
void drop_in_turn(Object* object, Object* Object::* next, Drop drop) {
    static thread_local Object* waiting = nullptr;
    static thread_local bool dropping = false;
    object->*next = std::exchange(waiting, object);
    if (std::exchange(dropping, true)) return;
    while (waiting) drop(std::exchange(waiting, waiting->*next));
    dropping = false;
}

// Never destroyed: objects may be dropped as the process ends.
template <class Object>
class FreeList {
public:
#if defined(__SANITIZE_ADDRESS__)  // which sees what is used after it was dropped
    static Object* make() { return new Object; }
    static void drop(Object* object) { delete object; }
#else
    static Object* make() { return new (slabs_.take()) Object; }
    static void drop(Object* object) {
        object->~Object();
        slabs_.give(object);
    }
#endif

private:
    static_assert(alignof(Object) <= 64);
    static constexpr size_t aligned(size_t bytes) {
        return (bytes + alignof(Object) - 1) / alignof(Object) * alignof(Object);
    }
    static inline Slabs slabs_{aligned(sizeof(Object))};
};

}  // namespace kiln
