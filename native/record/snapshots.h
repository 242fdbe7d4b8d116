// Memory that others can see, as it was when an op read it: what they write later must not be noticed.
#pragma once

#include <cstddef>
#include <vector>

#include "call/dispatch.h"

namespace kiln {

class Snapshots {
public:
    // A copy of the operand's array. One that was made for an earlier op serves as long as nobody wrote.
    TensorRef of(const Operand& operand);
    // Holds no copy any more; or forgets as well how much was copied.
    void drop() { made_.clear(); }
    void forget() { drop(), copied_ = 0; }
    size_t copied() const { return copied_; }  // bytes

private:
    struct Snapshot {
        const void* data;
        TensorRef values;
    };
    std::vector<Snapshot> made_;  // the last few
    size_t copied_ = 0;
};

}  // namespace kiln
