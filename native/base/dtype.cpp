#include "base/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/threads.h"

namespace kiln {
namespace {

constexpr DType b1 = DType::bool_, u8 = DType::uint8, i8 = DType::int8, i16 = DType::int16,
                i32 = DType::int32, i64 = DType::int64, f16 = DType::float16, bf = DType::bfloat16,
                f32 = DType::float32, f64 = DType::float64;

// Symmetric. Two surprises: uint8 with int8 needs int16, and neither half holds the other.
// clang-format off
constexpr DType promotion[dtype_count][dtype_count] = {
    //         b1   u8   i8   i16  i32  i64  f16  bf   f32  f64
    /* b1  */ {b1,  u8,  i8,  i16, i32, i64, f16, bf,  f32, f64},
    /* u8  */ {u8,  u8,  i16, i16, i32, i64, f16, bf,  f32, f64},
    /* i8  */ {i8,  i16, i8,  i16, i32, i64, f16, bf,  f32, f64},
    /* i16 */ {i16, i16, i16, i16, i32, i64, f16, bf,  f32, f64},
    /* i32 */ {i32, i32, i32, i32, i32, i64, f16, bf,  f32, f64},
    /* i64 */ {i64, i64, i64, i64, i64, i64, f16, bf,  f32, f64},
    /* f16 */ {f16, f16, f16, f16, f16, f16, f16, f32, f32, f64},
    /* bf  */ {bf,  bf,  bf,  bf,  bf,  bf,  f32, bf,  f32, f64},
    /* f32 */ {f32, f32, f32, f32, f32, f32, f32, f32, f32, f64},
    /* f64 */ {f64, f64, f64, f64, f64, f64, f64, f64, f64, f64},
};
// clang-format on

DType default_dtype_ = DType::float32;

// bool < integer < float; the two integer kinds are one step.
int rank(DType dtype) {
    switch (kind(dtype)) {
    case Kind::bool_: return 0;
    case Kind::uint_:
    case Kind::int_: return 1;
    case Kind::float_: return 2;
    }
    return 2;
}

template <class T>
T read(const void* element) {
    T value;
    std::memcpy(&value, element, sizeof value);
    return value;
}

template <class T>
void write(void* element, T value) {
    std::memcpy(element, &value, sizeof value);
}

int64_t to_int64(double value) {
    // 2^63 is the first double too large; NaN fails both comparisons.
    constexpr double limit = 9223372036854775808.0;
    return value >= -limit && value < limit ? int64_t(value) : std::numeric_limits<int64_t>::min();
}

}  // namespace

std::optional<DType> dtype_from_name(std::string_view text) {
    for (int i = 0; i < dtype_count; ++i)
        if (text == name(DType(i))) return DType(i);
    return std::nullopt;
}

DType promote_types(DType lhs, DType rhs) { return promotion[int(lhs)][int(rhs)]; }

bool can_cast(DType from, DType to) { return rank(from) <= rank(to); }

void ResultType::add(DType dtype, Category category) {
    if (category == Category::number && is_float(dtype)) dtype = default_dtype_;
    uint8_t& seen = seen_[int(category)];
    seen = seen == none_ ? uint8_t(dtype) : uint8_t(promote_types(DType(seen), dtype));
}

DType ResultType::value() const {
    uint8_t result = none_;
    for (uint8_t next : {seen_[2], seen_[1], seen_[0]}) {  // from number up to dimensioned
        if (next == none_ || result == none_) {
            result = next == none_ ? result : next;
            continue;
        }
        // The higher category decides alone unless the lower one's kind is higher.
        bool alone = rank(DType(next)) >= rank(DType(result)) && rank(DType(next)) > 0;
        result = alone ? next : uint8_t(promote_types(DType(next), DType(result)));
    }
    KILN_CHECK(result != none_, value, "result_type: expected at least one tensor or number, got none");
    return DType(result);
}

DType default_dtype() { return default_dtype_; }

void set_default_dtype(DType dtype) {
    KILN_CHECK(is_float(dtype), type, "set_default_dtype: expected a floating-point dtype, got ",
               name(dtype));
    default_dtype_ = dtype;
}

Number read_element(DType dtype, const void* element) {
    const FloatEnvironment environment;  // a conversion is arithmetic
    switch (dtype) {
    case DType::bool_: return Number::of(read<uint8_t>(element) != 0);
    case DType::uint8: return Number::of(int64_t(read<uint8_t>(element)));
    case DType::int8: return Number::of(int64_t(read<int8_t>(element)));
    case DType::int16: return Number::of(int64_t(read<int16_t>(element)));
    case DType::int32: return Number::of(int64_t(read<int32_t>(element)));
    case DType::int64: return Number::of(read<int64_t>(element));
    case DType::float16: return Number::of(double(half_to_float(read<uint16_t>(element))));
    case DType::bfloat16: return Number::of(double(bfloat16_to_float(read<uint16_t>(element))));
    case DType::float32: return Number::of(double(read<float>(element)));
    case DType::float64: return Number::of(read<double>(element));
    }
    raise(ErrorKind::internal, "read_element: not a dtype");
}

void write_element(DType dtype, void* element, const Number& number) {
    const FloatEnvironment environment;
    const double real = number.as_double();
    const int64_t integer = number.kind == Kind::float_ ? to_int64(number.real) : number.integer;
    switch (dtype) {
    case DType::bool_: return write(element, uint8_t(number.kind == Kind::float_ ? real != 0 : integer != 0));
    case DType::uint8:
    case DType::int8: return write(element, uint8_t(integer));
    case DType::int16: return write(element, uint16_t(integer));
    case DType::int32: return write(element, uint32_t(integer));
    case DType::int64: return write(element, integer);
    case DType::float16: return write(element, float_to_half(float(real)));
    case DType::bfloat16: return write(element, float_to_bfloat16(float(real)));
    case DType::float32: return write(element, float(real));
    case DType::float64: return write(element, real);
    }
    raise(ErrorKind::internal, "write_element: not a dtype");
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {  // zero or denormal: mantissa * 2^-24, exact
        const float magnitude = float(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to 2^16 or more
    if (magnitude < 0x38800000u) {                                  // below 2^-14: a denormal half
        // Adding 0.5 puts the half's last bit at the float's last bit, so the addition does the rounding.
        const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
        return uint16_t(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1;
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float bfloat16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

uint16_t float_to_bfloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace kiln
