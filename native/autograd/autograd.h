// Reverse mode, recorded: each call that takes part leaves a node for backward.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "autograd/node.h"
#include "call/dispatch.h"
#include "call/op.h"
#include "call/tensor.h"

namespace kiln {

class FlatCall;

bool grad_enabled();
bool set_grad_enabled(bool enabled);  // returns what it was; in inference mode it stays off
class GradMode {                      // while it lives
public:
    explicit GradMode(bool enabled) : before_(set_grad_enabled(enabled)) {}
    ~GradMode() { set_grad_enabled(before_); }
    GradMode(const GradMode&) = delete;

private:
    const bool before_;
};
// Automatic mixed precision: while it is on, calls from Python of some functions have their arguments cast.
struct Autocast {
    bool on = false, cache = true;  // cache: a parameter is cast once
    DType dtype = DType::bfloat16;
};
// What is made in inference mode never takes part in backward, and its writes are not counted.
struct Modes {
    bool grad = true, inference = false;
    Autocast autocast;
};
Modes modes();
void set_modes(Modes modes);
const Autocast& autocast();
inline std::atomic<bool> autocast_used = false;  // by any thread, ever
class AutocastOff {                              // while it lives
public:
    AutocastOff();
    ~AutocastOff();
    AutocastOff(const AutocastOff&) = delete;

private:
    const bool before_;
};

// Whether gradients are recorded of what is made of it: a view takes part if what it views does.
bool takes_part(const Tensor& tensor);
bool needs_gradient(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

// The operands that have a gradient at all.
BitSet differentiable_operands(Fn& fn, std::span<const Operand> operands);
// Of these the ones whose values the gradients of the operands `needed` read.
BitSet saved_operands(Fn& fn, std::span<const Operand> operands, const BitSet& needed);
// The place of the next node, or of a call whose node comes later; so many places, the first of them.
uint64_t take_order(uint64_t count = 1);
// Nodes from this place on were made since anything was written in place, and have saved nothing overwritten.
inline uint64_t order_of_last_write = 0;

// Runs a flat call and leaves a node for backward if one is needed.
void call_flat(Fn& fn, FlatCall& flat, std::span<const Operand> operands, TensorRef* results);
Results call_with_gradient(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);
// Leaves a node for the views of its first operand that a call gave.
constexpr size_t most_outputs = 64;  // of a node of views: a derivative is made for those with a gradient
void record_views(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> views);
// A node with the edges of a call whose backward reads no value.
NodeRef record_edges(Fn& fn, std::span<const Operand> operands);

// A call of a user's function (autograd.Function): what went in, what came out, what it saved, and what
// knows its derivative. Results in `dirty` are inputs that were written.
struct UserCall {
    Fn* fn;
    Opaque context;
    std::vector<TensorRef> inputs, results, saved, dirty;
};
// Leaves a node for it and gives where each saved tensor is kept.
std::vector<SavedPlace> record_user(UserCall& call);

}  // namespace kiln
