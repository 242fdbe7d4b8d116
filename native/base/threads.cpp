#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include <cxxabi.h>
#include <pthread.h>
#include <signal.h>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"

namespace kiln {
namespace {

constexpr int most_threads = 1024;
constexpr auto longest_spin = std::chrono::microseconds(5);  // then sleep: a neighbour may need the core

thread_local bool inside_job = false;  // in a body: another parallel_for runs inline

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits a few microseconds for `ready()`; whether it came.
template <class Ready>
bool spin(Ready ready) {
    const auto end = std::chrono::steady_clock::now() + longest_spin;
    do {
        for (int i = 0; i < 8; ++i) {
            if (ready()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

// One parallel_for. Lives on its caller's stack; a worker may look at it only between joining and leaving.
struct Job {
    FunctionRef<void(int64_t, int64_t, int)> body;
    const int64_t units, chunk;
    std::atomic<int64_t> next{0};
    std::atomic<int> threads{0};

    void work() {
        const FloatEnvironment environment;
        const int thread = threads.fetch_add(1, std::memory_order_relaxed);
        inside_job = true;
        for (int64_t begin; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < units;)
            body(begin, std::min(begin + chunk, units), thread);
        inside_job = false;
    }
};

// How many helpers a job gets. With a neighbour on a core, a helper can lose that core in the middle of its
// range, and the job waits for the neighbour's time slice, milliseconds. So a job that waited much longer
// than a range takes halves the helpers for a while; the while doubles each time, and calm jobs make it short
// again.
class Courtesy {
public:
    using Clock = std::chrono::steady_clock;

    int helpers(int wanted, Clock::time_point now) {
        if (allowed_ < wanted && now >= until_) {
            allowed_ = std::max(1, 2 * allowed_);
            until_ = now + rest_;
        }
        return std::min(allowed_, wanted);
    }

    void learn(int helpers, Clock::time_point start, Clock::time_point own_end, Clock::time_point end) {
        const bool displaced = end - own_end > (own_end - start) / 2 + std::chrono::microseconds(200);
        if (displaced) {
            allowed_ = helpers / 2;
            rest_ = std::min(2 * rest_, longest_);
            until_ = end + rest_;
            calm_ = 0;
        } else if (++calm_ == 32) {
            rest_ = shortest_;
            calm_ = 0;
        }
    }

private:
    static constexpr Clock::duration shortest_ = std::chrono::milliseconds(4);
    static constexpr Clock::duration longest_ = std::chrono::milliseconds(500);
    int allowed_ = most_threads;
    int calm_ = 0;
    Clock::duration rest_ = shortest_;
    Clock::time_point until_{};
};

// The workers. Never destroyed: they are parked when the process exits, and end with it.
class Pool {
public:
    // False, and nothing done, if another thread's job is running or there are no helpers now.
    bool run(Job& job, int helpers);

private:
    void grow(int workers);
    void serve();
    void finish();

    std::mutex owner_;  // held by the thread whose job runs; guards `courtesy_`
    Courtesy courtesy_;
    std::mutex mutex_;  // guards what follows, unless atomic
    std::condition_variable work_, done_;
    Job* job_ = nullptr;
    std::atomic<int> seats_{0};   // how many workers may still join the job; 0 without a job
    std::atomic<int> inside_{0};  // workers that joined and did not leave
    int workers_ = 0;
};

bool Pool::run(Job& job, int helpers) {
    std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner) return false;
    const auto start = Courtesy::Clock::now();
    helpers = courtesy_.helpers(helpers, start);
    if (helpers == 0) return false;
    {
        std::lock_guard lock(mutex_);
        grow(helpers);
        helpers = std::min(helpers, workers_);
        job_ = &job;
        seats_.store(helpers, std::memory_order_relaxed);
    }
    helpers == 1 ? work_.notify_one() : work_.notify_all();
    job.work();
    const auto own_end = Courtesy::Clock::now();
    finish();
    courtesy_.learn(helpers, start, own_end, Courtesy::Clock::now());
    return true;
}

// Nobody joins any more; waits for those who did.
void Pool::finish() {
    {
        std::lock_guard lock(mutex_);
        seats_.store(0, std::memory_order_relaxed);
        job_ = nullptr;
    }
    // Acquire: what the workers wrote is seen after their last decrement.
    auto alone = [this] { return inside_.load(std::memory_order_acquire) == 0; };
    if (spin(alone)) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, alone);
}

void Pool::serve() {
    for (;;) {
        spin([this] { return seats_.load(std::memory_order_relaxed) > 0; });
        Job* job;
        {
            std::unique_lock lock(mutex_);
            work_.wait(lock, [this] { return seats_.load(std::memory_order_relaxed) > 0; });
            seats_.fetch_sub(1, std::memory_order_relaxed);
            inside_.fetch_add(1, std::memory_order_relaxed);
            job = job_;
        }
        job->work();
        std::lock_guard lock(mutex_);
        if (inside_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
    }
}

// Starts workers until there are this many or the system refuses; signals stay with Python's threads.
void Pool::grow(int workers) {
    if (workers_ >= workers) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (; workers_ < workers; ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {}  // no thread, or no memory for one: those there are do the work
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::mutex creation;  // guards `pool`; held over fork so that the child finds it in order
Pool* pool = nullptr;

// Registered when the core is loaded: at the pool's creation it would be too late for a fork in that moment.
[[maybe_unused]] const int registered = pthread_atfork([] { creation.lock(); }, [] { creation.unlock(); },
                                                       [] {  // the child has none of the workers: start anew
                                                           pool = nullptr;
                                                           creation.unlock();
                                                       });

Pool& the_pool() {
    std::lock_guard lock(creation);
    if (!pool) pool = new Pool;
    return *pool;
}

#if defined(__linux__)

// The lowest hyper-thread of this CPU's core, which names the core; the CPU itself if it cannot be told.
int core_of(int cpu) {
    char path[96];
    std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    int lowest = cpu;
    if (FILE* file = std::fopen(path, "re")) {
        if (std::fscanf(file, "%d", &lowest) != 1) lowest = cpu;
        std::fclose(file);
    }
    return lowest;
}

// Physical cores among the CPUs this process may run on.
int available_cores() {
    constexpr int most_cpus = 8192;  // more than the default set's 1024
    cpu_set_t* allowed = CPU_ALLOC(most_cpus);
    const size_t nbytes = CPU_ALLOC_SIZE(most_cpus);
    std::set<int> cores;
    if (allowed && sched_getaffinity(0, nbytes, allowed) == 0)
        for (int cpu = 0; cpu < most_cpus; ++cpu)
            if (CPU_ISSET_S(cpu, nbytes, allowed)) cores.insert(core_of(cpu));
    CPU_FREE(allowed);
    return int(cores.size());
}

#else

int available_cores() { return int(std::thread::hardware_concurrency()); }

#endif

int initial_threads() {
    const char* text = std::getenv("KILN_NUM_THREADS");
    if (!text || !*text) return std::clamp(available_cores(), 1, most_threads);
    int count = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, count);
    KILN_CHECK(error == std::errc() && stop == end && count >= 1 && count <= most_threads, value,
               "KILN_NUM_THREADS: expected a number from 1 to ", most_threads, ", got '", text, "'");
    return count;
}

std::atomic<int> thread_count{0};  // 0: not decided yet

}  // namespace

int get_num_threads() {
    int count = thread_count.load(std::memory_order_relaxed);
    if (count == 0) [[unlikely]]
        thread_count.store(count = initial_threads(), std::memory_order_relaxed);
    return count;
}

void set_num_threads(int64_t count) {
    KILN_CHECK(count >= 1 && count <= most_threads, runtime, "set_num_threads: expected a number from 1 to ",
               most_threads, ", got ", count);
    thread_count.store(int(count), std::memory_order_relaxed);
}

void parallel_for(int64_t units, int64_t grain,
                  FunctionRef<void(int64_t begin, int64_t end, int thread)> body, int threads, int ranges) {
    if (units <= 0) return;
    grain = std::max<int64_t>(grain, 1);
    if (units > grain && !inside_job) {
        const int64_t grains = (units - 1) / grain + 1;
        const int64_t chunk = grain * ((grains - 1) / (int64_t(threads) * ranges) + 1);
        const int64_t helpers = std::min<int64_t>(threads, (units - 1) / chunk + 1) - 1;
        if (helpers > 0) {
            Job job{body, units, chunk};
            if (the_pool().run(job, int(helpers))) return;
        }
    }
    const FloatEnvironment environment;
    body(0, units, 0);
}

// ---- stack ----

void expect_stack(size_t needed) {
    static thread_local uintptr_t lowest = ~uintptr_t(0);
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (here > lowest && here - lowest >= needed) [[likely]]
        return;
    // The C++ library allocates a thread's exception state at its first exception, and aborts where that is
    // std::bad_alloc and nothing is left: so it is allocated here.
    [[maybe_unused]] void* volatile of_exceptions = abi::__cxa_get_globals();
#if defined(__linux__)
    pthread_attr_t attributes;
    void* end;
    size_t nbytes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    pthread_attr_getstack(&attributes, &end, &nbytes);
    pthread_attr_destroy(&attributes);
    const uintptr_t left = here - reinterpret_cast<uintptr_t>(end);
    if (left >= nbytes) return;  // a coroutine's stack, somewhere else
    lowest = here - left;
    KILN_CHECK(left >= needed, runtime, "this thread has ", left >> 10, " KiB of stack left, and kiln needs ",
               needed >> 10, "; threads get more with threading.stack_size(), called before they start");
#endif
}

// ---- float environment ----

#if defined(__x86_64__)

// MXCSR: the low six bits record exceptions and do not matter; 0x1f80 masks all exceptions, rounds to
// nearest, keeps denormals.
constexpr uint32_t control_bits = 0xffc0, default_control = 0x1f80;

FloatEnvironment::FloatEnvironment()
    : saved_(_mm_getcsr()), changed_((saved_ & control_bits) != default_control) {
    if (changed_) [[unlikely]]
        _mm_setcsr(default_control);
}

FloatEnvironment::~FloatEnvironment() {
    if (changed_) [[unlikely]]
        _mm_setcsr(uint32_t(saved_));
}

#elif defined(__aarch64__)

FloatEnvironment::FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    changed_ = saved_ != 0;  // 0: round to nearest, keep denormals and NaN payloads, no traps
    if (changed_) [[unlikely]]
        asm volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
}

FloatEnvironment::~FloatEnvironment() {
    if (changed_) [[unlikely]]
        asm volatile("msr fpcr, %0" : : "r"(saved_));
}

#else

FloatEnvironment::FloatEnvironment() : saved_(0), changed_(false) {}
FloatEnvironment::~FloatEnvironment() = default;

#endif

}  // namespace kiln
