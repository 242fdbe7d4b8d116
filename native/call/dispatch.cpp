#include "call/dispatch.h"

#include <algorithm>
#include <optional>

#include "autograd/autograd.h"
#include "autograd/inplace.h"
#include "base/check.h"
#include "batch/list.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "call/join.h"
#include "call/pointwise.h"
#include "call/recipe.h"
#include "call/trace.h"
#include "call/value_checks.h"
#include "program/program_call.h"
#include "record/record.h"

namespace kiln {

CoreFns& core_fns() {
    static CoreFns fns;
    return fns;
}

TensorRef contiguous(const TensorRef& x) {
    if (x->contiguous) return x;
    Operand operand{x.get(), {}};
    return std::move(call(*core_fns().copy, {&operand, 1})[0]);
}

TensorRef copy_of(Tensor& x) {
    Operand operand{&x, {}};
    return std::move(run(*core_fns().copy, {&operand, 1})[0]);
}

TensorRef converted(const TensorRef& x, DType dtype) {
    TensorRef out = fresh_tensor(dtype, x->sizes);
    Operand operand{x.get(), {}};
    return std::move(call(*core_fns().copy, {&operand, 1}, {&out, 1})[0]);
}

TensorRef full_like(const Tensor& x, double value) {
    if (x.numel == 1 && !current_recording()) {
        TensorRef out = new_tensor(x.dtype, x.sizes);
        write_element(x.dtype, out->data(), Number::of(value));
        return out;
    }
    TensorRef out = fresh_tensor(x.dtype, x.sizes);
    Operand operand{nullptr, Number::of(value)};
    run(*core_fns().copy, {&operand, 1}, {&out, 1});
    return out;
}

void expect_castable(const Fn& fn, DType result, DType target) {
    KILN_CHECK(fn.op == core_fns().convert[0]->op || can_cast(result, target), runtime, fn.name,
               ": result type ", scalar_type(result), " can't be cast to the desired output type ",
               scalar_type(target));
}

Results execute(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    return fn.cls == FnClass::pointwise ? execute_pointwise(fn, operands, out)
           : fn.cls == FnClass::join    ? execute_join(fn, operands, out)
                                        : execute_program(fn, operands, out, hidden);
}

namespace {

// ---- calls that can run, or be recorded, without another look ----

// Whether it can be done here and now: flat, and its values there, or of the recording.
bool runs_flat(FlatCall& flat, Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    return fn.cls == FnClass::pointwise && out.empty() && !refuses_values(fn) && flat.look_at(fn, operands) &&
           !on_call && !traces && flat.can_run_or_record(fn, operands, out);
}

// The same for a call whose result is written over a tensor's values, where nothing else has to be asked.
bool writes_flat(FlatCall& flat, Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (fn.cls != FnClass::pointwise || out.size() != 1 || refuses_values(fn)) return false;
    const Storage& target = *out[0]->storage;
    return !target.read_only && !target.inference && !target.busy && !is_part(target) &&
           flat.look_at(fn, operands, out) && !on_call && !traces &&
           !(grad_enabled() && needs_gradient(fn, operands, out)) &&
           flat.can_run_or_record(fn, operands, out);
}

// ---- views ----

int64_t integer_of(const Operand& operand) { return operand.number.integer; }

Dims integers(std::span<const Operand> operands) {
    Dims result(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) result[i] = integer_of(operands[i]);
    return result;
}

// The views that a function of several gives.
Results make_views(const Fn& fn, std::span<const Operand> operands) {
    const Tensor& x = *operands[0].tensor;
    const int64_t dim = fn.dims[0];
    Results results;
    results.reserve(fn.outputs);
    if (fn.op->view == ViewKind::unbind) {
        KILN_CHECK(dim < x.ndim() && x.sizes[dim] == int64_t(fn.outputs), runtime, "unbind: ", fn.outputs,
                   " views along dim ", dim, " of ", shape_text(x.sizes));
        for (int64_t k = 0; k < int64_t(fn.outputs); ++k) results.push_back(view_select(x, dim, k));
        return results;
    }
    int64_t start = 0;
    for (const Operand& length : operands.subspan(1)) {
        results.push_back(view_slice(x, dim, start, integer_of(length), 1));
        start += integer_of(length);
    }
    return results;
}

// The view `fn` gives of its first operand; null for a reshape that has to copy.
TensorRef make_view(const Fn& fn, std::span<const Operand> operands) {
    const Tensor& x = *operands[0].tensor;
    std::span<const Operand> numbers = operands.subspan(1);
    switch (fn.op->view) {
    case ViewKind::reshape: return view_reshape(x, integers(numbers), false);
    case ViewKind::permute: return view_permute(x, fn.dims);
    case ViewKind::expand: return view_expand(x, integers(numbers));
    case ViewKind::slice:
        return view_slice(x, fn.dims[0], integer_of(numbers[0]), integer_of(numbers[1]),
                          integer_of(numbers[2]));
    case ViewKind::as_strided: {
        size_t ndim = (numbers.size() - 1) / 2;
        return view_as_strided(x, integers(numbers.subspan(0, ndim)), integers(numbers.subspan(ndim, ndim)),
                               integer_of(numbers.back()));
    }
    case ViewKind::select: return view_select(x, fn.dims[0], integer_of(numbers[0]));
    default: break;
    }
    raise(ErrorKind::internal, concat(fn.name, ": not a view"));
}

// The view, or the reshaped copy where strides do not let it be one.
Results run_view(const Fn& fn, std::span<const Operand> operands) {
    if (gives_several(fn)) return make_views(fn, operands);
    Results results;
    results.push_back(make_view(fn, operands));
    if (results[0]) return results;
    results[0] = view_reshape(*copy_of(*operands[0].tensor), integers(operands.subspan(1)), true);
    return results;
}

// More views than a node has outputs for: one after the other, a node for each.
Results call_one_by_one(Fn& fn, std::span<const Operand> operands) {
    const int dim = int(fn.dims[0]);
    const bool split = fn.op->view == ViewKind::split;
    Fn& one = split ? *core_fns().slice(dim) : *core_fns().select(dim);
    const Operand step{nullptr, Number::of(int64_t(1))};
    Results results;
    results.reserve(fn.outputs);
    int64_t start = 0;
    for (size_t k = 0; k < fn.outputs; ++k) {
        const Operand length = split ? operands[k + 1] : step;
        const Operand given[4] = {operands[0], {nullptr, Number::of(start)}, length, step};
        results.push_back(call_one(one, std::span(given).first(split ? 4 : 2)));
        start += integer_of(length);
    }
    return results;
}

// A view, or several, of the first operand, and a node for backward if one is needed.
[[gnu::noinline]] Results call_views(Fn& fn, std::span<const Operand> operands) {
    Tensor& x = *operands[0].tensor;
    const bool recorded = grad_enabled() && fn.op->differentiable && takes_part(x);
    Results results;
    if (recorded && fn.outputs > most_outputs) {
        results = call_one_by_one(fn, operands);
    } else {
        results = run_view(fn, operands);
        if (recorded) record_views(fn, operands, {results.data(), results.size()});
    }
    set_bases(fn, {results.data(), results.size()}, x);
    return results;
}

// ---- what computes values: recorded, or run at once ----

// Raises what running the call would say of the dtypes it writes.
void check_written(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (fn.cls == FnClass::pointwise)
        check_pointwise_dtypes(fn, operands, out);
    else if (fn.cls == FnClass::join)
        expect_castable(fn, operands[0].tensor->dtype, out[0]->dtype);
    else
        expect_castable_results(fn, program_for(fn, operands, ProgramFor::results), out);
}

Results run_now(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    for (const Operand& operand : operands) {
        if (!operand.tensor || !operand.tensor->storage) continue;
        note_value_read(*operand.tensor);
        settle(*operand.tensor->storage);
    }
    for (const TensorRef& target : out) settle_target(*target->storage);
    return execute(fn, operands, out, hidden);
}

// A write that also gives hidden outputs, which a recorded one cannot: computed into new tensors, which are
// copied into the targets.
Results record_beside(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    Results results = run(fn, operands, {}, true);
    for (size_t k = 0; k < out.size(); ++k) {
        const Operand made{results[k].get(), {}};
        run(*core_fns().copy, {&made, 1}, {&out[k], 1});
        results[k] = out[k];
    }
    return results;
}

Results record_or_run(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                      bool hidden) {
    Recording* recording = current_recording();
    if (!recording) return run_now(fn, operands, out, hidden);
    if (!out.empty()) {
        check_written(fn, operands, out);  // else the recording would say it, when it runs
        if (hidden) return record_beside(fn, operands, out);
    }
    Results results;
    if (recording->append(fn, operands, out, hidden, results)) return results;
    return run_now(fn, operands, out, hidden);  // the recording refused it; what stood before it has run
}

// ---- any call ----

void ensure_class(Fn& fn, std::span<const Operand> operands) {
    if (fn.cls == FnClass::unknown) [[unlikely]]
        compiler::classify({&fn, operands});
}

// A call without autograd, by whoever watches; null: nobody.
Results run_any(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    ensure_class(fn, operands);
    if (on_call && fn.cls != FnClass::view && fn.cls != FnClass::replay) [[unlikely]]
        return on_call(fn, operands, out, hidden);
    return run_told(fn, operands, out, hidden);
}

Results call_any(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);

Results call_traced(CallTrace& trace, Fn& fn, std::span<const Operand> operands,
                    std::span<const TensorRef> out) {
    Results results;
    {
        struct Inside {
            explicit Inside(CallTrace& t) : trace(t) { trace.inside = true; }
            ~Inside() { trace.inside = false; }
            CallTrace& trace;
        } inside(trace);
        results = call_any(fn, operands, out);
    }
    trace.told(trace, fn, operands, out, results);
    return results;
}

// The same with autograd. Not inlined: what calls it is mostly a flat call, and over before it comes here.
[[gnu::noinline]] Results call_any(Fn& fn, std::span<const Operand> operands,
                                   std::span<const TensorRef> out) {
    if (CallTrace* trace = traces ? current_trace() : nullptr; trace && !trace->inside) [[unlikely]]
        return call_traced(*trace, fn, operands, out);
    if (fn.cls == FnClass::view) return call_views(fn, operands);
    if (grad_enabled() && needs_gradient(fn, operands, out)) return call_with_gradient(fn, operands, out);
    Results results = run_any(fn, operands, out, false);
    for (const TensorRef& target : out) wrote(*target);
    return results;
}

}  // namespace

// The order matters: whatever can raise comes before anything changes, and what other threads can undo
// meanwhile is looked at last, or again.
Results run_told(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    // 1. Values it refuses, which may have to be computed first (where nothing runs there are none). Other
    //    threads may write them while this one waits or compiles: until the end of this function every launch
    //    of it looks again.
    const auto look = [&] { check_values(fn, operands); };
    std::optional<SeenValues> seen;
    const bool unknown = traces && current_trace() && current_trace()->abstract && current_recording();
    if (refuses_values(fn) && !unknown) seen.emplace(look);
    // 2. Replays and views launch no kernel and write no target; the calls they make come through here.
    if (fn.cls == FnClass::replay) return replay(compiler::recipe_for({&fn, operands}), operands);
    if (fn.cls == FnClass::view) return run_view(fn, operands);
    // 3. Whether the targets may be written, before any of them is, and before the call is recorded. This
    //    drops the known bounds of their values, which step 1 may need of a target that is an operand.
    for (const TensorRef& target : out) prepare_write(fn, *target, operands);
    Results results = record_or_run(fn, operands, out, hidden);
    if (out.empty()) note_positions(fn, operands, results);
    return results;
}

Results run(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    Results results;
    if (FlatCall flat; runs_flat(flat, fn, operands, out)) {
        results.resize(fn.outputs);
        flat.run(fn, operands, out, results.data());
    } else {
        results = run_any(fn, operands, out, hidden);
    }
    return results;
}

Results call(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    Results results;
    if (lists_in_use && put_on_list(fn, operands, out, results)) [[unlikely]]
        return results;
    if (fn.cls == FnClass::view && !traces) {
        results = call_views(fn, operands);
    } else if (FlatCall flat; runs_flat(flat, fn, operands, out)) {
        results.resize(fn.outputs);
        call_flat(fn, flat, operands, results.data());
    } else if (FlatCall over; writes_flat(over, fn, operands, out)) {
        out[0]->storage->below = 0;  // no bound of its values is known any more
        results.resize(1);
        over.run(fn, operands, out, results.data());
        wrote(*out[0]);
    } else {
        results = call_any(fn, operands, out);
    }
    return results;
}

TensorRef call_one(Fn& fn, std::span<const Operand> operands) {
    TensorRef result;
    if (lists_in_use) [[unlikely]] {
        if (Results results; put_on_list(fn, operands, {}, results)) return std::move(results[0]);
    }
    if (fn.cls == FnClass::view && !traces)
        result = std::move(call_views(fn, operands)[0]);
    else if (FlatCall flat; fn.outputs == 1 && runs_flat(flat, fn, operands, {}))
        call_flat(fn, flat, operands, &result);
    else
        result = std::move(call_any(fn, operands, {})[0]);
    return result;
}

void expect_writable(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    ensure_class(fn, operands);
    if (grad_enabled() && needs_gradient(fn, operands, out))
        for (const TensorRef& target : out) check_in_place(fn.name, *target);
    for (const TensorRef& target : out) prepare_write(fn, *target, operands);
    check_written(fn, operands, out);
}

std::vector<Dims> result_sizes(Fn& fn, std::span<const Operand> operands) {
    ensure_class(fn, operands);
    std::vector<Dims> sizes;
    if (fn.cls == FnClass::pointwise) sizes.assign(fn.outputs, broadcast_shape(fn, operands));
    if (fn.cls == FnClass::join) sizes.assign(1, join_sizes(fn, operands));
    if (fn.cls != FnClass::program) return sizes;
    const Program& program = program_for(fn, operands, ProgramFor::results);
    const Dims slots = slots_of(program, fn, operands);
    for (size_t k = 0; k < program.outputs.size(); ++k)
        sizes.push_back(output_sizes(program, k, slots.data()));
    return sizes;
}

}  // namespace kiln
