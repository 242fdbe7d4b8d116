#include "program/program.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/check.h"
#include "base/memory.h"
#include "base/small_vector.h"
#include "base/threads.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "program/running.h"

namespace kiln {

Profile& profile() {
    static Profile instance;
    return instance;
}

Kernel& kernel_of(const std::string& key) {
    static auto* kernels = new std::unordered_map<std::string, Kernel>();
    Kernel& found = (*kernels)[key];
    if (found.key.empty()) found.key = key;
    return found;
}

KernelFunction code_of(Kernel& kernel) {
    if (!kernel.function) [[unlikely]]
        compiler::load(kernel);
    return kernel.function;
}

void give_code(Kernel& kernel, std::span<const uint8_t> object) {
    if (kernel.function) return;  // another thread was faster
    kernel.object = std::make_unique<KernelObject>(object);
    kernel.function = kernel.object->function();
}

namespace {

using Seconds = std::chrono::duration<double>;

void note_launch(const std::string& name, Seconds start, Seconds taken) {
    std::lock_guard lock(profile().mutex);
    auto& lines = profile().lines;
    auto line = lines.end();
    if (!profile().each) line = std::ranges::find(lines, name, &Profile::Line::name);
    if (line == lines.end()) line = lines.insert(line, {name, 0, 0, start.count(), call_numbers.call, 0});
    ++line->launches;
    line->seconds += taken.count();
    line->allocated = memory_stats().allocated_bytes;
}

// At the end of a program's run the last launch is told what is left once temporary memory is given back.
struct NotesRest {
    ~NotesRest() {
        if (!profile().on) [[likely]]
            return;
        std::lock_guard lock(profile().mutex);
        if (!profile().lines.empty()) profile().lines.back().allocated = memory_stats().allocated_bytes;
    }
};

// A range of units, with the thread's own memory.
void run_range(KernelFunction function, void* const* pointers, const int64_t* args, const Scratch& scratch,
               int64_t begin, int64_t end, int thread) {
    SmallVector<void*, 16> own;
    own.resize(scratch.place + 1);
    std::copy_n(pointers, scratch.place, own.data());
    own[scratch.place] = scratch.start + size_t(thread) * scratch.bytes;
    function(own.data(), args, begin, end);
}

// Of a grain of 0 every unit is more work than threads need to be worth it.
bool worth_threads(int64_t units, int64_t grain) { return units > grains_worth_it * grain; }

// Runs `body`; the profile counts it under `name`, or of a recording's program, which has none, the step's.
void timed(const std::string& name, const Step& step, bool times, const auto& body) {
    if (!profile().on && !times) [[likely]]
        return body();
    const auto start = std::chrono::steady_clock::now();
    body();
    const Seconds taken = std::chrono::steady_clock::now() - start;
    const std::atomic_ref shortest(step.seconds);  // other threads may run the program too
    if (double known = shortest; known == 0 || taken.count() < known) shortest = taken.count();
    if (profile().on)
        note_launch(name.empty() ? concat("region: ", step.label) : name, start.time_since_epoch(), taken);
}

void run_units(KernelFunction function, void* const* pointers, const int64_t* args, int64_t units,
               int64_t grain, const Scratch* scratch = nullptr) {
    auto range = [&](int64_t begin, int64_t end, int thread) {
        scratch ? run_range(function, pointers, args, *scratch, begin, end, thread)
                : function(pointers, args, begin, end);
    };
    if (!worth_threads(units, grain)) {
        FloatEnvironment environment;
        range(0, units, 0);
    } else {
        scratch ? parallel_for(units, grain, range, scratch->threads, 2)  // what is packed serves a range
                : parallel_for(units, grain, range);
    }
}

}  // namespace

void launch(Kernel& kernel, const std::string& name, void* const* pointers, const int64_t* args,
            int64_t units, int64_t grain) {
    if (units <= 0) return;
    KernelFunction function = code_of(kernel);
    static const Step alone;
    timed(name, alone, false, [&] { run_units(function, pointers, args, units, grain); });
}

void evaluate(std::span<const SizeExpr> exprs, uint32_t environment, int64_t* slots) {
    int64_t* out = slots + environment;
    bool overflow = false;
    for (const SizeExpr& e : exprs) {
        switch (e.kind) {
        case SizeExpr::constant: *out = e.a; break;
        case SizeExpr::add: overflow |= __builtin_add_overflow(slots[e.a], slots[e.b], out); break;
        case SizeExpr::multiply: overflow |= __builtin_mul_overflow(slots[e.a], slots[e.b], out); break;
        case SizeExpr::divide: *out = slots[e.a] / std::max<int64_t>(slots[e.b], 1); break;
        }
        ++out;
    }
    KILN_CHECK(!overflow, runtime, "the number of elements does not fit in 64 bits");
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
    if (!operand.tensor) return environment.push_back(operand.number.bits());
    for (int64_t size : operand.tensor->sizes) environment.push_back(size);
    if (!operand.tensor->contiguous)
        for (int64_t stride : operand.tensor->strides) environment.push_back(stride);
}

namespace {

constexpr size_t unplaced = ~size_t(0);
constexpr uint32_t timed_runs = 3;    // of a recording's program; later ones are measured as a whole
constexpr uint32_t looks_after = 64;  // runs of small launches, which take some microseconds at most
constexpr size_t most_pointers = 48;  // of one of them

// Gives temps their places in one block: each the lowest gap it fits in between its first use and its end.
void lay_out(const Program& program, const int64_t* slots, TempPlan& plan) {
    struct Range {
        size_t begin, end;
        uint32_t buffer;
    };
    std::vector<Range> taken;  // by begin
    std::vector<size_t> offsets(program.buffers.size(), unplaced);
    plan.offsets.clear();  // no plan, should one size be too large
    plan.bytes = 0;
    auto place = [&](uint32_t index) {
        const Buffer& b = program.buffers[index];
        if (b.kind != Buffer::temp || offsets[index] != unplaced) return;
        size_t size = checked_nbytes(slots[b.elements], b.itemsize);
        size = (std::max<size_t>(size, 1) + memory_alignment - 1) / memory_alignment * memory_alignment;
        size_t begin = 0;
        auto at = taken.begin();
        for (; at != taken.end() && at->begin - begin < size; ++at) begin = at->end;
        taken.insert(at, {begin, begin + size, index});
        offsets[index] = begin;
        plan.bytes = std::max(plan.bytes, begin + size);
    };
    for (const Step& step : program.steps) {
        if (step.kernel == Step::free) {
            std::erase_if(taken, [&](const Range& r) { return r.buffer == step.buffer; });
        } else if (step.kernel == Step::control) {
            const Control& control = program.controls[step.buffer];
            for (const auto* pointers : {&control.inputs, &control.outputs})
                for (const Pointer& p : *pointers)
                    if (p.itemsize) place(p.buffer);
        } else {
            for (const Pointer& p : step.pointers) place(p.buffer);
        }
    }
    plan.offsets = std::move(offsets);
}

// The plan for these sizes: the last one, if they are the same.
const TempPlan& plan_temps(const Program& program, const int64_t* slots) {
    TempPlan& plan = program.temps;
    bool same = plan.offsets.size() == program.buffers.size();
    plan.sizes.resize(program.buffers.size());
    for (size_t i = 0; i < program.buffers.size(); ++i) {
        const Buffer& b = program.buffers[i];
        if (b.kind != Buffer::temp || (same && plan.sizes[i] == slots[b.elements])) continue;
        plan.sizes[i] = slots[b.elements];
        same = false;
    }
    if (!same) lay_out(program, slots, plan);
    return plan;
}

// Where every buffer starts; `data_of`: of an input or output.
template <class DataOf>
void locate(const Program& program, const TempPlan& plan, void* temps, SmallVector<std::byte*, 16>& starts,
            DataOf data_of) {
    starts.resize(program.buffers.size());
    for (size_t i = 0; i < program.buffers.size(); ++i) {
        const Buffer& b = program.buffers[i];
        starts[i] = static_cast<std::byte*>(b.kind == Buffer::temp ? temps : data_of(b));
        if (b.kind == Buffer::temp && plan.offsets[i] != unplaced) starts[i] += plan.offsets[i];
    }
}

// The units of a launch; of one that is cut, those of `at_once` segments, whose sums are then added.
struct Work {
    int64_t units, grain;
    int64_t segments = 0, at_once = 0, rows = 0;
    size_t bytes = 0;  // of a segment's sums
};

constexpr int64_t few_units = 8;          // for each thread; a launch of fewer is cut
constexpr size_t parts_bytes = 1 << 20;   // of segments' sums at a time, for each thread
constexpr size_t added_bytes = 80 << 10;  // of segments' sums, whose adding is a thread's worth of work

Work work_of(const Step& step, const int64_t* slots, int threads) {
    Work work{slots[step.units], slots[step.grain]};
    const Split& split = step.split;
    if (split.segments < 0 || threads == 1 || work.units >= few_units * threads || work.units <= 0 ||
        std::min(slots[split.rows], slots[split.words]) < 1)
        return work;
    const int64_t segments = slots[split.segments], grain = std::max<int64_t>(slots[split.grain], 1);
    if (segments < 2 || !worth_threads(segments, (grain - 1) / work.units + 1)) return work;
    work.bytes = checked_nbytes(slots[split.words], sizeof(int64_t));
    const auto most = std::max<int64_t>(int64_t(parts_bytes * size_t(threads) / work.bytes), 2);
    const int64_t rounds = (segments - 1) / most + 1;
    work.at_once = (segments - 1) / rounds + 1;
    work.units *= work.at_once;
    work.grain = grain;
    work.segments = segments;
    work.rows = slots[split.rows];
    return work;
}

// What each thread has of the scratch memory, and how many there are.
Scratch scratch_of(const Step& step, const Work& work, const int64_t* slots, int threads) {
    constexpr size_t line = 64;  // no two threads share one
    const size_t place = step.pointers.size() + (step.split.segments >= 0);
    if (step.scratch < 0) return {nullptr, 0, threads, place};
    const size_t bytes = checked_nbytes(slots[step.scratch], sizeof(int64_t));
    const int64_t ranges = (work.units - 1) / std::max<int64_t>(work.grain, 1) + 1;
    threads = worth_threads(work.units, work.grain) ? int(std::min<int64_t>(threads, ranges)) : 1;
    return {nullptr, (bytes + line - 1) / line * line, threads, place};
}

// The scratch memory that the hungriest step needs, in bytes.
size_t scratch_bytes(const Program& program, const int64_t* slots, int threads) {
    size_t most = 0;
    for (const Step& step : program.steps) {
        if (step.kernel < 0) continue;
        const Work work = work_of(step, slots, threads);
        const Scratch scratch = scratch_of(step, work, slots, threads);
        const size_t parts = work.at_once ? checked_nbytes(work.at_once + 1, work.bytes) : 0;
        most = std::max(most, parts + checked_nbytes(scratch.threads, scratch.bytes));
    }
    return most;
}

// A launch that is cut: rounds of segments, each by itself, then their sums added in order.
void run_segments(KernelFunction function, void* const* pointers, int64_t* cut, const int64_t* args,
                  const Work& work, const Scratch* scratch) {
    const int64_t units = work.units / work.at_once;
    for (cut[0] = 0; cut[0] < work.segments; cut[0] += work.at_once) {
        const int64_t count = std::min(work.at_once, work.segments - cut[0]);
        const size_t row = std::max<size_t>(size_t(count) * work.bytes / size_t(work.rows), 1);
        const auto added = int64_t(added_bytes / row);
        cut[1] = count;
        run_units(function, pointers, args, units * count, work.grain, scratch);
        cut[1] = -count;
        run_units(function, pointers, args, work.rows, added + 1);
    }
}

void launch_steps(const Program& program, const int64_t* slots, const SmallVector<std::byte*, 16>& starts,
                  void* memory, Run& run, Controls& controls) {
    SmallVector<void*, 16> pointers;
    Dims args;
    const int threads = run.threads;
    for (const Step& step : program.steps) {
        if (step.kernel == Step::free) continue;
        run.unlocked.stop_if_interrupted();
        if (step.kernel == Step::control) {
            controls.run(program.controls[step.buffer], step.buffer, slots, starts, run);
            continue;
        }
        if (slots[step.units] <= 0) continue;
        const Work work = work_of(step, slots, threads);
        Scratch scratch = scratch_of(step, work, slots, threads);
        scratch.start = static_cast<std::byte*>(memory);
        pointers.resize(scratch.place + 1);
        pointers[step.pointers.size()] = scratch.start + size_t(scratch.threads) * scratch.bytes;
        for (size_t i = 0; i < step.pointers.size(); ++i) {
            const Pointer& p = step.pointers[i];
            pointers[i] = starts[p.buffer] + (p.offset < 0 ? 0 : slots[p.offset] * int64_t(p.itemsize));
        }
        args.resize(step.args.size());
        for (size_t i = 0; i < step.args.size(); ++i) args[i] = slots[step.args[i]];
        const KernelFunction function = code_of(*program.kernels[step.kernel]);
        const Scratch* own = step.scratch < 0 ? nullptr : &scratch;
        timed(run.name, step, run.times, [&] {
            if (work.at_once)
                run_segments(function, pointers.data(), &args[args.size() - 2], args.data(), work, own);
            else
                run_units(function, pointers.data(), args.data(), work.units, work.grain, own);
        });
    }
}

// Whether all launches together are worth letting go of the interpreter lock.
bool takes_long(const Program& program, const int64_t* slots) {
    if (!program.controls.empty()) return true;  // nobody knows how many steps there are
    float grains = 0;
    for (const Step& step : program.steps) {
        if (step.kernel < 0) continue;
        const Split& split = step.split;
        const bool cut = split.segments >= 0;  // a unit of one segment is nearer to a grain than one of all
        const int64_t grain = slots[cut ? split.grain : step.grain], many = cut ? slots[split.segments] : 1;
        grains += float(slots[step.units]) * float(many) / std::max(float(grain), 1.0f / grains_worth_it);
    }
    return grains > float(grains_worth_it);
}

}  // namespace

Memory::Memory(size_t bytes)
    : data_(bytes ? static_cast<std::byte*>(::operator new(bytes, std::align_val_t(memory_alignment)))
                  : nullptr) {}

Memory::~Memory() {
    if (data_) ::operator delete(data_, std::align_val_t(memory_alignment));
}

Running::Running(const Program& program, std::span<const int64_t> environment, const Run& run)
    : program_(program) {
    slots_.resize(program.slots());
    std::ranges::copy(environment, slots_.begin());
    evaluate(program.exprs, program.environment, slots_.data());
    TempPlan plan;
    plan.sizes.resize(program.buffers.size());
    lay_out(program, slots_.data(), plan);
    temps_.emplace(plan.bytes);
    scratch_.emplace(scratch_bytes(program, slots_.data(), run.threads));
    locate(program, plan, temps_->data(), starts_, [](const Buffer&) { return nullptr; });
    small_ = program.controls.empty();
    for (const Step& step : program.steps) {
        if (!small_) break;
        if (step.kernel == Step::free || slots_[step.units] <= 0) continue;
        const int64_t units = slots_[step.units];
        small_ = step.scratch < 0 && step.split.segments < 0 && !worth_threads(units, slots_[step.grain]) &&
                 step.pointers.size() <= most_pointers;
        Ready& ready = ready_.emplace_back(code_of(*program.kernels[step.kernel]), &step);
        ready.units = units;
        for (const Pointer& p : step.pointers)
            ready.offsets.push_back(p.offset < 0 ? 0 : slots_[p.offset] * int64_t(p.itemsize));
        for (int32_t slot : step.args) ready.args.push_back(slots_[slot]);
    }
}

size_t Running::output_bytes(size_t k) const {
    const Buffer& buffer = program_.buffers[program_.outputs[k].buffer];
    return checked_nbytes(slots_[buffer.elements], buffer.itemsize);
}

void Running::place(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs) {
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
        const Buffer& b = program_.buffers[i];
        if (b.kind != Buffer::temp) starts_[i] = b.kind == Buffer::input ? inputs[b.index] : outputs[b.index];
    }
}

