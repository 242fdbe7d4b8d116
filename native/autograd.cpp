#include "autograd.h"

#include <algorithm>
#include <unordered_map>

#include "check.h"
#include "compiler.h"
#include "free_list.h"
#include "hooks.h"
#include "pointwise.h"
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

SavedTensor save(Tensor& tensor) {
    KILN_CHECK(
        !tensor.storage->inference, runtime,
        "Inference tensors cannot be saved for backward. Please do not use Tensors created in "
        "inference mode in computation tracked by autograd. To work around this, you can make a clone "
        "to get a normal tensor and use it in autograd, or use no_grad() instead of inference_mode().");
    return {TensorRef(&tensor), tensor.storage->version};
}

}  // namespace

TensorRef shape_of(const Tensor& tensor) { return new_tensor(tensor.dtype, tensor.sizes, StorageRef()); }

const SourceLine* last_write(const Storage& storage) {
    auto found = last_writes().find(&storage);
    return found == last_writes().end() ? nullptr : &found->second;
}

Tensor::Tensor() = default;
Tensor::~Tensor() {
    if (meta && meta->owner == this) meta->owner = nullptr;
}
AutogradMeta::AutogradMeta() = default;
AutogradMeta::~AutogradMeta() {
    if (retained) std::erase_if(retained->extras->retains, [&](const auto& r) { return r.first == this; });
}

AutogradMeta* new_meta() { return FreeList<AutogradMeta>::make(); }

void release(Tensor* tensor) { FreeList<Tensor>::drop(tensor); }

void release(AutogradMeta* meta) {
    drop_in_turn(meta, &AutogradMeta::next_dying, FreeList<AutogradMeta>::drop);
}

void release(Node* node) { drop_in_turn(node, &Node::next_dying, FreeList<Node>::drop); }

SavedHooks& saved_hooks() {
    thread_local SavedHooks* hooks =
        new SavedHooks();  // not destroyed: a thread may end after the interpreter
    return *hooks;
}

bool grad_enabled() { return grad_mode; }

bool set_grad_enabled(bool enabled) { return std::exchange(grad_mode, enabled && !inference_mode()); }

Modes modes() { return {grad_mode, inference_mode()}; }

void set_modes(Modes modes) {
    set_inference_mode(modes.inference);
    set_grad_enabled(modes.grad);
}

bool takes_part(const Tensor& tensor) {
    return tensor.requires_grad() || (tensor.base && tensor.base->requires_grad());
}

bool needs_gradient(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (const TensorRef& target : out)  // a write without derivative ends the history of what it writes over
        if (takes_part(*target)) return true;
    if (fn.op && !fn.op->differentiable) return false;
    for (const Operand& operand : operands)
        if (operand.tensor && takes_part(*operand.tensor)) return true;
    return false;
}

Edge edge_of(Tensor& tensor) {
    if (Node* node = up_to_date_grad_fn(tensor)) return {NodeRef(node), nullptr, tensor.output};
    if (tensor.meta && tensor.meta->requires_grad) return {nullptr, tensor.meta, 0};
    return {};
}

void set_base(Tensor& view, Tensor& x) {
    if (view.storage != x.storage) return;
    view.base = x.base ? x.base : TensorRef(&x);
    view.base_order = view.base->node ? view.base->node->order : 0;
    view.made = inference_mode() ? Made::inference
                : !grad_mode     ? Made::unrecorded
                : x.base         ? x.made
                                 : Made::recorded;
}

void set_history(Tensor& tensor, const NodeRef& node, uint32_t index) {
    tensor.node = node;
    tensor.output = index;
    if (tensor.meta && tensor.meta->retained) [[unlikely]]
        retain_at(*tensor.meta, node, index);
}

namespace {

constexpr const char* one_place =
    "unsupported operation: more than one element of the written-to tensor refers to a single memory "
    "location. Please clone() the tensor before performing the operation.";

}  // namespace

void prepare_write(const Fn& fn, const Tensor& target, std::span<const Operand> operands) {
    KILN_CHECK(!target.storage->read_only, runtime, fn.name,
               ": the tensor's memory is read-only; use .clone() first");
    KILN_CHECK(!is_expanded(target), runtime, one_place);
    KILN_CHECK(!target.storage->inference || inference_mode(), runtime,
               "Inplace update to inference tensor outside "
               "InferenceMode is not allowed. You can make a clone to get a normal tensor before doing "
               "inplace update.");
    target.storage->below = 0;
    if (fn.cls != FnClass::pointwise) return;  // others have read everything before they write
    for (const Operand& operand : operands)
        KILN_CHECK(!operand.tensor || !overlaps_partly(target, *operand.tensor), runtime,
                   "unsupported operation: some elements of the input tensor and the written-to tensor refer "
                   "to a single "
                   "memory location. Please clone() the tensor before performing the operation.");
}

