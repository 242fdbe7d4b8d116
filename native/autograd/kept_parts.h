// Parts of a sum that do not come in the order they are added in: where a pass goes through launches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "autograd/accumulate.h"

namespace kiln {

// Whose part it is. Those of later calls come first, of one call by argument.
struct PartOf {
    uint64_t call;
    uint32_t argument;
};

// What a value's gradient is the sum of, kept until all parts are there. They stay what they came as: rows of
// a launch's gradient are not copied.
class KeptParts {
public:
    // Adds parts at their places of a sum: those of some rows.
    using Write = std::function<void(SumOfParts sum, std::span<const uint32_t> rows)>;

    void add(TensorRef array, Part part, PartOf of);
    // Of each call i: row `from[i]` of an array; of products, so many rows of each factor as there are for
    // it.
    void add_rows(TensorRef values, std::span<const uint64_t> calls, std::span<const uint32_t> from,
                  uint32_t argument);
    void add_products(TensorRef left, TensorRef right, int64_t each, std::span<const uint64_t> calls,
                      std::span<const uint32_t> from, uint32_t argument);
    void add_written(Write write, std::span<const uint64_t> calls, std::span<const uint32_t> from,
                     uint32_t argument);
    // The sum. `by_ops`: by calls of ops.
    TensorRef evaluate(bool by_ops, bool create_graph);

private:
    struct Source {
        TensorRef values, right;
        Write write;
        Part part = Part::whole;
        bool rows = false;
        int64_t each = 0;  // of products: rows of a call
    };
    struct Entry {
        uint64_t call;
        uint32_t argument, source, row;
    };
    void add_entries(Source source, std::span<const uint64_t> calls, std::span<const uint32_t> from,
                     uint32_t argument);
    TensorRef products(std::span<const Entry> entries, bool by_ops, bool create_graph);

    std::vector<Source> sources_;
    std::vector<Entry> entries_;
};

}  // namespace kiln
