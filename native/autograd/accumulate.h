// Sums of gradients: on the way of a pass, at its leaves, and in their .grad.
#pragma once

#include <cstdint>

#include "autograd/node.h"
#include "base/small_vector.h"

namespace kiln {

// Adds a gradient to what is there so far: null, or the sum of those that came before it, which it may not
// change, as others may hold it.
void add_gradient(TensorRef& sum, TensorRef gradient);

// A leaf in a pass.
struct LeafSum {
    MetaRef meta;
    TensorRef gradient;
    bool finished = false;  // where leaves have hooks: as soon as all that leads to it was passed
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
