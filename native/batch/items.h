// Items of kiln.batching.map, which are independent: who of them reads and writes which memory, as far as
// calls tell.
#pragma once

#include <cstdint>
#include <span>

#include "call/look.h"
#include "call/tensor.h"

namespace kiln {

struct Fn;

// One item while it lives, inside another item's `map` or none.
class Item {
public:
    Item(int64_t index, const Item* outer);
    ~Item();
    Item(const Item&) = delete;
    bool is_or_is_in(uint64_t id) const;

    const uint64_t id;
    const int64_t index;

private:
    const Item* const outer_;
};

// Notes what a call of an item reads and writes. Raises where another item that lives writes what is read, or
// reads or writes what is written. Of parts of one memory that have gaps (columns) only what concerns the
// whole is seen.
void note_uses(const Item& item, const Fn& fn, std::span<const Operand> operands,
               std::span<const TensorRef> out);

}  // namespace kiln
