#include "call/op.h"

#include <algorithm>

#include "call/compiler.h"

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
    if (op && op->join != JoinKind::none) fn->cls = FnClass::join;
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
        fn->last = {};
    }
}

}  // namespace kiln
