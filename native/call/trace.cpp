// What the trace of a thread is told of besides calls.
#include "call/trace.h"

#include <utility>

namespace kiln {

void refuse_if_traced(const char* what, bool abstract_only) {
    CallTrace* const trace = current_trace();
    if (trace && !trace->inside && (trace->abstract || !abstract_only)) trace->refuse(*trace, what);
}

bool read_in_trace(Storage& storage, bool for_others) {
    CallTrace* const trace = current_trace();
    if (!trace || trace->inside || !trace->abstract) return false;
    Tensor* const tensor = std::exchange(trace->reading, nullptr);
    if (!tensor || tensor->storage.get() != &storage) trace->refuse(*trace, "reads a value");
    return trace->read(*trace, *tensor, for_others);
}

void tell_value_read(Tensor& tensor) {
    CallTrace* const trace = current_trace();
    if (trace && !trace->inside) trace->reading = &tensor;
}

void tell_asked(Tensor& tensor, const char* what) {
    CallTrace* const trace = current_trace();
    if (trace && !trace->inside) trace->asked(*trace, tensor, what);
}

}  // namespace kiln
