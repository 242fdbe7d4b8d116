// What the system is asked about memory, and for it.
#pragma once

#include <cstddef>

namespace kiln {

inline constexpr size_t huge_page = 2 << 20;

// Memory that starts at a multiple of 2 MB, in pages of that size if `huge` and possible; null if there is
// none.
void* map_aligned(size_t nbytes, bool huge);
void unmap(void* block, size_t nbytes);

// What this process may use in all: the machine's memory or its control group's.
size_t total_memory();
// What could be touched now without the system killing someone; the largest size if it cannot be told.
size_t available_memory();

}  // namespace kiln
