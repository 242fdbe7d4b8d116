// Blocks of memory, kept when they are given back: the caching allocator under storages (memory.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln {

struct Block {
    void* data;           // never null
    uint16_t size_class;  // the cache's; 0: of no bytes
};

// At least `nbytes`, aligned to memory_alignment. Error{memory} when the system has no more.
Block take_block(size_t nbytes);
void give_block(Block block);

}  // namespace kiln
