// 128 bits that change with every word of what they were made of.
#pragma once

#include <cstdint>

namespace kiln {

struct Hash128 {
    uint64_t low = 0x13198A2E03707344ull, high = 0xA4093822299F31D0ull;
    void mix(uint64_t word) {
        low = (low ^ word) * 0x9E3779B97F4A7C15ull;
        low ^= low >> 32;
        high = (high + word) * 0xD6E8FEB86659FD93ull;
        high ^= high >> 29;
    }
    bool operator==(const Hash128&) const = default;
};

}  // namespace kiln
