// Machine code: from the bytes of an ELF object to a function pointer, without LLVM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kiln {

// ptr[i]: operand base addresses. arg[i]: sizes, strides, numbers. [begin, end): units of work, at least one.
using KernelFunction = void (*)(void* const* ptr, const int64_t* arg, int64_t begin, int64_t end);

// A loaded kernel; its code lives as long as this object. Called with the interpreter lock held.
class KernelObject {
public:
    // Loads a relocatable ELF64 object for this machine whose symbol `kernel` is a KernelFunction, or several
    // that refer to each other's global symbols, bundled (kiln/codegen/compile.py).
    // Error{value} for anything damaged, truncated, foreign or not self-contained; Error{memory} when no
    // memory can be mapped. The bytes are not needed afterwards.
    explicit KernelObject(std::span<const uint8_t> object);
    ~KernelObject();
    KernelObject(KernelObject&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)),
          function_(std::exchange(other.function_, nullptr)) {}
    KernelObject& operator=(KernelObject&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(nbytes_, other.nbytes_);
        std::swap(function_, other.function_);
        return *this;
    }

    KernelFunction function() const { return function_; }
    size_t nbytes() const { return nbytes_; }  // of mapped memory, in whole pages

private:
    uint8_t* base_ = nullptr;
    size_t nbytes_ = 0;
    KernelFunction function_ = nullptr;
};

// A linked object: right at every address that is a multiple of 4096.
struct KernelImage {
    std::vector<uint8_t> bytes;
    size_t entry;  // where `kernel` is
};

enum class Machine : uint16_t { x86_64 = 62, aarch64 = 183 };  // as ELF numbers them

// The first half of loading, for any machine: checks, lays out and relocates.
KernelImage link_kernel(std::span<const uint8_t> object, Machine machine);

}  // namespace kiln