Running::Bound Running::bind(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs) {
    Bound found;
    for (std::byte* p : inputs) found.inputs.push_back(p);
    for (std::byte* p : outputs) found.outputs.push_back(p);
    if (!small_) return found;
    place(inputs, outputs);
    for (const Ready& ready : ready_)
        for (size_t i = 0; i < ready.offsets.size(); ++i)
            found.pointers.push_back(starts_[ready.step->pointers[i].buffer] + ready.offsets[i]);
    return found;
}

void Running::run(Bound& bound, Run& run) {
    if (!small_ || profile().on)
        return this->run({bound.inputs.data(), bound.inputs.size()},
                         {bound.outputs.data(), bound.outputs.size()}, run);
    if (++runs_ % looks_after == 0) run.unlocked.stop_if_interrupted();
    void** at = bound.pointers.data();
    for (const Ready& ready : ready_) {
        ready.function(at, ready.args.data(), 0, ready.units);
        at += ready.offsets.size();
    }
}

void Running::run(std::span<std::byte* const> inputs, std::span<std::byte* const> outputs, Run& run) {
    place(inputs, outputs);
    if (!small_ || profile().on)
        return launch_steps(program_, slots_.data(), starts_, scratch_->data(), run, controls_);
    if (++runs_ % looks_after == 0) run.unlocked.stop_if_interrupted();
    void* pointers[most_pointers];
    for (const Ready& ready : ready_) {
        const auto& used = ready.step->pointers;
        for (size_t i = 0; i < used.size(); ++i) pointers[i] = starts_[used[i].buffer] + ready.offsets[i];
        ready.function(pointers, ready.args.data(), 0, ready.units);
    }
}

