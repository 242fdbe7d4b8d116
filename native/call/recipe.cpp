#include "call/recipe.h"

#include <algorithm>

#include "base/check.h"
#include "call/compiler.h"

namespace kiln {

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
    SmallVector<TensorRef, 8> values;
    SmallVector<Operand, 8> given(operands);  // of each value: as an operand has it
    values.reserve(recipe.inputs + recipe.list.ops.size());
    for (const Operand& operand : operands) values.emplace_back(operand.tensor);
    values.resize(recipe.inputs);
    given.resize(recipe.inputs);
    const OpList& list = recipe.list;
    for (const ListedOp& op : list.ops) {
        const Operands own =
            list.operands_of(op, slots.data(), [&](const ListedArg& arg) { return given[arg.value]; });
        const bool number = makes_number(*op.fn, own);
        Results made = number ? execute(*op.fn, own, {}, false) : call(*op.fn, own);
        KILN_CHECK(made.size() >= op.outs, internal, op.fn->name, ": too few results");
        for (uint32_t k = 0; k < op.outs; ++k) {
            values.push_back(std::move(made[k]));
            const Tensor& y = *values.back();
            given.push_back(number ? Operand{nullptr, read_element(y.dtype, y.data())}
                                   : Operand{values.back().get(), {}});
        }
    }
    Results results;
    for (int32_t index : recipe.outputs) results.push_back(index < 0 ? TensorRef() : values[index]);
    return results;
}

}  // namespace kiln
