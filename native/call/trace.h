// Calls of one thread, followed while a function's ops are written down (kiln/capture/pure).
#pragma once

#include <span>

#include "call/dispatch.h"

namespace kiln {

// Who follows the calls of a thread. Calls that a call makes itself (a replay's) are not told.
struct CallTrace {
    void (*told)(CallTrace& trace, Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                 const Results& results);
    // The program asks a tensor for something that is no value: its sizes, its layout, its history.
    void (*asked)(CallTrace& trace, Tensor& tensor, const char* what);
    void (*refuse)(CallTrace& trace, const char* what);  // throws: it would do what a trace may not
    // Puts the values of a tensor, which are about to be read or known to others, where they belong: whether
    // they were not there; may throw.
    bool (*read)(CallTrace& trace, Tensor& tensor, bool for_others);
    bool abstract = false;  // nothing runs: ops are recorded, and values may not be read
    bool inside = false;    // a call that was told of, or what it asks for
    CallTrace* outer = nullptr;
    Tensor* reading = nullptr;  // whose values the program asks for
};

// How many threads are traced.
inline int traces = 0;

// The trace of this thread, or null.
CallTrace* current_trace();

// Traces this thread as long as it lives: nothing is put on its list of calls that wait (batch/list.h), and
// an abstract trace has a recording of its own that never runs.
class Traced {
public:
    explicit Traced(CallTrace& trace);
    ~Traced();
    Traced(const Traced&) = delete;

private:
    struct Recorded;
    Recorded* recorded_ = nullptr;
    CallTrace& trace_;
    const bool list_paused_before_;
};

// Refuses what a traced function may not do.
void refuse_if_traced(const char* what, bool abstract_only);
inline void refuse_in_trace(const char* what, bool abstract_only = false) {
    if (traces) [[unlikely]]
        refuse_if_traced(what, abstract_only);
}

// Whether the trace of this thread has put the values that are read where they belong.
bool read_in_trace(Storage& storage, bool for_others);

// Tells which tensor the program is about to read the values of.
void tell_value_read(Tensor& tensor);
inline void note_value_read(Tensor& tensor) {
    if (traces) [[unlikely]]
        tell_value_read(tensor);
}

// The tensor, having told what the program asks it for: by the name of the attribute, or "sizes".
void tell_asked(Tensor& tensor, const char* what);
inline Tensor& asked(Tensor& tensor, const char* what) {
    if (traces) [[unlikely]]
        tell_asked(tensor, what);
    return tensor;
}
inline void note_sizes_read(Tensor& tensor) { asked(tensor, "sizes"); }

}  // namespace kiln
