#include "free_list.h"

#include "check.h"
#include "system_memory.h"

namespace kiln {

// The first block is filled page by page: a small program must not pay for 2 MB at once.
Slabs::Slab* Slabs::add() {
    void* block = map_aligned(block_bytes, std::exchange(grown_, true));
    KILN_CHECK(block, memory, "allocate: no memory for tensors and nodes");
    auto* slab = new (block) Slab{};
    ++empty_;
    enter(slab);
    return slab;
}

void Slabs::remove(Slab* slab) {
    leave(slab);
    --empty_;
    unmap(slab, block_bytes);
}

}  // namespace kiln
