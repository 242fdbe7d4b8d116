#include "dispatch.h"

#include <algorithm>
#include <optional>

#include "autograd.h"
#include "busy.h"
#include "check.h"
#include "compiler.h"
#include "inplace.h"
#include "op_list.h"
#include "pointwise.h"
#include "program.h"
#include "record.h"

namespace kiln {

CoreFns& core_fns() {
    static CoreFns fns;
    return fns;
}

namespace {

int64_t integer_of(const Operand& operand) { return operand.number.integer; }

Dims integers(std::span<const Operand> operands) {
    Dims result(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) result[i] = integer_of(operands[i]);
    return result;
}

void copy_into(const TensorRef& target, Tensor& source) {
    Operand operand{&source, {}};
    execute(*core_fns().copy, {&operand, 1}, {&target, 1}, false);
}

// Whether the result may be made where the first operand lies: it is written over it, and neither another
// operand nor another of its elements shares its memory.
bool updates_first(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (!fn.updates || out.size() != 1 || operands[0].tensor != out[0].get() || overlaps_itself(*out[0]))
        return false;
    return std::ranges::none_of(operands.subspan(1), [&](const Operand& operand) {
        return operand.tensor && operand.tensor->storage == out[0]->storage;
    });
}

// Raises unless the results of a program can be written into `out`.
void check_results(const Fn& fn, const Program& program, std::span<const TensorRef> out) {
    for (size_t k = 0; k < out.size() && k < program.outputs.size(); ++k)
        expect_castable(fn, program.outputs[k].dtype, out[k]->dtype);
}

Results execute_program(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                        bool hidden) {
    const Program& program = program_for(fn, operands,
                                         hidden                             ? ProgramFor::hidden
                                         : updates_first(fn, operands, out) ? ProgramFor::update
                                                                            : ProgramFor::results);
    check_results(fn, program, out);
    const Dims slots = slots_of(program, fn, operands);
    SmallVector<Input, 8> inputs;
    for (const Operand& operand : operands) {
        const Tensor* x = operand.tensor;
        inputs.push_back(x && x->storage ? Input{x->data(), x->storage.get()} : Input{});
    }
    Results results;
    SmallVector<StorageRef, 4> storages;
    for (size_t k = 0; k < program.outputs.size(); ++k) {
        const bool in_place = program.buffers[program.outputs[k].buffer].kind == Buffer::input;
        results.push_back(
            in_place ? out[k] : new_tensor(program.outputs[k].dtype, output_sizes(program, k, slots.data())));
        storages.push_back(results.back()->storage);
    }
    run(program, slots.data(), {inputs.data(), inputs.size()}, {storages.data(), storages.size()});
    for (size_t k = 0; k < out.size(); ++k) {
        if (results[k] != out[k]) copy_into(out[k], *results[k]);
        results[k] = out[k];
    }
    return results;
}

}  // namespace

std::vector<Dims> result_sizes(Fn& fn, std::span<const Operand> operands) {
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    std::vector<Dims> sizes;
    if (fn.cls == FnClass::pointwise) sizes.assign(fn.outputs, broadcast_shape(fn, operands));
    if (fn.cls != FnClass::program) return sizes;
    const Program& program = program_for(fn, operands, ProgramFor::results);
    const Dims slots = slots_of(program, fn, operands);
    for (size_t k = 0; k < program.outputs.size(); ++k)
        sizes.push_back(output_sizes(program, k, slots.data()));
    return sizes;
}

const Program& program_for(Fn& fn, std::span<const Operand> operands, ProgramFor what) {
    static auto* table = new Table<Program>();
    Key key;
    key.push(fn.id | uint64_t(what) << 32);
    for (const Operand& operand : operands) describe(operand, key);
    Program* program = table->find(key);
    if (!program) [[unlikely]]
        program = table->insert(key, compiler::program({&fn, operands}, what));
    return *program;
}

Dims slots_of(const Program& program, Fn& fn, std::span<const Operand> operands) {
    Dims slots;
    for (const Operand& operand : operands) append_environment(operand, slots);
    slots.resize(program.slots());
    if (!evaluate(program, slots.data())) compiler::explain({&fn, operands});
    return slots;
}

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
    case ViewKind::none: break;
    }
    raise(ErrorKind::internal, concat(fn.name, ": not a view"));
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
               ": result type ", name(result), " can't be cast to the desired output type ", name(target));
}

