// The dtypes: kind, size, name, promotion, and the reading and writing of one element.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln {

enum class DType : uint8_t { bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 };
inline constexpr int dtype_count = 10;

// What tables are keyed by. The order is the order of promotion between kinds.
enum class Kind : uint8_t { bool_, uint_, int_, float_ };

namespace detail {

struct DTypeFacts {
    const char* name;
    const char* scalar_type;  // as PyTorch's messages name it
    Kind kind;
    uint8_t itemsize;  // bytes
};

inline constexpr DTypeFacts dtype_facts[dtype_count] = {
    {"bool", "Bool", Kind::bool_, 1},      {"uint8", "Byte", Kind::uint_, 1},
    {"int8", "Char", Kind::int_, 1},       {"int16", "Short", Kind::int_, 2},
    {"int32", "Int", Kind::int_, 4},       {"int64", "Long", Kind::int_, 8},
    {"float16", "Half", Kind::float_, 2},  {"bfloat16", "BFloat16", Kind::float_, 2},
    {"float32", "Float", Kind::float_, 4}, {"float64", "Double", Kind::float_, 8},
};

}  // namespace detail

constexpr const char* name(DType dtype) { return detail::dtype_facts[int(dtype)].name; }
constexpr const char* scalar_type(DType dtype) { return detail::dtype_facts[int(dtype)].scalar_type; }
constexpr Kind kind(DType dtype) { return detail::dtype_facts[int(dtype)].kind; }
constexpr size_t itemsize(DType dtype) { return detail::dtype_facts[int(dtype)].itemsize; }
constexpr bool is_float(DType dtype) { return kind(dtype) == Kind::float_; }

// "float32" -> DType::float32; nothing for a name that is not a dtype's.
std::optional<DType> dtype_from_name(std::string_view name);

// The smallest dtype both convert to without losing their kind (torch.promote_types).
DType promote_types(DType lhs, DType rhs);

// Whether a value of `from` may be stored in `to` by an in-place op or `out=` (torch.can_cast): a kind may
// only grow bool -> integer -> float.
bool can_cast(DType from, DType to);

// An operand's rank in the result type: a lower one changes the result only if its kind is higher.
enum class Category : uint8_t {
    dimensioned,  // a tensor with at least one dim
    scalar,       // a 0-d tensor
    number,       // a Python bool (bool_), int (int64) or float (float64)
};

// The result type of an op (torch.result_type): add every operand, then read `value()`.
class ResultType {
public:
    void add(DType dtype, Category category);
    DType value() const;  // Error{value} when nothing was added

private:
    static constexpr uint8_t none_ = 0xff;
    uint8_t seen_[3] = {none_, none_, none_};
};

// The dtype of a Python float in `tensor(1.5)` and of a float number in a result type; float32 at first.
DType default_dtype();
void set_default_dtype(DType dtype);  // Error{type} unless a float dtype

// A Python number, or an element as one: exactly one of the fields is in use, as `kind` says (bool_, int_ or
// float_; the elements of uint8 are int_).
struct Number {
    Kind kind = Kind::int_;
    union {
        int64_t integer = 0;  // of a bool or an int
        double real;          // of a float
    };

    static Number of(bool truth) { return from_bits(Kind::bool_, truth); }
    static Number of(int64_t integer) { return from_bits(Kind::int_, integer); }
    static Number of(double real) { return from_bits(Kind::float_, std::bit_cast<int64_t>(real)); }
    double as_double() const { return kind == Kind::float_ ? real : double(integer); }
    // As kernels and environments have it: an int64, or the bits of a double.
    int64_t bits() const { return kind == Kind::float_ ? std::bit_cast<int64_t>(real) : integer; }
    static Number from_bits(Kind kind, int64_t bits) {
        Number number;
        number.kind = kind;
        if (kind == Kind::float_)
            number.real = std::bit_cast<double>(bits);
        else
            number.integer = bits;
        return number;
    }
};

// One element, which need not be aligned.
Number read_element(DType dtype, const void* element);

// Stores a number as `to(dtype)` would: integers wrap, a float outside an integer's range becomes the
// 64-bit integers' minimum cut to size, float64 reaches the halves through float32.
void write_element(DType dtype, void* element, const Number& number);

// Round to nearest even; NaN stays NaN, denormals are kept.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace kiln
