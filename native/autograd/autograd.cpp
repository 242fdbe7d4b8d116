#include "autograd/autograd.h"

#include <algorithm>

#include "autograd/hooks.h"
#include "autograd/inplace.h"
#include "base/check.h"
#include "batch/list.h"
#include "call/compiler.h"
#include "call/pointwise.h"

namespace kiln {

namespace {

thread_local bool grad_mode = true;
constinit thread_local Autocast autocast_mode;
uint64_t next_order = 1;

}  // namespace

bool grad_enabled() { return grad_mode; }

bool set_grad_enabled(bool enabled) { return std::exchange(grad_mode, enabled && !inference_mode()); }

Modes modes() { return {grad_mode, inference_mode(), autocast_mode}; }

void set_modes(Modes modes) {
    set_inference_mode(modes.inference);
    set_grad_enabled(modes.grad);
    autocast_mode = modes.autocast;
    if (modes.autocast.on) autocast_used = true;
}

const Autocast& autocast() { return autocast_mode; }
AutocastOff::AutocastOff() : before_(std::exchange(autocast_mode.on, false)) {}
AutocastOff::~AutocastOff() { autocast_mode.on = before_; }

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

namespace {

Wanted wanted_by(const Saves& saves, const BitSet& needed) {
    Wanted wanted;
    for (size_t i = 0; i < saves.inputs.size(); ++i) {
        if (!needed.has(i)) continue;
        wanted.inputs |= saves.inputs[i];
        wanted.outputs |= saves.outputs[i];
        wanted.hidden |= saves.hiddens[i];
    }
    return wanted;
}

// Of a pointwise call only dtypes matter, and which operands are 0-d or numbers. Of views and joins nobody
// has to be asked: their derivatives read no value.
const Saves& saves_of(Fn& fn, std::span<const Operand> operands) {
    static const Saves of_view{.inputs = {}, .outputs = {}, .hiddens = {}, .differentiable = BitSet::of(0)},
        of_join;
    if (fn.cls == FnClass::view) return of_view;
    if (fn.cls == FnClass::join) return of_join;
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

// Of a join all operands have gradients.
bool is_differentiable(const Fn& fn, const Saves& saves, size_t operand) {
    return fn.cls == FnClass::join || saves.differentiable.has(operand);
}

// Whether a call that writes `out` changes what `tensor` holds.
bool overwritten(const Tensor& tensor, std::span<const TensorRef> out) {
    return std::any_of(out.begin(), out.end(),
                       [&](const TensorRef& t) { return t->storage == tensor.storage; });
}

constexpr int unknown = -1;

// How many dims the results have, where arrays with as many surely have the results' shape.
int common_ndim(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    const Dims* shape = fn.cls == FnClass::pointwise && out.empty() ? common_shape(operands) : nullptr;
    return shape ? shape->ndim() : unknown;
}

void give_order(Node& node) {
    node.order = take_order();
    if (!lists_in_use) [[likely]]
        return;
    if (Item* item = listing_of_thread().item) node.call = item->take_place();
}

// A node with its edges and inputs; outputs are added when they exist.
NodeRef record_inputs(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                      const Saves& saves, const Wanted& wanted, int result_ndim) {
    NodeRef node = new_node(fn);
    node->inputs.reserve(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) {
        Tensor* tensor = operands[i].tensor;
        if (!tensor) {
            NodeInput& input = node->inputs.emplace_back();
            input.is_number = true;
            input.number = operands[i].number;
            continue;
        }
        NodeInput& input =
            node->inputs.emplace_back(is_differentiable(fn, saves, i) ? edge_of(*tensor) : Edge());
        input.dtype = tensor->dtype;
        input.dimensioned = tensor->ndim() > 0;
        input.like_result = tensor->ndim() == result_ndim;
        if (wanted.inputs.has(i))
            input.saved = overwritten(*tensor, out) ? save(*copy_of(*tensor)) : save(*tensor);
        else if (!input.like_result)
            input.saved.tensor = shape_of(*tensor);
    }
    give_order(*node);  // later than those that edges of views changed meanwhile have made
    return node;
}

// Results and their history; what is saved of them has none: a node must not own itself.
void record_outputs(const NodeRef& node, const Wanted& wanted, std::span<const TensorRef> results) {
    node->outputs = uint32_t(results.size());
    node->line.call = call_numbers.call;
    for (size_t k = 0; k < results.size(); ++k) {
        if (wanted.outputs) {
            SavedTensor& saved = node->saved_outputs.emplace_back();
            if (wanted.outputs.has(k)) saved = save(*alias(*results[k]));
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
        Opaque value = callbacks.pack(hooks.pack, saved.tensor);
        saved.tensor = shape_of(*saved.tensor);
        node.packed->push_back({saved.tensor, std::move(value), hooks.unpack});
    };
    for (NodeInput& input : node.inputs) pack(input.saved);
    for (SavedTensor& saved : node.saved_outputs) pack(saved);
    for (SavedTensor& saved : node.hidden) pack(saved);
}

}  // namespace

BitSet differentiable_operands(Fn& fn, std::span<const Operand> operands) {
    return fn.cls == FnClass::join ? BitSet::below(operands.size()) : saves_of(fn, operands).differentiable;
}

BitSet saved_operands(Fn& fn, std::span<const Operand> operands, const BitSet& needed) {
    BitSet read;
    const Saves& saves = saves_of(fn, operands);
    for (size_t i = 0; i < saves.inputs.size(); ++i)
        if (needed.has(i)) read |= saves.inputs[i];
    return read;
}

uint64_t take_order(uint64_t count) { return std::exchange(next_order, next_order + count); }

NodeRef record_edges(Fn& fn, std::span<const Operand> operands) {
    return record_inputs(fn, operands, {}, saves_of(fn, operands), {}, unknown);
}

std::vector<SavedPlace> record_user(UserCall& call) {
    auto place = [](const std::vector<TensorRef>& list, const TensorRef& x) {
        return size_t(std::find(list.begin(), list.end(), x) - list.begin());
    };
    for (const TensorRef& target : call.dirty) check_in_place(call.fn->name, *target);
    for (const TensorRef& y : call.results)
        if (y->node.get() == listed_history() && is_listed(*y->storage)) run_list_of(*y->storage);
    NodeRef node = new_node(*call.fn);
    node->context = std::move(call.context);
    for (const TensorRef& x : call.inputs) {
        NodeInput& input = node->inputs.emplace_back(edge_of(*x));
        input.dtype = x->dtype;
        input.saved.tensor = shape_of(*x);
    }
    give_order(*node);  // later than its edges'
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
            if (x->storage == y.storage) {
                set_base(y, *x);
                y.made = Made::of_user;
            }
    }
    if (saved_hooks().pack.object) pack_saved(*node);
    return places;
}

void call_flat(Fn& fn, FlatCall& flat, std::span<const Operand> operands, TensorRef* results) {
    uint64_t needed = 0;
    if (grad_mode && !(fn.op && !fn.op->differentiable))
        for (size_t i = 0; i < operands.size(); ++i)
            if (operands[i].tensor && takes_part(*operands[i].tensor)) needed |= uint64_t(1) << i;
    flat.run(fn, operands, {}, results);
    if (!needed) return;
    auto& found = fn.last.saves;
    if (!found.saves || found.look != flat.look || found.needed != needed) {
        const Saves& saves = saves_of(fn, operands);
        BitSet given = saves.differentiable;
        for (size_t i = 0; i < operands.size(); ++i)
            if (!(needed >> i & 1)) given.remove(i);
        found = {flat.look, needed, &saves, wanted_by(saves, given)};
    }
    if (!(needed & found.saves->differentiable.first())) return;
    const int ndim = flat.shape ? flat.shape->ndim() : 0;
    NodeRef node = record_inputs(fn, operands, {}, *found.saves, found.wanted, ndim);
    record_outputs(node, found.wanted, {results, fn.outputs});
    if (saved_hooks().pack.object) [[unlikely]]
        pack_saved(*node);
}

void record_views(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> views) {
    record_outputs(record_inputs(fn, operands, {}, saves_of(fn, operands), {}, unknown), {}, views);
}

Results call_with_gradient(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out) {
    for (const TensorRef& target : out) check_in_place(fn.name, *target);
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    const Saves& saves = saves_of(fn, operands);
    BitSet needed;
    for (size_t i = 0; i < operands.size(); ++i)
        if (operands[i].tensor && takes_part(*operands[i].tensor) && is_differentiable(fn, saves, i))
            needed.add(i);
    if (!needed && out.empty()) return run(fn, operands);
    Wanted wanted = wanted_by(saves, needed);
    NodeRef node = record_inputs(fn, operands, out, saves, wanted, common_ndim(fn, operands, out));
    Results results;
    {
        const GradMode off(false);
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
    }
    return results;
}

}  // namespace kiln
