// A place in the user's program, kept cheaply and turned into text only for an error.
#pragma once

#include <string>

#include "call/tensor.h"

namespace kiln {

struct SourceLine {
    Opaque code;
    int instruction = 0;
    uint32_t call = 0;  // its number, if Python watches calls
    bool operator==(const SourceLine& other) const {
        return code.object == other.code.object && instruction == other.instruction;
    }
    // Of the interpreter's; set by the binding.
    static inline SourceLine (*current)() = nullptr;
    static inline std::string (*text)(const SourceLine&) = nullptr;
};

}  // namespace kiln