Results execute(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    return fn.cls == FnClass::pointwise ? execute_pointwise(fn, operands, out)
                                        : execute_program(fn, operands, out, hidden);
}

namespace {

// Raises what running the call would say of the dtypes it reads and writes.
void check_written(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (fn.cls != FnClass::pointwise)
        return check_results(fn, program_for(fn, operands, ProgramFor::results), out);
    uint64_t look = 1;
    for (const Operand& operand : operands) look = look << 8 | look_of(operand) | 1 << 7;
    for (const TensorRef& target : out) look = look << 8 | uint64_t(target->dtype);
    const bool fits = operands.size() + out.size() < sizeof look;
    if (fits && look == fn.last_written) return;
    pointwise_dtypes(fn, operands, out);
    fn.last_written = fits ? look : 0;
}

// Positions along a dim lie below its size, until they are written.
void note_bound(const Fn& fn, const Tensor& source, Storage& positions) {
    const int dim = fn.gives_along < 0 ? fn.gives_along + source.ndim() : fn.gives_along;
    const int64_t bound = dim == flat_array ? source.numel : dim < source.ndim() ? source.sizes[dim] : 1;
    positions.below = bound <= UINT32_MAX ? uint32_t(bound) : 0;
}

// Whether the call can run here and now without another look: flat, its values there, nothing recorded.
bool runs_flat(FlatCall& flat, const Fn& fn, std::span<const Operand> operands,
               std::span<const TensorRef> out) {
    return fn.cls == FnClass::pointwise && out.empty() && !(fn.op && fn.op->divides) &&
           flat.look_at(fn, operands) && !flat.pending && !current_recording();
}

// The same for a call whose result is written over a tensor's values, where nothing else has to be asked.
bool writes_flat(FlatCall& flat, const Fn& fn, std::span<const Operand> operands,
                 std::span<const TensorRef> out) {
    if (fn.cls != FnClass::pointwise || out.size() != 1 || (fn.op && fn.op->divides)) return false;
    const Storage& target = *out[0]->storage;
    return !target.read_only && !target.inference && !target.recording && target.data && !target.busy &&
           flat.look_at(fn, operands, out) && !flat.pending && !current_recording() &&
           !(grad_enabled() && needs_gradient(fn, operands, out));
}

Results run_any(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, bool hidden) {
    if (fn.cls == FnClass::unknown) [[unlikely]]
        compiler::classify({&fn, operands});
    const auto look = [&] {
        if (fn.index_input >= 0) check_positions(fn, operands);
        if (fn.op && fn.op->divides) check_divisor(fn, operands);
    };
    std::optional<SeenValues> seen;
    if (fn.index_input >= 0 || (fn.op && fn.op->divides)) seen.emplace(look);
    if (fn.cls == FnClass::replay) return replay(compiler::recipe_for({&fn, operands}), operands);
    if (fn.cls == FnClass::view) {
        Results results;
        results.push_back(make_view(fn, operands));
        if (results[0]) return results;
        // a reshape across strides
        results[0] = view_reshape(*copy_of(*operands[0].tensor), integers(operands.subspan(1)), true);
        return results;
    }
    for (const TensorRef& target : out) prepare_write(fn, *target, operands);
    Results results;
    Recording* recording = current_recording();
    if (recording && !out.empty()) check_written(fn, operands, out);
    if (recording && hidden && !out.empty()) {  // a recorded write gives nothing beside
        results = run_any(fn, operands, {}, true);
        for (size_t k = 0; k < out.size(); ++k) {
            const Operand made{results[k].get(), {}};
            run(*core_fns().copy, {&made, 1}, {&out[k], 1});
            results[k] = out[k];
        }
        return results;
    }
    if (!recording || !recording->append(fn, operands, out, hidden, results)) {
        for (const Operand& operand : operands)
            if (operand.tensor && operand.tensor->storage) settle(*operand.tensor->storage);
        for (const TensorRef& target : out) settle_target(*target->storage);
        results = execute(fn, operands, out, hidden);
    }
    if (fn.gives_along != no_dim && out.empty()) note_bound(fn, *operands[0].tensor, *results[0]->storage);
    return results;
}

Results call_any(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (grad_enabled() && needs_gradient(fn, operands, out)) return call_with_gradient(fn, operands, out);
    Results results = run_any(fn, operands, out, false);
    for (const TensorRef& target : out) wrote(*target);
    if (fn.cls == FnClass::view) set_base(*results[0], *operands[0].tensor);
    return results;
}

}  // namespace

