// Sets of small numbers: of which operands or results of a call something holds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kiln {

// A bit for each number. Those below 64 are one word; what is beyond, which few calls have, is on the heap.
class BitSet {
public:
    BitSet() = default;
    BitSet(BitSet&&) = default;
    BitSet& operator=(BitSet&&) = default;
    BitSet(const BitSet& other) : first_(other.first_) {
        if (other.rest_) [[unlikely]]
            rest_ = std::make_unique<Words>(*other.rest_);
    }
    BitSet& operator=(const BitSet& other) { return *this = BitSet(other); }

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
        return i / 64 <= rest().size() && rest()[i / 64 - 1] >> i % 64 & 1;
    }
    void add(size_t i) {
        if (i < 64) [[likely]]
            first_ |= uint64_t(1) << i;
        else
            beyond(i / 64)[i / 64 - 1] |= uint64_t(1) << i % 64;
    }
    void remove(size_t i) {
        if (i < 64) [[likely]]
            first_ &= ~(uint64_t(1) << i);
        else if (i / 64 <= rest().size()) {
            (*rest_)[i / 64 - 1] &= ~(uint64_t(1) << i % 64);
            trim();
        }
    }
    void clear() {
        first_ = 0;
        if (rest_) [[unlikely]]
            rest_.reset();
    }
    explicit operator bool() const { return first_ || rest_; }
    size_t end() const {  // one more than the largest
        return rest_ ? 64 * rest_->size() + size_t(std::bit_width(rest_->back()))
                     : size_t(std::bit_width(first_));
    }

    BitSet& operator|=(const BitSet& other) {
        first_ |= other.first_;
        if (other.rest_) [[unlikely]]
            for (size_t k = 0; k < other.rest_->size(); ++k)
                beyond(other.rest_->size())[k] |= (*other.rest_)[k];
        return *this;
    }
    BitSet& operator&=(const BitSet& other) {
        first_ &= other.first_;
        if (rest_) [[unlikely]] {
            if (rest_->size() > other.rest().size()) rest_->resize(other.rest().size());
            for (size_t k = 0; k < rest_->size(); ++k) (*rest_)[k] &= (*other.rest_)[k];
            trim();
        }
        return *this;
    }
    BitSet& operator-=(const BitSet& other) {
        first_ &= ~other.first_;
        if (rest_) [[unlikely]] {
            for (size_t k = 0; k < rest_->size() && k < other.rest().size(); ++k)
                (*rest_)[k] &= ~(*other.rest_)[k];
            trim();
        }
        return *this;
    }
    bool meets(const BitSet& other) const { return first_ & other.first_ || bool(BitSet(*this) &= other); }
    bool operator==(const BitSet& other) const {
        return first_ == other.first_ && std::ranges::equal(rest(), other.rest());
    }
    bool operator<(const BitSet& other) const {
        return first_ != other.first_ ? first_ < other.first_
                                      : std::ranges::lexicographical_compare(rest(), other.rest());
    }

    uint64_t first() const { return first_; }  // the word of those below 64,
    std::span<const uint64_t> rest() const {   // and those beyond: the last is not 0
        return rest_ ? std::span<const uint64_t>(*rest_) : std::span<const uint64_t>();
    }

private:
    using Words = std::vector<uint64_t>;
    Words& beyond(size_t count) {
        if (!rest_) rest_ = std::make_unique<Words>();
        if (rest_->size() < count) rest_->resize(count);
        return *rest_;
    }
    void trim() {
        while (!rest_->empty() && !rest_->back()) rest_->pop_back();
        if (rest_->empty()) rest_.reset();
    }
    uint64_t first_ = 0;
    std::unique_ptr<Words> rest_;
};

}  // namespace kiln
