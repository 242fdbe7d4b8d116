#include "op.h"

#include <algorithm>

#include "check.h"
#include "compiler.h"

namespace kiln {

namespace {

uint32_t next_id = 1;

// Of every forward; derivatives are found by the id of theirs.
std::vector<Fn*>& forwards() {
    static auto* list = new std::vector<Fn*>();
    return *list;
}

}  // namespace

Fn* new_fn(const Op* op, std::string name) {
    auto* fn = new Fn();  // lives as long as the process: keys refer to it
    fn->id = next_id++;
    if (op) forwards().push_back(fn);
    fn->op = op;
    fn->name = std::move(name);
    if (op && op->kind == OpKind::pointwise) fn->cls = FnClass::pointwise;
    if (op && op->kind == OpKind::view) fn->cls = FnClass::view;
    return fn;
}

void change_default_dtype(DType dtype) {
    DType before = default_dtype();
    if (dtype == before) return;
    compiler::settle();  // what is being captured goes by the one it began with
    set_default_dtype(dtype);
    for (Fn* fn : forwards()) {
        auto known = std::find_if(fn->others.begin(), fn->others.end(),
                                  [&](const Fn::Learnt& l) { return l.default_dtype == dtype; });
        Fn::Learnt next;
        if (known == fn->others.end())
            next.id = next_id++;
        else {
            next = std::move(*known);
            fn->others.erase(known);
        }
        fn->others.push_back({before, fn->id, fn->identity, std::move(fn->handle)});
        fn->id = next.id;
        fn->identity = next.identity;
        fn->handle = std::move(next.handle);
        fn->flat = {};
        fn->flat_saves = {};
        fn->last_code = fn->last_written = 0;
        fn->last_derivative = nullptr;
    }
}

void Key::overflow(uint64_t word) {
    if (more_.empty()) more_.assign(words_, words_ + count_);
    more_.push_back(word);
}

uint64_t ones_of(const Dims& sizes) {
    uint64_t ones = 0;
    for (size_t d = 0; d < sizes.size(); ++d) ones |= uint64_t(sizes[d] == 1) << d;
    return ones;
}

void describe(const Operand& operand, Key& key) {
    if (!operand.tensor) {
        key.push(1 | uint64_t(operand.number.kind) << 8);
        return;
    }
    const Tensor& x = *operand.tensor;
    KILN_CHECK(x.ndim() <= 24, not_implemented, "a tensor of ", x.ndim(),
               " dims: at most 24 are supported here");
    key.push(2 | uint64_t(x.dtype) << 8 | uint64_t(x.ndim()) << 16 | uint64_t(x.contiguous) << 24 |
             ones_of(x.sizes) << 32);
    if (x.contiguous) return;
    uint64_t classes = 0;
    for (int d = 0; d < x.ndim(); ++d) classes |= stride_class(x.strides[d]) << 2 * d;
    key.push(classes);
}

}  // namespace kiln