void expect_writable(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    if (grad_enabled() && needs_gradient(fn, operands, out))
        for (const TensorRef& target : out) check_in_place(fn.name, *target);
    for (const TensorRef& target : out) prepare_write(fn, *target, operands);
    check_written(fn, operands, out);
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
    if (FlatCall flat; runs_flat(flat, fn, operands, out)) {
        results.resize(fn.outputs);
        call_flat(fn, flat, operands, results.data());
    } else if (FlatCall over; writes_flat(over, fn, operands, out)) {
        out[0]->storage->below = 0;
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
    if (FlatCall flat; fn.outputs == 1 && runs_flat(flat, fn, operands, {}))
        call_flat(fn, flat, operands, &result);
    else
        result = std::move(call_any(fn, operands, {})[0]);
    return result;
}

namespace {

// Whether a call makes a number of numbers: computed on its line, it stays one. As a tensor of no dims it
// would make float64 of float32 tensors that have none either.
bool makes_number(Fn& fn, std::span<const Operand> operands) {
    if (std::any_of(operands.begin(), operands.end(), [](const Operand& x) { return x.tensor; }))
        return false;
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    return fn.cls == FnClass::pointwise && fn.op != core_fns().convert[0]->op && !(fn.op && fn.op->divides);
}

}  // namespace

Results replay(const Recipe& recipe, std::span<const Operand> operands) {
    Dims slots;
    for (const Operand& operand : operands) append_environment(operand, slots);
    slots.resize(recipe.environment + recipe.exprs.size());
    evaluate(recipe.exprs, recipe.environment, slots.data());
    std::vector<TensorRef> values(recipe.inputs);
    std::vector<Operand> given(operands.begin(), operands.end());  // of each value: as an operand has it
    given.resize(recipe.inputs);
    for (size_t i = 0; i < operands.size(); ++i) values[i] = TensorRef(operands[i].tensor);
    const OpList& list = recipe.list;
    for (const ListedOp& op : list.ops) {
        const Operands own =
            list.operands_of(op, slots.data(), [&](const ListedArg& arg) { return given[arg.value]; });
        const std::span<const Operand> taken(own.data(), own.size());
        const bool number = makes_number(*op.fn, taken);
        values.push_back(std::move((number ? execute(*op.fn, taken, {}, false) : call(*op.fn, taken))[0]));
        const Tensor& y = *values.back();
        given.push_back(number ? Operand{nullptr, read_element(y.dtype, y.data())}
                               : Operand{values.back().get(), {}});
    }
    Results results;
    for (int32_t index : recipe.outputs) results.push_back(index < 0 ? TensorRef() : values[index]);
    return results;
}

namespace {

std::string position_error(const Fn& fn, int64_t value, int dim, int64_t bound) {
    std::string text = fn.index_error;
    for (const auto& [name, number] :
         {std::pair<const char*, int64_t>{"{index}", value}, {"{dim}", dim}, {"{size}", bound}})
        if (size_t at = text.find(name); at != std::string::npos)
            text.replace(at, std::char_traits<char>::length(name), std::to_string(number));
    return text;
}

constexpr int class_dim = 100;  // dim 1, or dim 0 of a vector

struct Bound {
    int64_t low, high;  // low <= 0 <= high
    bool has_ignored;
    int64_t ignored;
    bool holds(int64_t value) const {
        return (value >= low && value < high) || (has_ignored && value == ignored);
    }
    int64_t suspect(int64_t value) const {  // negative if not in range (unsigned: no overflow)
        return int64_t((uint64_t(value) - uint64_t(low)) | (uint64_t(high) - 1 - uint64_t(value)));
    }
};

struct NotZero {
    bool holds(int64_t value) const { return value != 0; }
    int64_t suspect(int64_t value) const { return -int64_t(value == 0); }
};

// The first of n values, `stride` apart, that does not hold, or n. Neighbours are looked at 64 at a time,
// without a branch, and one by one where that makes them suspect.
template <class Integer, class Condition>
int64_t first_of_row(const Integer* row, int64_t n, int64_t stride, const Condition& bound) {
    for (int64_t i = 0, suspect = -1; i < n; suspect = -1) {
        const int64_t end = std::min<int64_t>(i + 64, n);
        if (stride == 1 && end == i + 64)
            for (int64_t j = suspect = 0; j < 64; ++j) suspect |= bound.suspect(row[i + j]);
        for (; suspect < 0 && i < end; ++i)
            if (!bound.holds(row[i * stride])) return i;
        i = end;
    }
    return n;
}

// The first value that does not hold in logical order; an expanded dim is read once. False if all do.
template <class Integer, class Condition>
bool first_outside(const Tensor& index, const Condition& bound, int64_t* found) {
    const auto* base = reinterpret_cast<const Integer*>(index.data());
    const bool flat = index.contiguous;
    const int last = index.ndim() - 1;
    Dims sizes(index.sizes);
    for (int d = 0; d <= last; ++d)
        if (index.strides[d] == 0) sizes[d] = 1;
    const int64_t count = checked_numel(sizes), length = flat ? count : sizes[last];
    const int64_t stride = flat ? 1 : index.strides[last];
    for (int64_t row = 0; row < count; row += length) {
        int64_t offset = 0, rest = row / length;
        for (int d = flat ? -1 : last - 1; d >= 0; rest /= sizes[d--])
            offset += rest % sizes[d] * index.strides[d];
        if (int64_t i = first_of_row(base + offset, length, stride, bound); i < length) {
            *found = base[offset + i * stride];
            return true;
        }
    }
    return false;
}

}  // namespace

void check_positions(const Fn& fn, std::span<const Operand> operands) {
    const Tensor& index = *operands[fn.index_input].tensor;
    const Tensor& indexed = *operands[fn.indexed_input].tensor;
    if (index.numel == 0) return;
    int dim = fn.index_dim == class_dim ? (indexed.ndim() > 1 ? 1 : 0)
              : fn.index_dim < 0        ? fn.index_dim + indexed.ndim()
                                        : fn.index_dim;
    int64_t size = dim >= 0 && dim < indexed.ndim() ? indexed.sizes[dim] : 1;
    if (const uint32_t below = index.storage->below; below && below <= size && !index.storage->public_)
        return;
    settle(*index.storage);
    Bound bound{fn.index_negative ? -size : 0, size, fn.index_ignore >= 0, 0};
    if (bound.has_ignored) bound.ignored = operands[fn.index_ignore].number.integer;
    int64_t found = 0;
    bool outside = index.dtype == DType::int64   ? first_outside<int64_t>(index, bound, &found)
                   : index.dtype == DType::int32 ? first_outside<int32_t>(index, bound, &found)
                   : index.dtype == DType::uint8 ? first_outside<uint8_t>(index, bound, &found)
                                                 : false;  // the op's own rule refuses other dtypes
    if (outside) raise(fn.index_error_kind, position_error(fn, found, dim, size));
    const bool all = index.contiguous && size_t(index.numel) * itemsize(index.dtype) == index.storage->nbytes;
    if (all && bound.low == 0 && !bound.has_ignored && size <= UINT32_MAX)
        index.storage->below = uint32_t(size);  // seen once, until it is written
}

void check_divisor(const Fn& fn, std::span<const Operand> operands) {
    for (const Operand& operand : operands)
        if (operand.tensor ? is_float(operand.tensor->dtype) || operand.tensor->numel == 0
                           : operand.number.kind == Kind::float_)
            return;
    const Operand& by = operands[1];
    if (by.tensor) settle(*by.tensor->storage);
    int64_t found = 0;
    size_t bytes = by.tensor ? itemsize(by.tensor->dtype) : 0;
    bool zero = bytes == 0   ? by.number.integer == 0
                : bytes == 1 ? first_outside<int8_t>(*by.tensor, NotZero(), &found)
                : bytes == 2 ? first_outside<int16_t>(*by.tensor, NotZero(), &found)
                : bytes == 4 ? first_outside<int32_t>(*by.tensor, NotZero(), &found)
                             : first_outside<int64_t>(*by.tensor, NotZero(), &found);
    KILN_CHECK(!zero, runtime, fn.name, ": ZeroDivisionError: an integer divided by 0");
}

}  // namespace kiln
