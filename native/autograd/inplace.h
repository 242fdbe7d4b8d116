// Views and writes in place, and what they do to the history of what shares the memory.
#pragma once

#include <span>
#include <string>

#include "autograd/node.h"
#include "call/op.h"
#include "call/tensor.h"

namespace kiln {

// Checks that `target` may be written in place by a call with these operands.
void prepare_write(const Fn& fn, const Tensor& target, std::span<const Operand> operands);
// The same of gradients, where they are recorded.
void check_in_place(const std::string& name, const Tensor& target);
// After a write: versions move on, and the line is remembered for the message that may need it.
void wrote(Tensor& target);
// Where a storage was last written in place; null if it was not.
const SourceLine* last_write(const Storage& storage);

// Makes `view` (if it shares x's memory) a view of what x is, or views.
void set_base(Tensor& view, Tensor& x);
// The same of all that a view function gives of x. One of several views may not be written where gradients
// are recorded: their node could not be replaced for it alone.
void set_bases(const Fn& fn, std::span<const TensorRef> views, Tensor& x);
// After a recorded write through a view: what it views has the write as its history, and the view is a view
// of that.
void write_to_base(Tensor& view);
// What becomes of x when it is to look where `view` does from now on: a tensor with x's .grad and view's
// history. Other views of x stay views of the same memory. `name`: the operation, for an error.
TensorRef become(Tensor& x, const Tensor& view, const char* name);
// The autograd node of a tensor, brought up to date if its base was changed in place.
Node* up_to_date_grad_fn(Tensor& tensor);

}  // namespace kiln
