// Sets of small numbers: of which operands or results of a call something holds.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kiln {

// A bit for each number. Those below 64 are one word; what is beyond, which few calls have, is on the heap.
class BitSet {
public:
    BitSet() = default;
    static BitSet of(size_t i) {
        BitSet set;
        set.add(i);
        return set;
    }
    static BitSet below(size_t count) {
        BitSet set;
        for (size_t i = 0; i < count; ++i) set.add(i);
        return set;
    }

    bool has(size_t i) const {
        if (i < 64) [[likely]]
            return first_ >> i & 1;
        return i / 64 <= rest_.size() && rest_[i / 64 - 1] >> i % 64 & 1;
    }
    void add(size_t i) {
        if (i >= 64 && i / 64 > rest_.size()) rest_.resize(i / 64);
        word(i) |= uint64_t(1) << i % 64;
    }
    void remove(size_t i) {
        if (i < 64 || i / 64 <= rest_.size()) word(i) &= ~(uint64_t(1) << i % 64);
        trim();
    }
    explicit operator bool() const { return first_ || !rest_.empty(); }
    size_t end() const {  // one more than the largest
        return rest_.empty() ? size_t(std::bit_width(first_))
                             : 64 * rest_.size() + size_t(std::bit_width(rest_.back()));
    }

    BitSet& operator|=(const BitSet& other) {
        first_ |= other.first_;
        if (rest_.size() < other.rest_.size()) rest_.resize(other.rest_.size());
        for (size_t k = 0; k < other.rest_.size(); ++k) rest_[k] |= other.rest_[k];
        return *this;
    }
    BitSet& operator&=(const BitSet& other) {
        first_ &= other.first_;
        if (rest_.size() > other.rest_.size()) rest_.resize(other.rest_.size());
        for (size_t k = 0; k < rest_.size(); ++k) rest_[k] &= other.rest_[k];
        trim();
        return *this;
    }
    BitSet& operator-=(const BitSet& other) {
        first_ &= ~other.first_;
        for (size_t k = 0; k < rest_.size() && k < other.rest_.size(); ++k) rest_[k] &= ~other.rest_[k];
        trim();
        return *this;
    }
    bool meets(const BitSet& other) const { return bool(BitSet(*this) &= other); }
    auto operator<=>(const BitSet&) const = default;

    uint64_t first() const { return first_; }                 // the word of those below 64,
    std::span<const uint64_t> rest() const { return rest_; }  // and those beyond: the last is not 0

private:
    uint64_t& word(size_t i) { return i < 64 ? first_ : rest_[i / 64 - 1]; }
    void trim() {
        while (!rest_.empty() && !rest_.back()) rest_.pop_back();
    }
    std::vector<uint64_t> rest_;
    uint64_t first_ = 0;
};

}  // namespace kiln
