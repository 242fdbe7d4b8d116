// What the system is asked about memory, and for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>

#include <sys/mman.h>
#include <unistd.h>

namespace kiln {

inline constexpr size_t huge_page = 2 << 20;

// The number in a one-line file, or nothing found: the largest size.
inline size_t number_in(const char* path) {
    size_t value = std::numeric_limits<size_t>::max();
    if (FILE* file = std::fopen(path, "re")) {
        unsigned long long read;
        if (std::fscanf(file, "%llu", &read) == 1) value = read;
        std::fclose(file);
    }
    return value;
}

// What this process may use in all: the machine's memory or its control group's.
inline size_t total_memory() {
    const size_t machine = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
    return std::min({machine, number_in("/sys/fs/cgroup/memory.max"),
                     number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

// What could be touched now without the system killing someone; the largest size if it cannot be told.
inline size_t available_memory() {
    FILE* file = std::fopen("/proc/meminfo", "re");
    if (!file) return std::numeric_limits<size_t>::max();
    char line[128];
    unsigned long long kib, sum = 0;
    while (std::fgets(line, sizeof line, file))
        if (std::sscanf(line, "MemAvailable: %llu", &kib) == 1 ||
            std::sscanf(line, "SwapFree: %llu", &kib) == 1)
            sum += kib;
    std::fclose(file);
    return size_t(sum) << 10;
}

// Memory that starts at a multiple of 2 MB, in pages of that size if `huge` and possible; null if there is
// none.
inline void* map_aligned(size_t nbytes, bool huge) {
    const size_t whole = nbytes + huge_page;
    void* mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    const uintptr_t start = uintptr_t(mapped), block = (start + huge_page - 1) & ~(huge_page - 1);
    if (block > start) munmap(mapped, block - start);
    munmap(reinterpret_cast<void*>(block + nbytes), start + whole - (block + nbytes));
#if defined(MADV_HUGEPAGE)
    if (huge) madvise(reinterpret_cast<void*>(block), nbytes, MADV_HUGEPAGE);
#endif
    return reinterpret_cast<void*>(block);
}

inline void unmap(void* block, size_t nbytes) { munmap(block, nbytes); }

}  // namespace kiln
