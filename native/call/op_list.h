// Calls in a list: what a recording holds, and what a recipe is made of.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "call/dispatch.h"
#include "call/op.h"

namespace kiln {

// How an argument looks at its value.
enum class ArgClass : uint8_t {
    number,
    whole,    // exactly the value
    squeeze,  // the value with dims of size 1 added or dropped
    reshape,  // the value in another shape, contiguous
    expand,   // the value repeated along dims of stride 0
    strided,  // any sizes, strides and offset
};

struct ListedArg {
    ArgClass cls = ArgClass::number;
    DType dtype = DType::float32;  // of a number: int64, float64 or bool_
    uint16_t ndim = 0;
    int32_t value = -1;    // a recording's storage; in a recipe an input, or behind those an op's result
    uint64_t slot = 0;     // a number's bits; sizes, strides and offset unless whole
    uint64_t ones = 0;     // bit d: size d is 1
    uint64_t classes = 0;  // stride class per dim, two bits each
    bool operator==(const ListedArg& other) const { return !std::memcmp(this, &other, sizeof other); }
};
static_assert(std::has_unique_object_representations_v<ListedArg>);

struct ListedOp {
    Fn* fn;
    bool hidden;  // gives what its backward reads as well
    bool writes;  // outputs are existing tensors
    uint32_t first_arg, args;
    uint32_t first_out, outs;  // in a recipe: the first `outs` results are the next values
    Identity identity{};       // in a recording: the function's, when it was called
    bool operator==(const ListedOp& other) const {
        return fn == other.fn && identity[0] == other.identity[0] && identity[1] == other.identity[1] &&
               hidden == other.hidden && writes == other.writes && args == other.args &&
               first_arg == other.first_arg && outs == other.outs && first_out == other.first_out;
    }
};

struct OpList {
    std::vector<ListedOp> ops;
    std::vector<ListedArg> args, outs;

    std::span<const ListedArg> args_of(const ListedOp& op) const {
        return std::span(args).subspan(op.first_arg, op.args);
    }
    std::span<const ListedArg> outs_of(const ListedOp& op) const {
        return std::span(outs).subspan(op.first_out, op.outs);
    }
    // The operands of an op: numbers are in slots, for the others there is `value_of(arg)`.
    template <class ValueOf>
    Operands operands_of(const ListedOp& op, const int64_t* slots, ValueOf&& value_of) const {
        Operands operands;
        for (const ListedArg& arg : args_of(op))
            operands.push_back(arg.cls == ArgClass::number
                                   ? Operand{nullptr, Number::from_bits(kind(arg.dtype), slots[arg.slot])}
                                   : value_of(arg));
        return operands;
    }
    bool operator==(const OpList&) const = default;
    void clear() {
        ops.clear();
        args.clear();
        outs.clear();
    }
};

using LiveSet = std::vector<uint8_t>;  // per storage of a recording: whether its values are needed afterwards

inline DType dtype_of(Kind kind) {
    return kind == Kind::float_ ? DType::float64 : kind == Kind::bool_ ? DType::bool_ : DType::int64;
}

}  // namespace kiln
