// Tests of the parts of the core that need no Python. One argument names the test; failing ones end with
// status 1 and a line on stderr. tests/core/test_native_leaf.py runs them and compares what some of them
// print.
#include <atomic>
#include <cfenv>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/invariants.h"
#include "base/loader.h"
#include "base/memory.h"
#include "base/threads.h"

using namespace kiln;

namespace {

using Arguments = std::vector<std::string>;

void expect(bool truth, const char* what) {
    if (truth) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

// Whether `body` raises an Error of this kind.
bool raises(ErrorKind kind, const std::function<void()>& body) {
    try {
        body();
    } catch (const Error& error) { return error.kind == kind && !error.message.empty(); }
    return false;
}

std::vector<uint8_t> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    expect(bool(file), "the file opens");
    return {std::istreambuf_iterator<char>(file), {}};
}

// ---- dtype ----

const char* category_names[] = {"dimensioned", "scalar", "number"};

// Lines "promote lhs rhs result", "cast from to 0|1", "result lhs category rhs category result".
void print_dtypes(const Arguments&) {
    for (int i = 0; i < dtype_count; ++i) {
        const DType lhs = DType(i);
        expect(dtype_from_name(name(lhs)) == lhs, "names go both ways");
        for (int j = 0; j < dtype_count; ++j) {
            const DType rhs = DType(j);
            std::printf("promote %s %s %s\n", name(lhs), name(rhs), name(promote_types(lhs, rhs)));
            std::printf("cast %s %s %d\n", name(lhs), name(rhs), int(can_cast(lhs, rhs)));
            for (int a = 0; a < 3; ++a)
                for (int b = 0; b < 3; ++b) {
                    ResultType result;
                    result.add(lhs, Category(a));
                    result.add(rhs, Category(b));
                    std::printf("result %s %s %s %s %s\n", name(lhs), category_names[a], name(rhs),
                                category_names[b], name(result.value()));
                }
        }
    }
    expect(!dtype_from_name("float33") && !dtype_from_name(""), "an unknown name is nothing");
    expect(raises(ErrorKind::value, [] { ResultType().value(); }), "no operands, no result type");
    expect(raises(ErrorKind::type, [] { set_default_dtype(DType::int32); }), "the default dtype is a float");
}

// Float32 values from a file; writes the bits of each as float16, as bfloat16, and back from its low half.
void convert(const Arguments& arguments) {
    const std::vector<uint8_t> bytes = read_file(arguments.at(0));
    std::ofstream out(arguments.at(1), std::ios::binary);
    for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
        float value;
        std::memcpy(&value, &bytes[at], 4);
        const uint16_t halves[2] = {float_to_half(value), float_to_bfloat16(value)};
        uint16_t low;
        std::memcpy(&low, &bytes[at], 2);
        const float back[2] = {half_to_float(low), bfloat16_to_float(low)};
        out.write(reinterpret_cast<const char*>(halves), sizeof halves);
        out.write(reinterpret_cast<const char*>(back), sizeof back);
    }
}

void elements(const Arguments&) {
    uint8_t bytes[9];
    void* const odd = bytes + 1;  // elements need not be aligned
    auto stored = [&](DType dtype, auto number) {
        write_element(dtype, odd, Number::of(number));
        return read_element(dtype, odd);
    };
    expect(stored(DType::uint8, int64_t(-1)).integer == 255, "integers wrap");
    expect(stored(DType::int8, int64_t(200)).integer == -56, "integers wrap to negative");
    expect(stored(DType::int64, 1e300).integer == INT64_MIN, "too large a float is the minimum");
    expect(stored(DType::int64, -9223372036854775808.0).integer == INT64_MIN, "-2^63 fits");
    expect(stored(DType::int16, -7.9).integer == -7, "floats are cut toward zero");
    expect(stored(DType::bool_, 0.5).integer == 1 && stored(DType::bool_, int64_t(256)).integer == 1,
           "truth");
    expect(stored(DType::bool_, true).kind == Kind::bool_, "an element of bool is a bool");
    expect(stored(DType::float16, 65520.0).real == HUGE_VAL, "half overflows to infinity");
    expect(stored(DType::float64, 0.1).real == 0.1 && stored(DType::float32, 0.1).real == double(0.1f),
           "floats");
}

