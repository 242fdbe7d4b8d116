#include "program/program_call.h"

#include "base/check.h"
#include "call/compiler.h"

namespace kiln {

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

void expect_castable_results(const Fn& fn, const Program& program, std::span<const TensorRef> out) {
    for (size_t k = 0; k < out.size() && k < program.outputs.size(); ++k)
        expect_castable(fn, program.outputs[k].dtype, out[k]->dtype);
}

namespace {

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

}  // namespace

Results execute_program(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                        bool hidden) {
    const Program& program = program_for(fn, operands,
                                         hidden                             ? ProgramFor::hidden
                                         : updates_first(fn, operands, out) ? ProgramFor::update
                                                                            : ProgramFor::results);
    expect_castable_results(fn, program, out);
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
    run(program, slots.data(), inputs, storages);
    for (size_t k = 0; k < out.size(); ++k) {
        if (results[k] != out[k]) copy_into(out[k], *results[k]);
        results[k] = out[k];
    }
    return results;
}

}  // namespace kiln
