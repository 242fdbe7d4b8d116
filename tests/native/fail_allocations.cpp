// Preloaded into a process, it makes the n-th allocation fail that the core asks `operator new` for.
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
uintptr_t low = 0, high = 0;  // where the core's code lies
long left = 0;                // until one fails; 0: none does
long count = 0;               // so far
}  // namespace

extern "C" {
void fail_allocations_of(uintptr_t from, uintptr_t to) { low = from, high = to; }
void fail_allocation(long n) { left = n, count = 0; }
long allocations() { return count; }
}

void* operator new(size_t bytes) {
    const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    if (caller >= low && caller < high) {
        ++count;
        if (left && --left == 0) throw std::bad_alloc();
    }
    if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