// ---- memory ----

void size_classes(const Arguments&) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 3000; ++i) {
        const size_t nbytes = random() >> (41 + random() % 22);  // up to 8 MiB, every magnitude
        const size_t before = memory_stats().allocated_bytes;
        const StorageRef storage = allocate(nbytes);
        const size_t block = memory_stats().allocated_bytes - before;
        expect(block >= nbytes && block <= nbytes + nbytes * 3 / 8 + 64, "blocks fit");
        expect(uintptr_t(storage->data) % memory_alignment == 0, "blocks are aligned");
        std::memset(storage->data, 0x5a, nbytes);
    }
    expect(memory_stats().allocated_bytes == 0, "all is given back");
}

void statistics(const Arguments&) {
    empty_cache();
    reset_peak_allocated();
    const MemoryStats start = memory_stats();
    expect(start.reserved_bytes == 0 && start.allocated_bytes == 0, "nothing is in use");
    void* address = nullptr;
    for (int round = 0; round < 2; ++round) {
        StorageRef storage = allocate(3 << 20);
        expect(round == 0 || storage->data == address, "a kept block is used again");
        address = storage->data;
        StorageRef other = std::move(storage);
        StorageRef copy = other;
        expect(!storage && copy == other && other->refcount == 2, "references count");
    }
    MemoryStats stats = memory_stats();
    expect(stats.allocations == start.allocations + 2, "allocations are counted");
    expect(stats.cache_hits == start.cache_hits + 1, "hits are counted");
    expect(stats.peak_allocated == 3 << 20 && stats.allocated_bytes == 0, "the peak is kept");
    expect(stats.reserved_bytes == 3 << 20, "the block is kept");
    expect(empty_cache() == 3 << 20 && memory_stats().reserved_bytes == 0, "the cache empties");
    const StorageRef empty = allocate(0);
    expect(empty->data != nullptr && memory_stats().allocated_bytes == 0, "0 bytes take none");
}

void cache_bounds(const Arguments&) {
    set_cache_limit(8 << 20);
    std::vector<StorageRef> storages;
    for (int i = 0; i < 64; ++i) storages.push_back(allocate(size_t(1) << 20));
    for (int i = 0; i < 20000; ++i) storages.push_back(allocate(64 * (1 + i % 16)));
    storages.clear();
    expect(memory_stats().reserved_bytes <= 8 << 20, "no more than the limit is kept");
    set_cache_limit(0);
    expect(memory_stats().reserved_bytes == 0, "a limit of 0 keeps nothing");
    allocate(100);
    allocate(1 << 20);
    expect(memory_stats().reserved_bytes == 0, "still nothing");
}

void memory_errors(const Arguments&) {
    expect(raises(ErrorKind::memory, [] { allocate(size_t(1) << 46); }), "64 TiB are refused");
    expect(raises(ErrorKind::memory, [] { allocate(SIZE_MAX); }), "the largest size is refused");
    expect(raises(ErrorKind::runtime, [] { checked_nbytes(INT64_MAX, 8); }), "sizes overflow");
    expect(raises(ErrorKind::runtime, [] { checked_nbytes(-1, 1); }), "sizes are not negative");
    expect(checked_nbytes(int64_t(1) << 40, 8) == size_t(1) << 43 && checked_nbytes(0, 8) == 0,
           "sizes multiply");
    expect(memory_stats().allocated_bytes == 0, "a failed allocation leaves nothing");
    allocate(4096);
}

