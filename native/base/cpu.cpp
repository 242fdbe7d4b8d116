#include "base/cpu.h"

#include <cstdint>
#include <cstdio>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace kiln {
namespace {

[[maybe_unused]] void append_hex(std::string& out, uint64_t value) {
    char text[20];
    std::snprintf(text, sizeof text, " %llx", static_cast<unsigned long long>(value));
    out += text;
}

#if defined(__x86_64__)

struct Leaf {
    uint32_t leaf, subleaf;
    uint32_t keep_ebx = ~0u;  // bits that are the same on every core
    uint32_t keep_edx = ~0u;
};

// Vendor and family; features; save areas; AMX tiles and multiplier; AVX10; extended features; the name.
// Leaf 1 holds the number of the core in EBX.
constexpr Leaf leaves[] = {
    {0, 0},          {1, 0, 0x0000ff00}, {7, 0},          {7, 1},          {7, 2},
    {0xd, 0},        {0xd, 1, 0},        {0x14, 0},       {0x19, 0},       {0x1d, 0},
    {0x1d, 1},       {0x1e, 0},          {0x1e, 1},       {0x24, 0},       {0x80000000, 0},
    {0x80000001, 0}, {0x80000002, 0},    {0x80000003, 0}, {0x80000004, 0}, {0x80000008, 0},
};

// Which register states the system saves; without its bit a register set must not be used.
uint64_t xcr0() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

#endif

}  // namespace

bool ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM and the state asked for
    static const bool permitted = syscall(SYS_arch_prctl, request, tile_data) == 0;
    return permitted;
#else
    return false;
#endif
}

#if defined(__x86_64__)

std::string cpu_identity() {
    constexpr uint32_t has_xgetbv = 1u << 27;  // leaf 1, ECX
    std::string out = "x86_64";
    uint32_t a, b, c, d;
    for (const Leaf& leaf : leaves) {
        if (leaf.leaf > __get_cpuid_max(leaf.leaf & 0x80000000u, nullptr)) continue;
        __cpuid_count(leaf.leaf, leaf.subleaf, a, b, c, d);
        char label[32];
        std::snprintf(label, sizeof label, "; %x.%x", leaf.leaf, leaf.subleaf);
        out += label;
        for (uint32_t word : {a, b & leaf.keep_ebx, c, d & leaf.keep_edx}) append_hex(out, word);
        if (leaf.leaf == 1 && (c & has_xgetbv)) {
            out += "; xcr0";
            append_hex(out, xcr0());
        }
    }
    return out;
}

#elif defined(__aarch64__)

std::string cpu_identity() {
    std::string out = "aarch64";
#if defined(__linux__)
    out += "; hwcap";
    append_hex(out, getauxval(AT_HWCAP));
    out += "; hwcap2";
    append_hex(out, getauxval(AT_HWCAP2));
    if (FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "re")) {
        unsigned long long midr;
        if (std::fscanf(file, "%llx", &midr) == 1) {
            out += "; midr";
            append_hex(out, midr);
        }
        std::fclose(file);
    }
#endif
    return out;
}

#else

std::string cpu_identity() { return "unknown"; }

#endif

}  // namespace kiln
