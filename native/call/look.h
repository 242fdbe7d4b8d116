// How a call looks: all of its arguments that a kernel, a program or a derivative depends on. What was found
// for one call serves every call that looks the same.
//
//     Look        of a pointwise function: a byte per argument (dtype, whether it has dims, layout class)
//
//     describe    of any other: dtype, number of dims, which of them are 1, the class of each stride
//
// Tables find by a `Key`, which holds one or the other; a `Look` alone is compared with that of the last
// call.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/small_vector.h"
#include "call/tensor.h"

namespace kiln {

// One argument: an array, or a Python number.
struct Operand {
    Tensor* tensor = nullptr;
    Number number;
};

// Of a stride: 0, 1 or any (2).
inline uint64_t stride_class(int64_t stride) { return stride == 0 || stride == 1 ? uint64_t(stride) : 2; }
// Bit d: size d is 1.
uint64_t ones_of(const Dims& sizes);

// Of a pointwise call. Two are equal only if they have as many arguments.
//
//     bits  0..3 dtype (of a number its kind)   4 no dims   5 a number   4 and 5 a result   6..7 layout class
class Look {
public:
    static constexpr size_t most = 28;  // bytes

    void add(const Operand& operand, uint8_t layout = 0) {
        operand.tensor ? add_array(operand.tensor->dtype, operand.tensor->ndim() > 0, layout)
                       : add_number(operand.number);
    }
    void add_array(DType dtype, bool has_dims, uint8_t layout = 0) {
        push(uint8_t(uint8_t(dtype) | !has_dims << 4 | layout << 6));
    }
    void add_number(const Number& number) { push(uint8_t(uint8_t(number.kind) | 1 << 5)); }
    // A tensor that a result is written into.
    void add_result(DType dtype, uint8_t layout = 0) { push(uint8_t(uint8_t(dtype) | 3 << 4 | layout << 6)); }
    // All results, where they are made: their dtypes follow from the arguments.
    void add_new_results(uint8_t layout) { push(uint8_t(0xf | 3 << 4 | layout << 6)); }
    // Something else that what is looked for depends on.
    void push(uint8_t code) {
        if (last_ >> 56) [[unlikely]] {
            full_ = {last_, full_[0], full_[1]};
            last_ = 1;
        }
        last_ = last_ << 8 | code;
    }

    bool operator==(const Look& other) const {
        return last_ == other.last_ && full_[0] == other.full_[0] && full_[1] == other.full_[1] &&
               full_[2] == other.full_[2];
    }
    std::array<uint64_t, 4> words() const { return {last_, full_[0], full_[1], full_[2]}; }

private:
    // Seven bytes to a word, above them a 1; before `last_` come those that are full, the later one first.
    uint64_t last_ = 1;
    std::array<uint64_t, 3> full_ = {};
};

// Words that identify what a call looks like; hashed, and compared in full.
class Key {
public:
    void push(uint64_t word) {
        words_.push_back(word);
        hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
        hash_ ^= hash_ >> 32;
    }
    void push(const Look& look) {
        for (uint64_t word : look.words())
            if (word) push(word);
    }
    uint64_t hash() const { return hash_; }
    std::span<const uint64_t> words() const { return {words_.data(), words_.size()}; }

private:
    uint64_t hash_ = 0x243F6A8885A308D3ull;
    SmallVector<uint64_t, 24> words_;
};

// Appends what a program may depend on of one operand: dtype, number of dims, which dims are 1, layout class.
void describe(const Operand& operand, Key& key);

// Key -> Value, open addressing; entries are never removed and stay where they are.
template <class Value>
class Table {
public:
    Value* find(const Key& key) const {
        if (slots_.empty()) return nullptr;
        for (size_t i = key.hash() & mask(); slots_[i].value; i = (i + 1) & mask())
            if (slots_[i].hash == key.hash() && same(slots_[i].words, key.words()))
                return slots_[i].value.get();
        return nullptr;
    }
    Value* insert(const Key& key, std::unique_ptr<Value> value) {
        if (2 * (size_ + 1) > slots_.size()) grow();
        Value* result = value.get();
        place({key.hash(), {key.words().begin(), key.words().end()}, std::move(value)});
        ++size_;
        return result;
    }

private:
    struct Slot {
        uint64_t hash = 0;
        std::vector<uint64_t> words;
        std::unique_ptr<Value> value;
    };
    static bool same(const std::vector<uint64_t>& a, std::span<const uint64_t> b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), b.size_bytes()) == 0;
    }
    size_t mask() const { return slots_.size() - 1; }
    void place(Slot slot) {
        size_t i = slot.hash & mask();
        while (slots_[i].value) i = (i + 1) & mask();
        slots_[i] = std::move(slot);
    }
    void grow() {
        std::vector<Slot> old(slots_.empty() ? 256 : 2 * slots_.size());
        std::swap(old, slots_);
        for (Slot& slot : old)
            if (slot.value) place(std::move(slot));
    }
    std::vector<Slot> slots_;
    size_t size_ = 0;
};

}  // namespace kiln
