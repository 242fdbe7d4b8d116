// Measures the leaves of the core: allocation, parallel_for, loading. `make bench-native`; bench_leaf
// neighbour does its two-thread part beside a process that keeps one core busy.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loader.h"
#include "base/memory.h"
#include "base/threads.h"

using namespace kiln;

namespace {

using Clock = std::chrono::steady_clock;

// Nanoseconds per round, the median and the least of some repetitions.
template <class Body>
void report(const char* what, int rounds, int repetitions, Body body) {
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) {
        const auto start = Clock::now();
        for (int round = 0; round < rounds; ++round) body();
        times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / rounds);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-46s median %12.1f ns   least %12.1f   worst %12.1f\n", what, times[times.size() / 2],
                times[0], times.back());
}

void allocation() {
    report("allocate(64) and release", 10000, 50, [] { allocate(64); });
    report("allocate(5000) and release", 10000, 50, [] { allocate(5000); });
    report("allocate(16 MiB) and release, kept", 10000, 50, [] { allocate(16 << 20); });
    auto touch = [](void* data, size_t nbytes) {
        for (size_t at = 0; at < nbytes; at += 4096) static_cast<volatile char*>(data)[at] = 1;
    };
    report("allocate(16 MiB) and touch, fresh", 1, 20, [&] {
        const StorageRef storage = allocate(16 << 20);
        touch(storage->data, storage->nbytes);
        empty_cache();
        set_cache_limit(0);
    });
    report("mmap(16 MiB) and touch, small pages", 1, 20, [&] {
        void* data = mmap(nullptr, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(data, 16 << 20, MADV_NOHUGEPAGE);
        touch(data, 16 << 20);
        munmap(data, 16 << 20);
    });
    set_cache_limit(1 << 30);
}

// y[i] = f(x[i]), about 3 ns an element.
void work(const float* x, float* y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        const float v = x[i];
        float p = 0.1f;
        for (int k = 0; k < 6; ++k) p = p * v + 0.3f;
        y[i] = v * p / (1.0f + p * p);
    }
}

void parallel(int most_threads) {
    constexpr int64_t n = 700000;  // about 2 ms of work, what a gelu of 4M elements takes
    const StorageRef in = allocate(n * 4), out = allocate(n * 4);
    float *x = static_cast<float*>(in->data), *y = static_cast<float*>(out->data);
    for (int64_t i = 0; i < n; ++i) x[i] = float(i % 1000) * 1e-3f;
    for (int threads = 1; threads <= most_threads; ++threads) {
        set_num_threads(threads);
        const std::string suffix = " on " + std::to_string(threads) + " threads";
        auto large = [&] { parallel_for(n, 16384, [&](int64_t b, int64_t e, int) { work(x, y, b, e); }); };
        auto small = [&] { parallel_for(65536, 4096, [&](int64_t b, int64_t e, int) { work(x, y, b, e); }); };
        large();
        report(("700k elements" + suffix).c_str(), 1, 300, large);
        report(("64k elements" + suffix).c_str(), 20, 100, small);
        report(("64k after a pause" + suffix).c_str(), 1, 100, [&] {
            usleep(200);
            small();
        });
    }
}

// 2 ms of work on one and on two threads in turn, beside a process that keeps one core busy.
void neighbour() {
    const pid_t hog = fork();
    if (hog == 0)
        for (;;) asm volatile("");
    usleep(200000);
    constexpr int64_t n = 700000;
    const StorageRef in = allocate(n * 4), out = allocate(n * 4);
    float *x = static_cast<float*>(in->data), *y = static_cast<float*>(out->data);
    std::fill(x, x + n, 0.5f);
    std::vector<double> times[2];
    for (int round = 0; round < 1000; ++round) {
        set_num_threads(1 + round % 2);
        const auto start = Clock::now();
        parallel_for(n, 16384, [&](int64_t b, int64_t e, int) { work(x, y, b, e); });
        times[round % 2].push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
        if (round % 10 == 0) usleep(2000);
    }
    kill(hog, SIGKILL);
    waitpid(hog, nullptr, 0);
    for (int threads : {1, 2}) {
        std::vector<double>& sorted = times[threads - 1];
        std::sort(sorted.begin(), sorted.end());
        double sum = 0;
        for (double time : sorted) sum += time;
        std::printf("%d threads beside a hog: mean %.2f ms, quantiles 10 %% %.2f, 50 %% %.2f, 90 %% %.2f, 99 "
                    "%% %.2f\n",
                    threads, sum / double(sorted.size()), sorted[50], sorted[250], sorted[450], sorted[495]);
    }
}

void loading(const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<uint8_t> object{std::istreambuf_iterator<char>(file), {}};
    std::vector<KernelObject> kernels;
    report("load a kernel", 100, 20, [&] { kernels.emplace_back(object); });
    std::printf("%zu bytes of object, %zu of memory each\n", object.size(), kernels[0].nbytes());
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what.ends_with(".o")) return loading(argv[1]), 0;
    if (what == "neighbour") return neighbour(), 0;
    allocation();
    parallel(get_num_threads());
    { const FloatEnvironment environment; }
    report("FloatEnvironment", 100000, 20, [] {
        const FloatEnvironment environment;
        asm volatile("" : : : "memory");
    });
}