void wrote(Tensor& target) {
    target.storage->below = 0;  // again: another thread may have looked before the elements were written
    if (target.untracked || target.storage->inference) return;
    ++target.storage->version;
    if (last_writes().size() > 4096) last_writes().clear();
    last_writes()[target.storage.get()] = SourceLine::current();
}

namespace {

// Whether a view may be written, or follow what it views: not if that would put another derivative in the
// place of the one a user's function says, if the view was made where nothing is recorded, or if it is one of
// several whose node could not be replaced for it alone. `what`: who is modified.
void check_view(const Tensor& view, const char* what) {
    const bool user = view.node && view.node->context.object;
    if (!user && view.made == Made::recorded) return;
    const bool inference = view.made == Made::inference;
    const bool unrecorded = inference || view.made == Made::unrecorded || !view.node;
    const std::string which = view.node ? concat("Output ", view.output, " of ", view.node->fn->name,
                                                 user ? "Backward" : "", " is a view ")
                                        : "A view ";
    const std::string how = unrecorded ? concat(view.node ? "of a view which " : "", "was created in ",
                                                inference ? "inference" : "no_grad", " mode and ", what,
                                                " modified inplace with grad mode enabled. ")
                                       : concat("and ", what, " modified inplace. ");
    raise(
        ErrorKind::runtime,
        concat(
            which, how,
            user ? "This view was created inside a custom Function (or because an input was returned as-is) "
                   "and following the change would override the function's own backward; clone() the output "
                   "of the custom Function."
            : view.made == Made::one_of_several
                ? "This view is the output of a function that returns multiple views. Such functions do not "
                  "allow the output views to be modified inplace. You should replace the inplace operation "
                  "by an out-of-place one, or take the views one by one (x[0], x[1:3])."
                : concat(
                      "Given that this use case is ambiguous and error-prone, it is forbidden. Do both, the "
                      "view and the write, inside the ",
                      inference ? "inference_mode" : "no_grad",
                      " block (if the write is not to be tracked) or outside (if it is).")));
}

void place_in_base(const Tensor& view, bool with_sizes, Operands& operands);

}  // namespace

void check_in_place(const std::string& name, const Tensor& target) {
    if (target.base) check_view(target, "is being");
    const bool of_leaf = target.base && !target.base->node && takes_part(target);
    KILN_CHECK(!(target.requires_grad() && !target.node) && !of_leaf, runtime,
               of_leaf ? "a view of a leaf" : "a leaf",
               " Variable that requires grad is being used in an in-place operation (", name,
               "); do it under no_grad(), or on a clone()");
    // Which of the elements at one place the gradient belongs to, no rule says.
    KILN_CHECK(!overlaps_itself(target), runtime, one_place);
    if (!target.base || target.base->contiguous) return;
    Operands unused;
    place_in_base(target, false, unused);  // raises here what it would raise after the write
}