void foreign_memory(const Arguments&) {
    int deaths = 0;
    char bytes[16];
    auto deleter = [](void* context) {
        ++*static_cast<int*>(context);
        allocate(64);  // a deleter may come back to us
    };
    StorageRef storage = adopt(bytes, sizeof bytes, deleter, &deaths, true);
    expect(is_public(*storage) && storage->read_only && storage->foreign() && storage->data == bytes,
           "as given");
    StorageRef copy = storage;
    storage = nullptr;
    expect(deaths == 0, "a reference keeps it");
    copy = nullptr;
    expect(deaths == 1, "the deleter runs once");
}

// ---- threads ----

// Every unit exactly once, whatever the sizes.
void coverage(const Arguments&) {
    for (int threads : {1, 2, 3, 8}) {
        set_num_threads(threads);
        for (int64_t units : {0, 1, 2, 7, 100, 4099, 100000})
            for (int64_t grain : {int64_t(0), int64_t(1), int64_t(16), int64_t(1000), INT64_MAX}) {
                std::vector<int> seen(size_t(units), 0);
                parallel_for(units, grain, [&](int64_t begin, int64_t end, int) {
                    expect(grain < 2 || begin % grain == 0, "ranges begin at multiples of the grain");
                    for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
                });
                for (int count : seen) expect(count == 1, "every unit once");
            }
    }
    expect(raises(ErrorKind::runtime, [] { set_num_threads(0); }), "at least one thread");
}

void busy(std::chrono::microseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {}
}

// Tried more than once: beside a busy neighbour the pool rests for up to half a second.
bool uses_several_threads() {
    std::atomic<int> others{0};
    const auto self = std::this_thread::get_id();
    for (int tries = 0; tries < 50 && others == 0; ++tries) {
        if (tries) usleep(20000);
        parallel_for(64, 1, [&](int64_t, int64_t, int) {
            if (std::this_thread::get_id() != self) ++others;
            busy(std::chrono::microseconds(500));
        });
    }
    return others > 0;
}

void nesting(const Arguments&) {
    set_num_threads(4);
    std::atomic<int64_t> total{0};
    parallel_for(64, 1, [&](int64_t begin, int64_t end, int) {
        const auto self = std::this_thread::get_id();
        parallel_for(1000 * (end - begin), 1, [&](int64_t first, int64_t last, int) {
            expect(std::this_thread::get_id() == self && first == 0, "a nested call runs inline");
            total += last - first;
        });
    });
    expect(total == 64000, "nested calls do all");
    expect(uses_several_threads(), "the pool works");
}

// Several threads call at once: one has the pool, the others run inline.
void callers(const Arguments&) {
    set_num_threads(3);
    std::atomic<int64_t> total{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < 300; ++round)
                parallel_for(200, 10, [&](int64_t begin, int64_t end, int) { total += end - begin; });
        });
    for (std::thread& thread : threads) thread.join();
    expect(total == 4 * 300 * 200, "all is done");
}

// Jobs that follow at once, after a pause that lets workers sleep, and while their number changes.
void many_jobs(const Arguments&) {
    int64_t total = 0;
    std::atomic<int64_t> parallel{0};
    for (int round = 0; round < 20000; ++round) {
        set_num_threads(1 + round % 4);
        parallel_for(64, 1, [&](int64_t begin, int64_t end, int) { parallel += end - begin; });
        total += 64;
        if (round % 1000 == 0) usleep(300);
    }
    expect(parallel == total, "all is done");
}

void fork_before_and_after(const Arguments&) {
    set_num_threads(3);
    for (int round = 0; round < 3; ++round) {  // the first fork comes before the pool's first use
        const pid_t child = fork();
        if (child == 0) {
            expect(uses_several_threads(), "the child has its own workers");
            const pid_t grandchild = fork();
            if (grandchild == 0) _exit(uses_several_threads() ? 0 : 1);
            int status = 1;
            waitpid(grandchild, &status, 0);
            _exit(status == 0 ? 0 : 1);
        }
        expect(uses_several_threads(), "the parent goes on");
        int status = 1;
        waitpid(child, &status, 0);
        expect(status == 0, "the child ends well");
    }
}

