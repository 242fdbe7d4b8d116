#include "autograd/hooks.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "autograd/inplace.h"
#include "base/check.h"

namespace kiln {

namespace {

// Where each hook is, by its id.
std::unordered_map<uint64_t, Hooks*>& lists_of_hooks() {
    static auto* map = new std::unordered_map<uint64_t, Hooks*>();
    return *map;
}

}  // namespace

SavedHooks& saved_hooks() {
    thread_local SavedHooks* hooks =
        new SavedHooks();  // not destroyed: a thread may end after the interpreter
    return *hooks;
}

uint64_t add_hook(Tensor& tensor, HookKind kind, Opaque function) {
    const Edge edge = edge_of(tensor);
    KILN_CHECK(edge, runtime, "cannot register a hook on a tensor that doesn't require gradient");
    KILN_CHECK(edge.leaf || kind == HookKind::tensor, runtime,
               "post accumulate grad hooks cannot be registered on non-leaf tensors; use register_hook()");
    Extras& extras = edge.node ? ensure_extras(*edge.node) : ensure_extras(*edge.leaf);
    return extras.hooks.add(kind, edge.index, std::move(function));
}

uint64_t Hooks::add(HookKind kind, uint32_t index, Opaque function) {
    static uint64_t next_id = 1;
    const uint64_t id = next_id++;
    Hook hook{id, index, kind, std::move(function)};
    list_.reserve(list_.size() + 1);
    lists_of_hooks()[id] = this;  // as the last of what can fail
    list_.push_back(std::move(hook));
    return id;
}

void Hooks::remove(uint64_t id) {
    auto found = lists_of_hooks().find(id);
    if (found == lists_of_hooks().end()) return;
    std::vector<Hook>& list = found->second->list_;
    auto hook = std::find_if(list.begin(), list.end(), [&](const Hook& h) { return h.id == id; });
    Opaque dropped = std::move(hook->function);  // as the last: it may run any code
    list.erase(hook);
    lists_of_hooks().erase(found);
}

std::vector<Hook> Hooks::of(HookKind kind) const {
    std::vector<Hook> hooks;
    std::copy_if(list_.begin(), list_.end(), std::back_inserter(hooks),
                 [&](const Hook& hook) { return hook.kind == kind; });
    return hooks;
}

void Hooks::clear() {
    std::vector<Hook> dropped = std::exchange(list_, {});
    for (const Hook& hook : dropped) lists_of_hooks().erase(hook.id);
}

void retain_at(AutogradMeta& meta, const NodeRef& node, uint32_t output) {
    if (node)
        ensure_extras(*node).retains.reserve(ensure_extras(*node).retains.size() + 1);  // all that can fail
    if (meta.retained)
        std::erase_if(meta.retained->extras->retains, [&](const auto& r) { return r.first == &meta; });
    meta.retained = node;
    if (node) ensure_extras(*node).retains.emplace_back(&meta, output);
}

void retain_grad(Tensor& tensor) {
    KILN_CHECK(tensor.requires_grad(), runtime, "can't retain_grad on Tensor that has requires_grad=False");
    if (!up_to_date_grad_fn(tensor)) return;
    AutogradMeta& meta = ensure_meta(tensor);
    if (!meta.retained) retain_at(meta, tensor.node, tensor.output);
}

bool has_hooks(const Extras* extras) { return extras && !extras->hooks.list().empty(); }

void call_node_hooks(const Extras* extras, HookKind kind, std::span<TensorRef> gradients,
                     const std::span<TensorRef>* got) {
    if (!extras) return;
    for (const Hook& hook : extras->hooks.of(kind)) callbacks.node_hook(hook.function, gradients, got);
}

void call_leaf_hooks(const AutogradMeta& leaf) {
    if (!leaf.extras) return;
    for (const Hook& hook : leaf.extras->hooks.of(HookKind::accumulated))
        if (leaf.owner) {
            const TensorRef found = callbacks.hook(hook.function, TensorRef(leaf.owner));
            KILN_CHECK(!found || found.get() == leaf.owner, runtime,
                       "Tensor post accumulate grad hooks should return None.");
        }
}

}  // namespace kiln
