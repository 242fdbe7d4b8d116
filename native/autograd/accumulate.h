// Sums of gradients: on the way of a pass, at its leaves, and in their .grad.
#pragma once

#include <cstdint>
#include <memory>

#include "autograd/node.h"
#include "autograd/product_sum.h"
#include "base/small_vector.h"

namespace kiln {

// Adds a gradient to what is there so far: null, or the sum of those that came before it. Where nobody else
// can see that sum and no graph is made, it is added to in place.
void add_gradient(TensorRef& sum, TensorRef gradient);

// What a gradient is as an array: of all of a value; of a slice or of picked elements, with zeros around, in
// the latter case added to these.
enum class Part : uint8_t { whole, slice, scattered };

// A value's sum as far as it came, and at `place` of `from_zero` whether it began as +0.0 everywhere. A sum
// with gradients of parts of the value does: then it makes no difference to its bits whether such a gradient
// is added as an array with zeros around it or at its place alone.
struct SumOfParts {
    TensorRef& sum;
    BitSet& from_zero;
    size_t place;

    void add(TensorRef gradient, Part part) {
        if (part == Part::whole && !sum)
            sum = std::move(gradient);
        else
            add_to_others(std::move(gradient), part);
    }
    // Before writes at places of the sum that is there: it begins at zero, and is nobody else's.
    void prepare_for_places();
    // Adds the gradients of a node's results, which are slices of the value, at their places.
    void add_at_places(const Node& node);

private:
    void add_to_others(TensorRef gradient, Part part);
    bool begin_at_zero();  // whether it did before
};
// Whether a node's results are slices of its first input.
bool gives_slices(const Node& node);

class KeptParts;  // kept_parts.h

// A leaf in a pass.
struct LeafSum {
    MetaRef meta;
    TensorRef gradient;
    BitSet from_zero;
    std::unique_ptr<ProductSum> products;  // what is to be added to it
    std::shared_ptr<KeptParts> kept;       // its parts, where they come in another order
    bool finished = false;                 // as soon as all that leads to it was passed
};

// The leaves a pass came to.
class LeafSums {
public:
    // A pass that begins anew has another number, and no leaves.
    void begin(uint64_t pass) {
        pass_ = pass;
        list_.clear();
    }
    LeafSum& of(const MetaRef& meta);
    void count_edge(const MetaRef& meta) { ++of(meta).meta->waiting; }
    // How many of the edges counted are not passed yet.
    uint32_t edges_left(const AutogradMeta& meta) const { return meta.run == pass_ ? meta.waiting : 0; }
    // Whether the last of the edges counted is passed with this one.
    bool passed_last_edge(AutogradMeta& meta) const {
        return meta.run == pass_ && meta.waiting && --meta.waiting == 0;
    }
    const LeafSum* find(const AutogradMeta* meta) const;
    size_t size() const { return list_.size(); }
    LeafSum& operator[](size_t i) { return list_[i]; }

private:
    uint64_t pass_ = 0;
    SmallVector<LeafSum, 4> list_;
};

// Adds a gradient to .grad, which never shares memory with anything reachable, and is added to in place while
// no graph is made.
void accumulate(AutogradMeta& meta, const TensorRef& gradient, bool create_graph);

}  // namespace kiln