// Forks while other threads' jobs run.
void fork_in_the_middle(const Arguments&) {
    set_num_threads(3);
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop)
            parallel_for(100, 1, [&](int64_t, int64_t, int) { busy(std::chrono::microseconds(5)); });
    });
    for (int round = 0; round < 30; ++round) {
        const pid_t child = fork();
        if (child == 0) {
            std::atomic<int> total{0};
            parallel_for(100, 1, [&](int64_t begin, int64_t end, int) { total += int(end - begin); });
            _exit(total == 100 ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        expect(status == 0, "a child forked in the middle works");
    }
    stop = true;
    other.join();
}

// Whether this thread rounds upward; fegetround tells of the x87 unit only.
bool rounds_upward() {
    volatile float one = 1.0f, little = 1e-30f;
    return one + little > 1.0f;
}

void float_environment(const Arguments&) {
    set_num_threads(2);
    volatile float tiny = 1e-38f, tenth = 0.1f;
    std::fesetround(FE_UPWARD);
    expect(rounds_upward(), "the test changes the state");
    std::atomic<int> wrong{0};
    auto body = [&](int64_t, int64_t, int) { wrong += rounds_upward() || tiny * tenth == 0; };
    parallel_for(100, 1, body);
    parallel_for(1, 1, body);
    expect(wrong == 0, "bodies round to nearest and keep denormals");
    expect(rounds_upward(), "the caller's state comes back");
#if defined(__x86_64__)
    std::fesetround(FE_TONEAREST);
    _mm_setcsr(_mm_getcsr() | 0x8040);  // flush denormals, both ways
    expect(tiny * tenth == 0, "the test flushes denormals");
    parallel_for(100, 1, body);
    parallel_for(1, 1, body);
    expect(wrong == 0, "bodies keep denormals");
    expect(tiny * tenth == 0, "the caller's state comes back");
#endif
}

void print_threads(const Arguments&) { std::printf("%d\n", get_num_threads()); }

// ---- loader ----

// Runs the test kernel: y[i] = x[i] * c + n * 77 for 16 floats, in place.
void run_kernel(const Arguments& arguments) {
    const std::vector<uint8_t> bytes = read_file(arguments.at(0));
    std::vector<KernelObject> kernels;
    for (int copy = 0; copy < 300; ++copy) kernels.emplace_back(bytes);
    KernelObject moved = std::move(kernels.back());
    kernels.erase(kernels.begin() + 10, kernels.begin() + 200);
    for (int copy = 0; copy < 50; ++copy) kernels.emplace_back(bytes);
    alignas(64) float values[16];
    for (int i = 0; i < 16; ++i) values[i] = float(i);
    void* const ptr[] = {values};
    const int64_t arg[] = {std::stoll(arguments.at(1))};
    for (const KernelObject* kernel : {&moved, &kernels.back(), &kernels.front()}) {
        for (int i = 0; i < 16; ++i) values[i] = float(i);
        kernel->function()(ptr, arg, 11, 22);
    }
    for (float value : values) std::printf("%.9g ", double(value));
    std::printf("\n%zu\n", moved.nbytes());
}

void refuse_kernel(const Arguments& arguments) {
    try {
        KernelObject kernel(read_file(arguments.at(0)));
    } catch (const Error& error) {
        expect(error.kind == ErrorKind::value, "a bad object is a value error");
        std::printf("%s\n", error.message.c_str());
        return;
    }
    expect(false, "the object is refused");
}

// Whether an object links; anything but Error{value} ends the program.
bool links(const std::vector<uint8_t>& object, Machine machine) {
    try {
        const KernelImage image = link_kernel(object, machine);
        expect(image.entry < image.bytes.size(), "the entry is inside");
        return true;
    } catch (const Error& error) {
        expect(error.kind == ErrorKind::value, "a damaged object is a value error");
        for (char letter : error.message) expect(letter >= ' ' && letter <= '~', "messages are printable");
        return false;
    }
}

// Truncated at every byte, every byte changed in several ways, and many changes at once.
void corrupt(const Arguments& arguments) {
    const std::vector<uint8_t> object = read_file(arguments.at(0));
    const Machine machine = arguments.at(1) == "aarch64" ? Machine::aarch64 : Machine::x86_64;
    expect(links(object, machine), "the whole object links");
    for (size_t size = 0; size < object.size(); ++size)
        expect(!links({object.begin(), object.begin() + ptrdiff_t(size)}, machine),
               "a truncated object is refused");
    int linked = 0, tried = 0;
    for (size_t at = 0; at < object.size(); ++at)
        for (int change : {0x01, 0x02, 0x10, 0x80, 0xff}) {
            std::vector<uint8_t> damaged = object;
            damaged[at] ^= uint8_t(change);
            linked += links(damaged, machine);
            ++tried;
        }
    std::mt19937 random(7);
    for (int round = 0; round < 30000; ++round, ++tried) {
        std::vector<uint8_t> damaged = object;
        for (unsigned changes = 1 + random() % 8; changes; --changes) {
            const size_t at = random() % 3
                                  ? object.size() - 1 - random() % std::min<size_t>(object.size(), 1000)
                                  : random() % object.size();
            damaged[at] = random() % 2 ? uint8_t(random()) : uint8_t(random() % 4 ? 0xff : 0x7f);
        }
        linked += links(damaged, machine);
    }
    std::printf("%d of %d damaged objects link\n", linked, tried);
}

// The image of an object of any machine, and its entry.
void print_image(const Arguments& arguments) {
    const Machine machine = arguments.at(1) == "aarch64" ? Machine::aarch64 : Machine::x86_64;
    const KernelImage image = link_kernel(read_file(arguments.at(0)), machine);
    std::printf("%zu ", image.entry);
    for (uint8_t byte : image.bytes) std::printf("%02x", byte);
    std::printf("\n");
}

void print_identity(const Arguments&) { std::printf("%s\n", cpu_identity().c_str()); }

// How a child ends that does this: its status, or minus the signal.
template <class Work>
int end_of(Work work) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        std::fclose(stderr);
        work();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// The allocator asks for the lock, where invariants are checked.
void invariants(const Arguments&) {
    StorageRef kept = allocate(100);
    Invariants::locked = [] { return false; };
    Invariants::checked = true;
    expect(end_of([] { allocate(100); }) == -SIGABRT, "allocating without the lock ends the process");
    expect(end_of([&] { kept = {}; }) == -SIGABRT, "so does dropping");
    Invariants::checked = false;
    expect(end_of([] { allocate(100); }) == 0, "unchecked it goes on");
    Invariants::locked = [] { return true; };
    Invariants::checked = true;
    expect(end_of([&] { kept = allocate(100); }) == 0, "with the lock it goes on");
}

const std::map<std::string, void (*)(const Arguments&)> tests = {
    {"dtypes", print_dtypes},
    {"convert", convert},
    {"elements", elements},
    {"size_classes", size_classes},
    {"statistics", statistics},
    {"cache_bounds", cache_bounds},
    {"memory_errors", memory_errors},
    {"foreign_memory", foreign_memory},
    {"invariants", invariants},
    {"coverage", coverage},
    {"nesting", nesting},
    {"callers", callers},
    {"many_jobs", many_jobs},
    {"fork_before_and_after", fork_before_and_after},
    {"fork_in_the_middle", fork_in_the_middle},
    {"float_environment", float_environment},
    {"threads", print_threads},
    {"run", run_kernel},
    {"refuse", refuse_kernel},
    {"corrupt", corrupt},
    {"image", print_image},
    {"identity", print_identity},
};

}  // namespace

int main(int argc, char** argv) {
    const auto test = argc > 1 ? tests.find(argv[1]) : tests.end();
    if (test == tests.end()) {
        for (const auto& entry : tests) std::printf("%s\n", entry.first.c_str());
        return 2;
    }
    try {
        test->second(Arguments(argv + 2, argv + argc));
    } catch (const Error& error) {
        std::fprintf(stderr, "error: %s\n", error.message.c_str());
        return 1;
    }
}
