// Ops and functions as plain data, and what a call of one is made of.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "tensor.h"

namespace kiln {

// What the core knows of an op. The mathematics lives in the table (`record`, the interpreter's object).
enum class OpKind : uint8_t { pointwise, view, general };
enum class ViewKind : uint8_t { none, reshape, permute, expand, slice, as_strided };

struct Op {
    std::string name;
    OpKind kind = OpKind::general;
    ViewKind view = ViewKind::none;
    bool differentiable = true;
    bool divides = false;    // operand 0 by operand 1: of integers the latter may not be 0
    bool at_once = false;    // runs on its line where others are recorded
    void* record = nullptr;  // borrowed: the table keeps it
};

// How the core runs a function; learnt at its first call from what its graph is made of.
enum class FnClass : uint8_t { unknown, pointwise, program, view, replay };

// One argument: an array, or a Python number.
struct Operand {
    Tensor* tensor = nullptr;
    Number number;
};

// Where a derivative's input comes from.
struct Source {
    enum Kind : uint8_t { grad, input, output, hidden, shape, number } kind;
    uint8_t index;
};

// How an argument of a pointwise function looks, its layout aside: all that its dtypes and derivatives depend
// on. Bits 6 and 7 are free.
inline uint8_t look_of(DType dtype, bool dimensioned) { return uint8_t(uint8_t(dtype) | !dimensioned << 4); }
inline uint8_t look_of(const Number& number) { return uint8_t(uint8_t(number.kind) | 1 << 5); }
inline uint8_t look_of(const Operand& operand) {
    return operand.tensor ? look_of(operand.tensor->dtype, operand.tensor->ndim() > 0)
                          : look_of(operand.number);
}

struct Fn;
struct PointwiseEntry;
using FlatLook = unsigned __int128;  // what a flat call looks like (pointwise.h); 0: no call

// Which operands, outputs and hidden outputs a backward reads: a bit each.
struct Wanted {
    uint64_t inputs = 0, outputs = 0, hidden = 0;
};

// What the backward of a function reads of its forward, per array operand.
struct Saves {
    uint32_t hidden = 0;            // how many extra outputs the forward gives
    std::vector<uint64_t> inputs;   // per operand: bit i: its gradient reads operand i
    std::vector<uint64_t> outputs;  // bit j: reads output j
    std::vector<uint64_t> hiddens;  // bit h: reads hidden h
    uint64_t differentiable = 0;    // bit i: operand i has a gradient at all
};

// Size expressions: slot i holds an environment value or the result of one of these.
struct SizeExpr {
    enum Kind : uint8_t { constant, add, multiply, divide } kind;
    int64_t a, b;  // slots, or the constant in a
};

inline constexpr int8_t no_dim = -128, flat_array = 127;

// What a program gives: the results; what a derivative reads as well; the result where the first operand
// lies.
enum class ProgramFor : uint8_t { results, hidden, update };

using Identity = std::array<uint64_t, 2>;  // 128 bits of a cryptographic hash

// A function of arrays and numbers: an op with its structure, or the derivative of one.
struct Fn {
    uint32_t id = 0;
    Identity identity{};  // what it is, the same in every process; all 0: not known yet
    FnClass cls = FnClass::unknown;
    uint8_t outputs = 1;
    const Op* op = nullptr;  // of a forward
    std::string name;
    int8_t index_input = -1;      // operand whose values are positions, -1: none
    int8_t indexed_input = 0;     // operand they point into
    int8_t index_dim = 0;         // along this dim
    int8_t index_ignore = -1;     // operand whose value among the positions is skipped, -1: none
    bool index_negative = false;  // positions may count from the end
    bool updates = false;         // it writes at places of its first operand: in place without a copy
    int8_t gives_along = no_dim;  // the results are positions along this dim, or in the flat array
    ErrorKind index_error_kind = ErrorKind::index;
    std::string index_error;       // with {index}, {dim} and {size}
    Dims dims;                     // of a permute its dims, of a slice its dim
    Opaque structure;              // the interpreter's tuple
    Fn* twin = nullptr;            // of a structure that is equal, with parts of another type: 1, 1.0, True
    Opaque handle;                 // the interpreter's object for a derivative
    std::vector<Source> sources;   // of a derivative
    std::vector<uint8_t> targets;  // output k is the gradient of operand targets[k]
    std::vector<uint8_t> passes;   // if it computes nothing: output k is its operand passes[k]

    // Of a pointwise function: what was found for its last flat call, for the last such call that was
    // recorded for backward, and for its last derivative. Each is written when all of it is known: other
    // threads may call the function while this one is in a kernel or asks the compiler.
    struct Flat {
        FlatLook look = 0;
        PointwiseEntry* entry = nullptr;
    };
    struct FlatSaves {
        FlatLook look = 0;
        uint64_t needed = 0;  // the operands that want gradients
        const Saves* saves = nullptr;
        Wanted wanted;  // what backward reads for these
    };
    Flat flat;
    FlatSaves flat_saves;
    uint64_t last_code = 0;
    uint64_t last_written = 0;  // what the last write that was checked looked like, 0: none
    Fn* last_derivative = nullptr;

    // What was learnt of it under other default dtypes: a function's graph may depend on that one.
    struct Learnt {
        DType default_dtype = DType::float32;
        uint32_t id = 0;
        Identity identity{};
        Opaque handle;
    };
    std::vector<Learnt> others;
};

Fn* new_fn(const Op* op, std::string name);

// Sets the default dtype; functions go on with what was learnt of them under it, or start anew.
void change_default_dtype(DType dtype);

struct Call {
    Fn* fn;
    std::span<const Operand> operands;
};

// Words that identify what a call looks like; hashed, and compared in full.
class Key {
public:
    void push(uint64_t word) {
        if (count_ < inline_count_)
            words_[count_++] = word;
        else
            overflow(word);
        hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
        hash_ ^= hash_ >> 32;
    }
    uint64_t hash() const { return hash_; }
    std::span<const uint64_t> words() const {
        return more_.empty() ? std::span<const uint64_t>(words_, count_) : std::span<const uint64_t>(more_);
    }

private:
    static constexpr size_t inline_count_ = 24;
    void overflow(uint64_t word);
    size_t count_ = 0;
    uint64_t hash_ = 0x243F6A8885A308D3ull;
    uint64_t words_[inline_count_];
    std::vector<uint64_t> more_;
};

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
    size_t size() const { return size_; }

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

// Appends what a program may depend on of one operand: dtype, number of dims, which dims are 1, layout class.
void describe(const Operand& operand, Key& key);
// Bit d: size d is 1.
uint64_t ones_of(const Dims& sizes);
// Of a stride: 0, 1 or any (2).
inline uint64_t stride_class(int64_t stride) { return stride == 0 || stride == 1 ? uint64_t(stride) : 2; }

}  // namespace kiln