namespace {

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

// Of a pointwise call only dtypes matter, and which operands are 0-d or numbers.
const Saves& saves_of(Fn& fn, std::span<const Operand> operands) {
    static auto* table = new Table<Saves>();
    Key key;
    key.push(fn.id);
    if (fn.cls == FnClass::pointwise && operands.size() <= Look::most) {
        Look look;
        for (const Operand& operand : operands) look.add(operand);
        key.push(look);
    } else {
        for (const Operand& operand : operands) describe(operand, key);
    }
    const Saves* saves = table->find(key);
    if (!saves) saves = table->insert(key, compiler::saves({&fn, operands}));
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

constexpr int unknown = -1;

// How many dims the results have, where arrays with as many surely have the results' shape.
int common_ndim(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    const Dims* shape = fn.cls == FnClass::pointwise && out.empty() ? common_shape(operands) : nullptr;
    return shape ? shape->ndim() : unknown;
}

NodeRef new_node(Fn& fn) {
    NodeRef node(FreeList<Node>::make());
    node->fn = &fn;
    node->line = SourceLine::current();
    if (anomaly_mode) [[unlikely]]
        note_node(*node, current_node());
    return node;
}

// A node with its edges and inputs; outputs are added when they exist.
NodeRef record_inputs(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                      const Saves& saves, const Wanted& wanted, int result_ndim) {
    NodeRef node = new_node(fn);
    for (size_t i = 0; i < operands.size(); ++i) {
        Tensor* tensor = operands[i].tensor;
        if (!tensor) {
            NodeInput& input = node->inputs.emplace_back();
            input.is_number = true;
            input.number = operands[i].number;
            continue;
        }
        NodeInput& input =
            node->inputs.emplace_back(saves.differentiable & bit(i) ? edge_of(*tensor) : Edge());
        input.dtype = tensor->dtype;
        input.dimensioned = tensor->ndim() > 0;
        input.like_result = tensor->ndim() == result_ndim;
        if (wanted.inputs & bit(i))
            input.saved = overwritten(*tensor, out) ? save(*copy_of(*tensor)) : save(*tensor);
        else if (!input.like_result)
            input.saved.tensor = shape_of(*tensor);
    }
    node->order = next_order++;  // later than those that edges of views changed meanwhile have made
    return node;
}

// Results and their history; what is saved of them has none: a node must not own itself.
void record_outputs(const NodeRef& node, const Wanted& wanted, std::span<const TensorRef> results) {
    node->outputs = uint32_t(results.size());
    for (size_t k = 0; k < results.size(); ++k) {
        if (wanted.outputs) {
            SavedTensor& saved = node->saved_outputs.emplace_back();
            if (wanted.outputs & bit(k)) saved = save(*alias(*results[k]));
        }
        if (is_float(results[k]->dtype)) set_history(*results[k], node, uint32_t(k));
    }
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

// The dims of a tensor with more than one element, widest step first; raises if elements share memory.
SmallVector<int, 6> dims_by_step(const Tensor& x) {
    SmallVector<int, 6> dims;
    for (int d = 0; d < x.ndim(); ++d)
        if (x.sizes[d] > 1) dims.push_back(d);
    std::sort(dims.begin(), dims.end(), [&](int a, int b) { return x.strides[a] > x.strides[b]; });
    int64_t reach = 0;  // of the narrower dims
    for (size_t i = dims.size(); i-- > 0; reach += (x.sizes[dims[i]] - 1) * x.strides[dims[i]])
        KILN_CHECK(x.strides[dims[i]] > reach, runtime, one_place);
    return dims;
}

// The numbers that place a view among its base's elements in order: strides and offset, before them the sizes
// if asked for. A step in memory is taken apart into the base's own, widest first.
void place_in_base(const Tensor& view, bool with_sizes, Operands& operands) {
    const Tensor& base = *view.base;
    const bool plain = base.contiguous;
    const SmallVector<int, 6> dims = plain ? SmallVector<int, 6>() : dims_by_step(base);
    const Dims in_order = plain ? Dims() : contiguous_strides(base.sizes);
    auto push = [&](int64_t value) { operands.push_back({nullptr, Number::of(value)}); };
    auto push_step = [&](int64_t step) {
        if (plain) return push(step);
        int64_t found = 0;
        for (int d : dims) {
            found += step / base.strides[d] * in_order[d];
            step %= base.strides[d];
        }
        KILN_CHECK(!step, not_implemented,
                   "an in-place operation on a view of memory between the elements of what it views is not "
                   "differentiable; use clone()");
        push(found);
    };
    if (with_sizes)
        for (int64_t size : view.sizes) push(size);
    for (int d = 0; d < view.ndim(); ++d) push_step(view.sizes[d] > 1 ? view.strides[d] : 0);
    push_step(view.numel ? view.offset - base.offset : 0);
}

// Makes the view's history that of as_strided(base), after base's own changed.
void view_of_base(Tensor& view) {
    Tensor& base = *view.base;
    Operands operands;
    operands.push_back({&base, {}});
    place_in_base(view, true, operands);
    Fn& fn = *core_fns().as_strided(view.ndim());
    NodeRef node = record_inputs(fn, operands, {}, saves_of(fn, operands), {}, unknown);
    set_history(view, node, 0);
    view.base_order = base.node ? base.node->order : 0;
}

// After a write through a view: base is write(base, view), and the view a view of that.
void write_to_base(Tensor& view) {
    Tensor& base = *view.base;
    Operands operands;
    operands.push_back({&base, {}});
    operands.push_back({&view, {}});
    place_in_base(view, false, operands);
    Fn& fn = *core_fns().write(view.ndim());
    view.base_order = base.node ? base.node->order : 0;  // its history is the write's, not base's
    NodeRef node = record_inputs(fn, operands, {}, saves_of(fn, operands), {}, unknown);
    set_history(base, node, 0);
    view_of_base(view);
}

}  // namespace

TensorRef become(Tensor& x, const Tensor& view, const char* name) {
    if (grad_mode && takes_part(x)) check_in_place(name, x);
    wrote(x);
    TensorRef changed = alias(view);
    const bool seen = x.refcount > 1u + (view.base.get() == &x);  // by views of it, or by a graph
    if (x.base || (seen && !(x.meta && x.meta->requires_grad))) {
        changed->base = view.base;
        changed->base_order = view.base_order;
    }
    changed->made = x.made;
    changed->untracked = x.untracked;
    changed->meta = x.meta;
    set_history(*changed, view.node, view.output);
    return changed;
}

Node* up_to_date_grad_fn(Tensor& tensor) {
    if (tensor.base) {
        Node* base = tensor.base->node.get();
        if ((base ? base->order : 0) != tensor.base_order) {
            check_view(tensor, "its base or another view of its base has been");
            view_of_base(tensor);
        }
    }
    return tensor.node.get();
}

std::vector<SavedPlace> record_user(UserCall& call) {
    auto place = [](const std::vector<TensorRef>& list, const TensorRef& x) {
        return size_t(std::find(list.begin(), list.end(), x) - list.begin());
    };
    for (const TensorRef& target : call.dirty) check_in_place(call.fn->name, *target);
    NodeRef node = new_node(*call.fn);
    node->context = std::move(call.context);
    for (const TensorRef& x : call.inputs) {
        NodeInput& input = node->inputs.emplace_back(edge_of(*x));
        input.dtype = x->dtype;
        input.saved.tensor = shape_of(*x);
    }
    node->order = next_order++;  // later than its edges'
    node->outputs = uint32_t(call.results.size());
    node->saved_outputs.resize(call.results.size());
    std::vector<SavedPlace> places;
    for (const TensorRef& x : call.saved) {
        size_t result = place(call.results, x), input = place(call.inputs, x);
        if (result < call.results.size()) {  // without history: a node must not own itself
            node->saved_outputs[result] = save(*alias(*x));
            places.emplace_back(Source::output, result);
        } else if (input < call.inputs.size()) {
            node->inputs[input].saved = save(*x);
            places.emplace_back(Source::input, input);
        } else {
            places.emplace_back(Source::hidden, node->hidden.size());
            node->hidden.push_back(save(*x));
        }
    }
    for (size_t k = 0; k < call.results.size(); ++k) {
        Tensor& y = *call.results[k];
        set_history(y, node, uint32_t(k));
        if (place(call.dirty, call.results[k]) < call.dirty.size()) {
            if (y.base) write_to_base(y);
            continue;
        }
        for (const TensorRef& x : call.inputs)
            if (x->storage == y.storage) set_base(y, *x);
    }
    if (saved_hooks().pack.object) pack_saved(*node);
    return places;
}

void call_flat(Fn& fn, FlatCall& flat, std::span<const Operand> operands, TensorRef* results) {
    uint64_t needed = 0;
    if (grad_mode && !(fn.op && !fn.op->differentiable))
        for (size_t i = 0; i < operands.size(); ++i)
            if (operands[i].tensor && takes_part(*operands[i].tensor)) needed |= bit(i);
    flat.run(fn, operands, {}, results);
    if (!needed) return;
    auto& found = fn.last.saves;
    if (!found.saves || found.look != flat.look || found.needed != needed) {
        const Saves& saves = saves_of(fn, operands);
        found = {flat.look, needed, &saves, wanted_by(saves, needed & saves.differentiable)};
    }
    if (!(needed & found.saves->differentiable)) return;
    const int ndim = flat.shape ? flat.shape->ndim() : 0;
    NodeRef node = record_inputs(fn, operands, {}, *found.saves, found.wanted, ndim);
    record_outputs(node, found.wanted, {results, fn.outputs});
    if (saved_hooks().pack.object) [[unlikely]]
        pack_saved(*node);
}

Results call_with_gradient(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (const TensorRef& target : out) check_in_place(fn.name, *target);
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    uint64_t needed = 0;
    for (size_t i = 0; i < operands.size(); ++i) {
        if (!operands[i].tensor || !takes_part(*operands[i].tensor)) continue;
        KILN_CHECK(bit(i), not_implemented, fn.name, ": argument ", i,
                   " requires a gradient, which only the first 64 can have; use several calls");
        needed |= bit(i);
    }
    const Saves& saves = saves_of(fn, operands);
    needed &= saves.differentiable;
    if (!needed && out.empty()) return run(fn, operands);
    Wanted wanted = wanted_by(saves, needed);
    NodeRef node = record_inputs(fn, operands, out, saves, wanted, common_ndim(fn, operands, out));
    Results results;
    {
        struct Restore {
            bool mode = set_grad_enabled(false);
            ~Restore() { set_grad_enabled(mode); }
        } restore;
        results = run(fn, operands, out, saves.hidden > 0 && wanted.hidden);
    }
    for (const TensorRef& target : out) wrote(*target);
    size_t outputs = out.empty() ? fn.outputs : out.size();
    for (size_t h = outputs; h < results.size(); ++h) node->hidden.push_back(save(*results[h]));
    results.resize(outputs);
    record_outputs(node, wanted, {results.data(), outputs});
    if (saved_hooks().pack.object) [[unlikely]]
        pack_saved(*node);
    for (size_t k = 0; k < outputs; ++k) {
        if (!is_float(results[k]->dtype)) continue;
        if (!out.empty() && results[k]->base) write_to_base(*results[k]);
        if (fn.cls == FnClass::view) set_base(*results[k], *operands[0].tensor);
    }
    return results;
}

}  // namespace kiln
