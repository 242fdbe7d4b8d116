// Preloaded into a process, it makes the n-th allocation of a kind fail that the core asks for:
//
//     objects  `operator new`, called from the core
//     python   Python's allocators, from what the core calls in the interpreter, up to where that runs
//              Python code: what fails there is the interpreter's to survive
//     memory   aligned_alloc and mmap, called from the core; twice, as it gives its cache back and asks again
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

enum Kind { objects, python, memory };

struct Range {
    uintptr_t low = 0, high = 0;
    bool has(const void* address) const { return uintptr_t(address) >= low && uintptr_t(address) < high; }
};
Range core, interpreter;  // the code of the core, and of the function that runs Python code
int kind = objects;
long failing = 0;  // which one; 0: none
long count = 0;    // so far

bool refused(Kind asked, const void* caller) {
    if (asked != kind || !core.has(caller)) return false;
    ++count;
    return failing && (count == failing || (kind == memory && count == failing + 1));
}

bool refused_to_python() {
    if (kind != python || !failing || count >= failing) return false;
    void* frames[64];
    const int depth = backtrace(frames, 64);
    for (int i = 0; i < depth; ++i) {
        if (interpreter.has(frames[i])) return false;
        if (core.has(frames[i])) return refused(python, frames[i]);
    }
    return false;
}

// CPython's PyMemAllocatorEx.
struct Allocator {
    void* context;
    void* (*malloc)(void*, size_t);
    void* (*calloc)(void*, size_t, size_t);
    void* (*realloc)(void*, void*, size_t);
    void (*free)(void*, void*);
};
Allocator found[3];  // by domain: raw, mem, object

template <int domain>
Allocator failing_allocator() {
    return {
        nullptr,
        [](void*, size_t bytes) {
            return refused_to_python() ? nullptr : found[domain].malloc(found[domain].context, bytes);
        },
        [](void*, size_t items, size_t bytes) {
            return refused_to_python() ? nullptr : found[domain].calloc(found[domain].context, items, bytes);
        },
        [](void*, void* block, size_t bytes) {
            return refused_to_python() ? nullptr : found[domain].realloc(found[domain].context, block, bytes);
        },
        [](void*, void* block) { found[domain].free(found[domain].context, block); }};
}

template <class Function>
Function named(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

void* allocated(size_t bytes, const void* caller) {
    return refused(objects, caller) ? nullptr : std::malloc(bytes ? bytes : 1);
}

}  // namespace

extern "C" {
void fail_allocations_of(int which, uintptr_t from, uintptr_t to) {
    kind = which, core = {from, to};
    if (kind != python) return;
    void* const run = named<void*>("_PyEval_EvalFrameDefault");
    Dl_info info;
    const ElfW(Sym)* symbol = nullptr;
    if (!run ||
        !dladdr1(run, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT))
        std::abort();
    interpreter = {uintptr_t(run), uintptr_t(run) + symbol->st_size};
    using Exchange = void (*)(int domain, Allocator*);
    const auto get = named<Exchange>("PyMem_GetAllocator"), set = named<Exchange>("PyMem_SetAllocator");
    Allocator made[] = {failing_allocator<0>(), failing_allocator<1>(), failing_allocator<2>()};
    for (int domain = 0; domain < 3; ++domain) {
        get(domain, &found[domain]);
        set(domain, &made[domain]);
    }
}
void fail_allocation(long n) { failing = n, count = 0; }
long allocations() { return count; }

void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
    static const auto real = reinterpret_cast<void* (*)(size_t, size_t)>(dlsym(RTLD_NEXT, "aligned_alloc"));
    return refused(memory, __builtin_return_address(0)) ? nullptr : real(alignment, bytes);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
    if (refused(memory, __builtin_return_address(0))) return MAP_FAILED;
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
}

void* operator new(size_t bytes) {
    if (void* block = allocated(bytes, __builtin_return_address(0))) return block;
    throw std::bad_alloc();
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
    return allocated(bytes, __builtin_return_address(0));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
