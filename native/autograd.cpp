#include "autograd.h"

#include <algorithm>
#include <unordered_map>

#include "check.h"
#include "compiler.h"
#include "free_list.h"
#include "record.h"

namespace kiln {

SourceLine (*SourceLine::current)() = nullptr;
std::string (*SourceLine::text)(const SourceLine&) = nullptr;

namespace {

thread_local bool grad_mode = true;
uint64_t next_order = 1;

// The line of the last in-place write of a storage, for the message of a failed version check.
std::unordered_map<const Storage*, SourceLine>& last_writes() {
    static auto* map = new std::unordered_map<const Storage*, SourceLine>();
    return *map;
}

// Nodes are freed from a list, not by recursion: a chain of a million must not need a stack of that depth.
std::vector<Node*>& dying_nodes() {
    static auto* list = new std::vector<Node*>();
    return *list;
}

uint64_t bit(size_t i) { return uint64_t(1) << i; }

SavedTensor save(Tensor& tensor) { return {TensorRef(&tensor), tensor.storage->version}; }

}  // namespace

TensorRef shape_of(const Tensor& tensor) { return new_tensor(tensor.dtype, tensor.sizes, StorageRef()); }

const SourceLine* last_write(const Storage& storage) {
    auto found = last_writes().find(&storage);
    return found == last_writes().end() ? nullptr : &found->second;
}

AutogradMeta::AutogradMeta() = default;
AutogradMeta::~AutogradMeta() {
    if (retains_grad && grad_fn)
        std::erase_if(grad_fn->retains, [&](const auto& r) { return r.first == this; });
}

uint64_t add_hook(Tensor& tensor, Opaque function) {
    static uint64_t next_id = 1;
    KILN_CHECK(tensor.requires_grad(), runtime,
               "cannot register a hook on a tensor that doesn't require gradient");
    Hook hook{next_id++, tensor.meta->output, std::move(function)};
    (tensor.grad_fn() ? tensor.grad_fn()->hooks : tensor.meta->hooks).push_back(hook);
    return hook.id;
}

void remove_hook(AutogradMeta& meta, uint64_t id) {
    auto named = [&](const Hook& hook) { return hook.id == id; };
    std::erase_if(meta.hooks, named);
    if (meta.grad_fn) std::erase_if(meta.grad_fn->hooks, named);
}

void retain_grad(Tensor& tensor) {
    KILN_CHECK(tensor.requires_grad(), runtime, "can't retain_grad on Tensor that has requires_grad=False");
    if (!tensor.grad_fn() || tensor.meta->retains_grad) return;
    tensor.meta->retains_grad = true;
    tensor.grad_fn()->retains.emplace_back(tensor.meta.get(), tensor.meta->output);
}

AutogradMeta* new_meta() { return FreeList<AutogradMeta>::make(); }

void release(AutogradMeta* meta) { FreeList<AutogradMeta>::drop(meta); }

void release(Node* node) {
    auto& dying = dying_nodes();
    static bool draining = false;
    dying.push_back(node);
    if (draining) return;
    draining = true;
    while (!dying.empty()) {
        Node* next = dying.back();
        dying.pop_back();
        FreeList<Node>::drop(next);
    }
    draining = false;
}

SavedHooks& saved_hooks() {
    thread_local SavedHooks* hooks =
        new SavedHooks();  // not destroyed: a thread may end after the interpreter
    return *hooks;
}

bool grad_enabled() { return grad_mode; }

bool set_grad_enabled(bool enabled) { return std::exchange(grad_mode, enabled); }

// A view takes part if what it views does.
bool takes_part(const Tensor& tensor) {
    return (tensor.meta && tensor.requires_grad()) || (tensor.base && tensor.base->grad_fn());
}

bool needs_gradient(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    if (fn.op && !fn.op->differentiable) return false;
    for (const Operand& operand : operands)
        if (operand.tensor && takes_part(*operand.tensor)) return true;
    for (const TensorRef& target : out)
        if (takes_part(*target)) return true;
    return false;
}

Edge edge_of(Tensor& tensor) {
    if (!tensor.meta && !(tensor.base && tensor.base->grad_fn())) return {};
    if (Node* node = up_to_date_grad_fn(tensor)) return {NodeRef(node), nullptr, tensor.meta->output};
    if (tensor.meta && tensor.meta->requires_grad) return {nullptr, tensor.meta, 0};
    return {};
}

void set_base(Tensor& view, Tensor& x) {
    if (view.storage != x.storage) return;
    view.base = x.base ? x.base : TensorRef(&x);
    view.base_order = view.base->grad_fn() ? view.base->grad_fn()->order : 0;
}

void set_history(Tensor& tensor, const NodeRef& node, uint32_t index) {
    AutogradMeta& meta = ensure_meta(tensor);
    meta.grad_fn = node;
    meta.output = index;
}

void prepare_write(const Fn& fn, const Tensor& target, std::span<const Operand> operands) {
    KILN_CHECK(!target.storage->read_only, runtime, fn.name,
               ": the tensor's memory is read-only; use .clone() first");
    KILN_CHECK(
        !overlaps_itself(target), runtime,
        "unsupported operation: more than one element of the written-to tensor refers to a single memory "
        "location. Please clone() the tensor before performing the operation.");
    if (fn.cls != FnClass::pointwise) return;  // others have read everything before they write
    for (const Operand& operand : operands)
        KILN_CHECK(!operand.tensor || !overlaps_partly(target, *operand.tensor), runtime,
                   "unsupported operation: some elements of the input tensor and the written-to tensor refer "
                   "to a single "
                   "memory location. Please clone() the tensor before performing the operation.");
}

void wrote(Tensor& target) {
    if (target.untracked) return;
    ++target.storage->version;
    if (last_writes().size() > 4096) last_writes().clear();
    last_writes()[target.storage.get()] = SourceLine::current();
}

namespace {

void check_in_place(const Fn& fn, const TensorRef& target) {
    auto is_leaf = [](const Tensor& x) { return x.requires_grad() && !x.grad_fn(); };
    KILN_CHECK(!is_leaf(*target), runtime,
               "a leaf Variable that requires grad is being used in an in-place operation (", fn.name,
               "); do it under no_grad(), or on a clone()");
    KILN_CHECK(!target->base || !is_leaf(*target->base), runtime,
               "a view of a leaf Variable that requires grad is being used in an in-place operation (",
               fn.name, "); do it under no_grad(), or on a clone()");
}

// Which operands, outputs and hidden outputs the backward will read.
struct Wanted {
    uint64_t inputs = 0, outputs = 0, hidden = 0;
};

Wanted wanted_by(const Saves& saves, uint64_t needed) {
    Wanted wanted;
    for (size_t i = 0; i < saves.inputs.size(); ++i) {
        if (!(needed & bit(i))) continue;
        wanted.inputs |= saves.inputs[i];
        wanted.outputs |= saves.outputs[i];
        wanted.hidden |= saves.hiddens[i];
    }
    return wanted;
}

// Of a pointwise call only dtypes and which operands are 0-d or numbers matter: one word, if they are few.
uint64_t point_look(const Fn& fn, std::span<const Operand> operands) {
    constexpr size_t most = 7;
    if (fn.cls != FnClass::pointwise || operands.size() > most) return 0;
    uint64_t code = 1;
    for (const Operand& operand : operands)
        code = code << 8 |
               (operand.tensor ? uint64_t(operand.tensor->dtype) | uint64_t(operand.tensor->ndim() > 0) << 5
                               : 64 | uint64_t(operand.number.kind));
    return code;
}

const Saves& saves_of(Fn& fn, std::span<const Operand> operands) {
    static auto* table = new Table<Saves>();
    uint64_t code = point_look(fn, operands);
    if (code && code == fn.saves_code) return *fn.last_saves;
    Key key;
    key.push(fn.id);
    key.push(code);
    for (const Operand& operand : operands)
        if (!code) describe(operand, key);
    const Saves* saves = table->find(key);
    if (!saves) saves = table->insert(key, compiler::saves({&fn, operands}));
    fn.saves_code = code;
    fn.last_saves = saves;
    return *saves;
}

// Whether a call that writes `out` changes what `tensor` holds.
bool overwritten(const Tensor& tensor, std::span<const TensorRef> out) {
    return std::any_of(out.begin(), out.end(),
                       [&](const TensorRef& t) { return t->storage == tensor.storage; });
}

TensorRef copy_of(Tensor& tensor) {
    Operand operand{&tensor, {}};
    return std::move(run(*core_fns().copy, {&operand, 1})[0]);
}

// Whether all arrays have one shape (0-d arrays aside), which is then the result's.
bool one_shape(std::span<const Operand> operands) {
    const Tensor* first = nullptr;
    for (const Operand& operand : operands) {
        if (!operand.tensor || operand.tensor->ndim() == 0) continue;
        if (first && !(operand.tensor->sizes == first->sizes)) return false;
        first = operand.tensor;
    }
    return true;
}

// A node with its edges and inputs; outputs are added when they exist.
NodeRef record_inputs(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                      const Saves& saves, const Wanted& wanted) {
    bool same_shape = fn.cls == FnClass::pointwise && out.empty() && one_shape(operands);
    NodeRef node(FreeList<Node>::make());
    node->fn = &fn;
    node->order = next_order++;
    node->line = SourceLine::current();
    for (size_t i = 0; i < operands.size(); ++i) {
        NodeInput& input = node->inputs.emplace_back();
        Tensor* tensor = operands[i].tensor;
        if (!tensor) {
            input.is_number = true;
            input.number = operands[i].number;
            continue;
        }
        if (saves.differentiable[i]) input.edge = edge_of(*tensor);
        input.dtype = tensor->dtype;
        input.dimensioned = tensor->ndim() > 0;
        if (wanted.inputs & bit(i))
            input.saved = overwritten(*tensor, out) ? save(*copy_of(*tensor)) : save(*tensor);
        else if (!(same_shape && input.dimensioned))
            input.saved.tensor = shape_of(*tensor);
    }
    return node;
}

void record_outputs(Node& node, const Wanted& wanted, Results& results, size_t outputs) {
    node.outputs = uint32_t(outputs);
    for (size_t k = 0; k < outputs; ++k) {
        if (wanted.outputs) {
            SavedTensor& saved = node.saved_outputs.emplace_back();
            // An alias without history: a node must not own itself.
            if (wanted.outputs & bit(k)) saved = save(*alias(*results[k]));
        }
    }
    for (size_t h = outputs; h < results.size(); ++h) node.hidden.push_back(save(*results[h]));
}

// Gives what the node saved to the hooks, which keep it in their way.
void pack_saved(Node& node) {
    const SavedHooks hooks = saved_hooks();
    node.packed = std::make_unique<std::vector<Packed>>();
    auto pack = [&](SavedTensor& saved) {
        if (!saved.tensor || !saved.tensor->storage) return;
        Opaque value = call_pack(hooks.pack, saved.tensor);
        saved.tensor = shape_of(*saved.tensor);
        node.packed->push_back({saved.tensor, std::move(value), hooks.unpack});
    };
    for (NodeInput& input : node.inputs) pack(input.saved);
    for (SavedTensor& saved : node.saved_outputs) pack(saved);
    for (SavedTensor& saved : node.hidden) pack(saved);
}

// ---- writes through views ----

// The numbers that place a view in its base: strides and offset, before them the sizes if asked for.
void place_in_base(const Tensor& view, bool with_sizes, Operands& operands) {
    auto push = [&](int64_t value) { operands.push_back({nullptr, Number::of(value)}); };
    KILN_CHECK(view.base->contiguous, not_implemented,
               "an in-place operation on a view of a tensor that is not contiguous is not differentiable "
               "yet; use clone()");
    if (with_sizes)
        for (int64_t size : view.sizes) push(size);
    for (int64_t stride : view.strides) push(stride);
    push(view.offset - view.base->offset);
}

// Makes the view's history that of as_strided(base), after base's own changed.
void view_of_base(Tensor& view) {
    Tensor& base = *view.base;
    Operands operands;
    operands.push_back({&base, {}});
    place_in_base(view, true, operands);
    std::span<const Operand> given(operands.data(), operands.size());
    Fn& fn = *core_fns().as_strided(view.ndim());
    NodeRef node = record_inputs(fn, given, {}, saves_of(fn, given), {});
    set_history(view, node, 0);
    view.base_order = base.grad_fn() ? base.grad_fn()->order : 0;
}

// After a write through a view: base is write(base, view), and the view a view of that.
void write_to_base(Tensor& view) {
    Tensor& base = *view.base;
    Operands operands;
    operands.push_back({&base, {}});
    operands.push_back({&view, {}});
    place_in_base(view, false, operands);
    std::span<const Operand> given(operands.data(), operands.size());
    Fn& fn = *core_fns().write(view.ndim());
    view.base_order = base.grad_fn() ? base.grad_fn()->order : 0;  // its history is the write's, not base's
    NodeRef node = record_inputs(fn, given, {}, saves_of(fn, given), {});
    set_history(base, node, 0);
    view_of_base(view);
}

}  // namespace

Node* up_to_date_grad_fn(Tensor& tensor) {
    if (tensor.base) {
        Node* base = tensor.base->grad_fn();
        if ((base ? base->order : 0) != tensor.base_order) view_of_base(tensor);
    }
    return tensor.grad_fn();
}

Results call_with_gradient(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (const TensorRef& target : out) check_in_place(fn, target);
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    const Saves& saves = saves_of(fn, operands);
    uint64_t needed = 0;
    for (size_t i = 0; i < operands.size(); ++i)
        if (operands[i].tensor && saves.differentiable[i] && edge_of(*operands[i].tensor)) needed |= bit(i);
    if (!needed && out.empty()) return run(fn, operands);
    Wanted wanted = wanted_by(saves, needed);
    NodeRef node = record_inputs(fn, operands, out, saves, wanted);
    Results results;
    {
        bool mode = set_grad_enabled(false);
        struct Restore {
            bool mode;
            ~Restore() { grad_mode = mode; }
        } restore{mode};
        results = run(fn, operands, out, saves.hidden > 0 && wanted.hidden);
    }
    for (const TensorRef& target : out) wrote(*target);
    size_t outputs = out.empty() ? fn.outputs : out.size();
    record_outputs(*node, wanted, results, outputs);
    while (results.size() > outputs) results.resize(outputs);
    if (saved_hooks().pack.object) [[unlikely]]
        pack_saved(*node);
    for (size_t k = 0; k < outputs; ++k) {
        if (!is_float(results[k]->dtype)) continue;
        set_history(*results[k], node, uint32_t(k));
        if (!out.empty() && results[k]->base) write_to_base(*results[k]);
        if (fn.cls == FnClass::view) set_base(*results[k], *operands[0].tensor);
    }
    return results;
}

}  // namespace kiln
