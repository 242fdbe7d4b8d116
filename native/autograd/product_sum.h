// A sum of products of few rows each, kept as their rows and evaluated as one product over all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "call/tensor.h"

namespace kiln {

// The sum of left.T @ right over pairs of matrices with a row for each that one weight was multiplied with.
// The rows stand one below the other, in the order the pairs came. The order of arithmetic is that of one
// product: a chain over 512 rows at a time, these sums added one after the other; so 512 rows can be
// multiplied as soon as they are there, and no more than that are kept.
class ProductSum {
public:
    static constexpr int64_t most_rows = 256;  // of a pair that is worth keeping

    // One factor's rows below each other, for all sums that get the same: two weights whose products are
    // added have one gradient. `used` of them are there.
    struct Rows {
        TensorRef memory;
        int64_t used = 0;
    };
    // What a sum got last, and where it put that.
    struct Last {
        TensorRef values;
        uint32_t version = 0;
        std::weak_ptr<Rows> in;
        int64_t at = 0;
    };

    // `last`: of the left factors and of the right ones, if sums that get the same are to share them.
    void add(const TensorRef& left, const TensorRef& right, bool create_graph, Last* last = nullptr);
    // The same of `count` rows from `at` on, which lie in order.
    void add_rows(const Tensor& left, const Tensor& right, int64_t at, int64_t count);
    // The sum; nothing is kept of it afterwards.
    TensorRef evaluate(bool create_graph);

private:
    static constexpr int64_t segment = 512;

    // Where `count` rows more of a factor go.
    TensorRef room(std::shared_ptr<Rows>& rows, const Tensor& like, int64_t count);
    void append(std::shared_ptr<Rows>& rows, const TensorRef& values, Last* last);
    void multiply();

    std::shared_ptr<Rows> left_, right_;  // of which the first `rows_` are this sum's
    int64_t rows_ = 0;
    TensorRef sum_;                          // of whole segments
    std::vector<TensorRef> lefts_, rights_;  // instead of all these, where a graph is made of them
};

}  // namespace kiln