void run(const Program& program, const int64_t* slots, std::span<const Input> inputs,
         std::span<const StorageRef> outputs) {
    // What can fail, or let another thread run this program too, comes before the first launch.
    expect_stack();
    const NotesRest rest;  // the last to be destroyed
    for (Kernel* kernel : program.kernels) code_of(*kernel);
    const TempPlan& plan = plan_temps(program, slots);
    StorageRef temps = plan.bytes ? allocate(plan.bytes) : StorageRef();
    const int threads = get_num_threads();
    const size_t own = scratch_bytes(program, slots, threads);
    StorageRef scratch = own ? allocate(own) : StorageRef();
    SmallVector<std::byte*, 16> starts;
    locate(program, plan, temps ? temps->data : nullptr, starts, [&](const Buffer& b) {
        return b.kind == Buffer::input ? inputs[b.index].data : outputs[b.index]->data;
    });
    const bool times = program.name.empty() && program.timed < timed_runs;
    program.timed += times;
    Unlocked unlocked;
    if (bool long_run = takes_long(program, slots); long_run || unlocked_runs) [[unlikely]] {
        for (const Input& input : inputs)
            if (input.storage) unlocked.reads(*input.storage);
        for (const StorageRef& output : outputs) unlocked.writes(*output);
        unlocked.begin(long_run);
    } else {
        SeenValues::look_again();
    }
    Run run{program.name, threads, unlocked, times};
    Controls controls;
    launch_steps(program, slots, starts, scratch ? scratch->data : nullptr, run, controls);
}

}  // namespace kiln
