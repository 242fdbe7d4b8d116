// What the compiler answers, as bytes: one form in memory and on disk. Nothing is read beyond them, no list
// is larger than they are, and who refers to what was read before refers to what is there. What an answer
// means is not checked: one that comes from disk is what kiln wrote there (entry.h), and names the code that
// runs.
//
//   integer := 8 bytes, little endian      text := integer, bytes      list := integer, items
//   program := kernels body      body := environment exprs checks buffers outputs steps    lists but for
//   environment; a step of control (program.h) has the bodies that it calls
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "call/op.h"
#include "program/program.h"

namespace kiln {

// Reads an answer from its start; Error{internal} for whatever is not one.
class Answer {
public:
    explicit Answer(std::span<const uint8_t> bytes) : rest_(bytes) {}
    int64_t integer();
    int64_t integer(int64_t low, int64_t high);  // within [low, high)
    std::string text();
    DType dtype();
    // The items of a list, each read by `read`, and of an integer at least.
    template <class Read>
    auto list(Read read) {
        std::vector<decltype(read())> items(size_t(integer(0, int64_t(rest_.size() / sizeof(int64_t)) + 1)));
        for (auto& item : items) item = read();
        return items;
    }
    std::vector<int32_t> slots(int64_t low, int64_t high);
    BitSet set();      // a list of its members
    void end() const;  // nothing may be left

private:
    std::span<const uint8_t> take(size_t count);
    std::span<const uint8_t> rest_;
};

std::vector<Kernel*> read_kernels(Answer& answer);
std::vector<SizeExpr> read_exprs(Answer& answer, uint32_t environment);
// A program of `inputs` arrays and numbers.
std::unique_ptr<Program> read_program(Answer& answer, size_t inputs);

}  // namespace kiln
