// Errors: one exception type, one macro, one way to build a sentence.
#pragma once

#include <charconv>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kiln {

// Which Python exception an error becomes; in the order of set_python_error (binding/module.cpp).
enum class ErrorKind : uint8_t {
    value,            // ValueError
    type,             // TypeError
    index,            // IndexError
    runtime,          // RuntimeError
    not_implemented,  // NotImplementedError
    memory,           // MemoryError
    overflow,         // OverflowError
    buffer,           // BufferError
    internal,         // SystemError: our own bug
    python,           // a Python exception is already set in the interpreter; message is empty
};

// An error on its way to Python. A message reads: op: what was expected, what came, what to do.
struct Error : std::exception {
    ErrorKind kind;
    std::string message;

    Error(ErrorKind kind, std::string message) : kind(kind), message(std::move(message)) {}
    const char* what() const noexcept override { return message.c_str(); }
};

namespace detail {

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, char letter) { out += letter; }

template <class T>
    requires(std::is_same_v<T, bool>)  // and not what a pointer converts to
void append(std::string& out, T truth) {
    out += truth ? "True" : "False";
}

template <class T>
    requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
void append(std::string& out, T number) {
    char text[64];
    auto end = std::to_chars(text, text + sizeof text, number).ptr;
    out.append(text, end);
}

}  // namespace detail

// concat("mul: dim ", 3, " is ", size): text of strings, characters, booleans and numbers, joined.
// Numbers do not depend on the locale.
template <class... Parts>
std::string concat(const Parts&... parts) {
    std::string out;
    (detail::append(out, parts), ...);
    return out;
}

[[noreturn, gnu::cold]] inline void raise(ErrorKind kind, std::string message) {
    throw Error(kind, std::move(message));
}

}  // namespace kiln

// KILN_CHECK(dim < ndim, index, "size: dim ", dim, " of a tensor with ", ndim, " dims"): raises Error with
// the joined message unless the condition holds. The message is built only on failure.
#define KILN_CHECK(condition, error_kind, ...)                                                               \
    do {                                                                                                     \
        if (!(condition)) [[unlikely]]                                                                       \
            ::kiln::raise(::kiln::ErrorKind::error_kind, ::kiln::concat(__VA_ARGS__));                       \
    } while (false)
