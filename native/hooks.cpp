// Hooks: where they are kept and how they are called; what may be asked of the run under way.
#include "hooks.h"

#include <iterator>
#include <unordered_map>

#include "check.h"
#include "record.h"

namespace kiln {

namespace {

// Where each hook is, by its id.
std::unordered_map<uint64_t, Hooks*>& lists_of_hooks() {
    static auto* map = new std::unordered_map<uint64_t, Hooks*>();
    return *map;
}

}  // namespace

void (*call_back)(const Opaque& callback) = nullptr;
TensorRef (*call_hook)(const Opaque& hook, const TensorRef& gradient) = nullptr;
void (*call_node_hook)(const Opaque&, std::span<TensorRef>, const std::span<TensorRef>*) = nullptr;
void (*note_node)(Node& node, Node* parent) = nullptr;
void (*check_node)(Node& node, std::span<const TensorRef> gradients) = nullptr;
void (*node_failed)(Node& node) = nullptr;
Opaque (*call_pack)(const Opaque& hook, const TensorRef& tensor) = nullptr;
TensorRef (*call_unpack)(const Opaque& hook, const Opaque& value) = nullptr;
Results (*call_context)(Node& node) = nullptr;
BatchedCalls batched_calls;

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
    list_.push_back({id, index, kind, std::move(function)});
    try {
        lists_of_hooks()[id] = this;
    } catch (...) {
        list_.pop_back();
        throw;
    }
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

void call_tensor_hooks(const Extras* extras, std::span<TensorRef> gradients) {
    if (!extras) return;
    for (const Hook& hook : extras->hooks.of(HookKind::tensor)) {
        TensorRef& gradient = gradients[hook.index];
        if (TensorRef changed = call_hook(hook.function, gradient)) gradient = changed;
    }
}

void call_node_hooks(const Extras* extras, HookKind kind, std::span<TensorRef> gradients,
                     const std::span<TensorRef>* got) {
    if (!extras) return;
    for (const Hook& hook : extras->hooks.of(kind)) call_node_hook(hook.function, gradients, got);
}

void call_leaf_hooks(const AutogradMeta& leaf) {
    if (!leaf.extras) return;
    for (const Hook& hook : leaf.extras->hooks.of(HookKind::accumulated))
        if (leaf.owner) {
            const TensorRef found = call_hook(hook.function, TensorRef(leaf.owner));
            KILN_CHECK(!found || found.get() == leaf.owner, runtime,
                       "Tensor post accumulate grad hooks should return None.");
        }
}

TensorRef converted(const TensorRef& gradient, DType dtype) {
    TensorRef out = fresh_tensor(dtype, gradient->sizes);
    Operand operand{gradient.get(), {}};
    return std::move(call(*core_fns().copy, {&operand, 1}, {&out, 1})[0]);
}

std::vector<Pass>& passes() {
    static auto* list = new std::vector<Pass>();
    return *list;
}

namespace {

struct Worker {
    uint64_t thread;
    size_t below = 0;  // passes of that thread on other stacks
    Worker() {
        static uint64_t threads = 0;
        thread = ++threads;
    }
};
thread_local Worker worker;

size_t passes_of(uint64_t thread) {
    return size_t(std::count_if(passes().begin(), passes().end(),
                                [&](const Pass& pass) { return pass.thread == thread; }));
}

}  // namespace

uint64_t this_thread() { return worker.thread; }
void work_for(uint64_t thread) {
    worker.thread = thread;
    worker.below = passes_of(thread);
}
bool nested_too_deeply() {
    const size_t most = 40;  // of calls that Python counts, some ten each
    return passes().size() > most && passes_of(worker.thread) > worker.below + most && !current_recording();
}

Pass* own_pass() {
    for (auto pass = passes().rbegin(); pass != passes().rend(); ++pass)
        if (pass->thread == this_thread()) return &*pass;
    return nullptr;
}

Root root_of(Tensor& root, TensorRef gradient, size_t i, bool batched) {
    Edge edge = edge_of(root);
    KILN_CHECK(edge, runtime, "element ", i, " of tensors does not require grad and does not have a grad_fn");
    if (!gradient) {
        KILN_CHECK(root.numel == 1, runtime,
                   "grad can be implicitly created only for scalar outputs (this one is ",
                   shape_text(root.sizes), "); pass gradient=");
        gradient = full_like(root, 1.0);
    }
    KILN_CHECK(batched || gradient->sizes == root.sizes, runtime, "Mismatch in shape: grad_output[", i,
               "] has a shape of ", shape_text(gradient->sizes), " and output[", i, "] has a shape of ",
               shape_text(root.sizes), ".");
    if (gradient->dtype != root.dtype) gradient = converted(gradient, root.dtype);
    return {std::move(edge), std::move(gradient)};
}

Node* current_node() {
    const Pass* pass = own_pass();
    return pass ? pass->node : nullptr;
}

uint64_t current_run() {
    const Pass* pass = own_pass();
    return pass ? pass->run : 0;
}

bool will_visit(const Edge& edge) {
    const Pass* pass = own_pass();
    if (!pass || !edge) return false;
    if (edge.node ? edge.node->run != pass->run : !pass->has_leaf(pass->engine, edge.leaf.get()))
        return false;
    return is_wanted(edge, pass->inputs, pass->options);
}

}  // namespace kiln
