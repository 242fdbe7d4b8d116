#include "program.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "check.h"
#include "compiler.h"
#include "threads.h"

namespace kiln {

Profile& profile() {
    static Profile instance;
    return instance;
}

KernelFunction code_of(Kernel& kernel) {
    if (!kernel.function) [[unlikely]] {
        kernel.object = std::make_unique<KernelObject>(compiler::kernel_code(kernel));
        kernel.function = kernel.object->function();
    }
    return kernel.function;
}

namespace {

void note_launch(const Kernel& kernel, double seconds) {
    auto& lines = profile().lines;
    auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.name == kernel.name; });
    if (line == lines.end()) line = lines.insert(lines.end(), {kernel.name, 0, 0});
    ++line->launches;
    line->seconds += seconds;
}

}  // namespace

void launch(Kernel& kernel, void* const* pointers, const int64_t* args, int64_t units, int64_t grain) {
    if (units <= 0) return;
    KernelFunction function = code_of(kernel);
    ++kernel.launches;
    auto start = std::chrono::steady_clock::time_point();
    bool timed = profile().on;
    if (timed) [[unlikely]]
        start = std::chrono::steady_clock::now();
    if (units <= grain) {
        FloatEnvironment environment;
        function(pointers, args, 0, units);
    } else {
        parallel_for(units, grain, [&](int64_t begin, int64_t end) { function(pointers, args, begin, end); });
    }
    if (timed) [[unlikely]]
        note_launch(kernel, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void evaluate(std::span<const SizeExpr> exprs, uint32_t environment, int64_t* slots) {
    int64_t* out = slots + environment;
    for (const SizeExpr& e : exprs) {
        switch (e.kind) {
        case SizeExpr::constant: *out = e.a; break;
        case SizeExpr::add: *out = slots[e.a] + slots[e.b]; break;
        case SizeExpr::multiply: *out = slots[e.a] * slots[e.b]; break;
        case SizeExpr::divide: *out = slots[e.a] / std::max<int64_t>(slots[e.b], 1); break;
        }
        ++out;
    }
}

bool evaluate(const Program& program, int64_t* slots) {
    evaluate(program.exprs, program.environment, slots);
    for (const Check& check : program.checks)
        if (slots[check.a] != slots[check.b]) return false;
    return true;
}

Dims output_sizes(const Program& program, size_t k, const int64_t* slots) {
    const auto& from = program.outputs[k].sizes;
    Dims sizes(from.size());
    for (size_t d = 0; d < from.size(); ++d) sizes[d] = slots[from[d]];
    return sizes;
}

void append_environment(const Operand& operand, Dims& environment) {
    if (!operand.tensor) {
        const Number& n = operand.number;
        environment.push_back(n.kind == Kind::float_ ? std::bit_cast<int64_t>(n.real) : n.integer);
        return;
    }
    for (int64_t size : operand.tensor->sizes) environment.push_back(size);
    if (!operand.tensor->contiguous)
        for (int64_t stride : operand.tensor->strides) environment.push_back(stride);
}

void run(const Program& program, const int64_t* slots, void* const* inputs, std::span<const StorageRef> outputs) {
    std::vector<StorageRef> temps(program.buffers.size());
    std::vector<void*> pointers;
    Dims args;
    auto address = [&](const Pointer& p) -> void* {
        const Buffer& b = program.buffers[p.buffer];
        std::byte* base;
        if (b.kind == Buffer::input)
            base = static_cast<std::byte*>(inputs[b.index]);
        else if (b.kind == Buffer::output)
            base = static_cast<std::byte*>(outputs[b.index]->data);
        else {
            StorageRef& temp = temps[p.buffer];
            if (!temp) temp = allocate(checked_nbytes(slots[b.elements], b.itemsize));
            base = static_cast<std::byte*>(temp->data);
        }
        return p.offset < 0 ? base : base + slots[p.offset] * int64_t(p.itemsize);
    };
    for (const Step& step : program.steps) {
        if (step.kernel < 0) {
            temps[step.buffer].reset();
            continue;
        }
        pointers.resize(step.pointers.size());
        for (size_t i = 0; i < pointers.size(); ++i) pointers[i] = address(step.pointers[i]);
        args.resize(step.args.size());
        for (size_t i = 0; i < step.args.size(); ++i) args[i] = slots[step.args[i]];
        launch(*program.kernels[step.kernel], pointers.data(), args.data(), slots[step.units],
               std::max<int64_t>(slots[step.grain], 1));
    }
}

}  // namespace kiln
