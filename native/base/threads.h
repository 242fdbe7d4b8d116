// The one thread pool, and the float environment kernels run in.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace kiln {

template <class Signature>
class FunctionRef;

// A reference to something callable that outlives the call it is passed to; two pointers, no allocation.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
public:
    template <class Callable>
        requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
    FunctionRef(Callable&& callable)
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
          call_([](void* object, Args... args) -> Result {
              return (*static_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Args>(args)...);
          }) {}

    Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

private:
    void* object_;
    Result (*call_)(void*, Args...);
};

// How many threads one parallel_for uses at most, this one included. At first KILN_NUM_THREADS, or the
// physical cores this process may run on.
int get_num_threads();
void set_num_threads(int64_t count);  // Error{runtime} unless 1 <= count <= 1024

// Calls body(begin, end, thread) on disjoint ranges that together are [0, units), from this thread and the
// pool's, and returns when all are done. Ranges are multiples of `grain` long, except the last; with one
// range, one thread, inside another parallel_for, or while another thread uses the pool, the body runs here
// in one call. `thread` is each one's own, below `threads`. A thread gets about `ranges`: with many, one that
// is late or displaced costs little. The body must not throw and must not touch the interpreter; it runs in
// the default float environment.
void parallel_for(int64_t units, int64_t grain,
                  FunctionRef<void(int64_t begin, int64_t end, int thread)> body,
                  int threads = get_num_threads(), int ranges = 8);

// Raises where this thread has less stack left: a kernel of many sums down columns has up to 230 KiB there. A
// nanosecond.
void expect_stack(size_t needed = 256 << 10);

// While it lives, this thread rounds to nearest and keeps denormals, whatever another library set; the
// previous state comes back at its end. Costs about a nanosecond when nothing has to change.
class FloatEnvironment {
public:
    FloatEnvironment();
    ~FloatEnvironment();
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

private:
    uint64_t saved_;
    bool changed_;
};

}  // namespace kiln
