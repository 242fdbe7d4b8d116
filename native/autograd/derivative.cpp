#include "autograd/derivative.h"

#include <algorithm>
#include <optional>

#include "autograd/hooks.h"
#include "autograd/inplace.h"
#include "autograd/rows.h"
#include "base/check.h"
#include "call/compiler.h"

namespace kiln {

namespace {

// What hooks make of what they packed of a saved tensor, in the layout derivatives are looked up for.
TensorRef unpacked(const Node& node, const TensorRef& place) {
    for (const Packed& found : *node.packed) {
        if (!(found.place == place)) continue;
        const Packed packed = found;  // the hook may end the node's graph, and so `place`
        TensorRef value = callbacks.unpack(packed.unpack, packed.value);
        KILN_CHECK(value->sizes == packed.place->sizes && value->dtype == packed.place->dtype, runtime,
                   node.fn->name, ": the unpack hook gave a tensor of ", name(value->dtype),
                   shape_text(value->sizes), " for one of ", name(packed.place->dtype),
                   shape_text(packed.place->sizes));
        return contiguous(value);
    }
    return place;
}

[[noreturn]] void raise_overwritten(const Node& node, const Storage& storage, uint32_t version,
                                    const Tensor& saved, const char* role, size_t index) {
    const SourceLine* write = last_write(storage);
    raise(ErrorKind::runtime, concat("one of the variables needed for gradient computation has been "
                                     "modified by an inplace operation: ",
                                     role, " ", index, " of ", node.fn->name, ", ", name(saved.dtype),
                                     shape_text(saved.sizes), ", was saved at version ", version, " (",
                                     SourceLine::text(node.line), ") and is at version ", storage.version,
                                     write ? " (changed at " + SourceLine::text(*write) + ")" : "",
                                     "; change a clone() instead, or do it after backward()"));
}

// The saved tensor's value; raises if it was overwritten since.
const TensorRef& unpack(const Node& node, const SavedTensor& saved, const char* role, size_t index) {
    if (!saved.tensor || !saved.tensor->storage) return saved.tensor;
    const Storage& storage = *saved.tensor->storage;
    if (storage.version != saved.version) [[unlikely]]
        raise_overwritten(node, storage, saved.version, *saved.tensor, role, index);
    return saved.tensor;
}

// What tells an input's shape: what was saved of it, or a defined gradient where all arrays had one shape.
TensorRef shape_source(const Node& node, const NodeInput& input) {
    if (input.saved.tensor) return input.saved.tensor;
    const Tensor& like =
        **std::find_if(node.grads.begin(), node.grads.end(), [](const auto& g) { return bool(g); });
    return new_tensor(input.dtype, input.dimensioned ? like.sizes : Dims(), StorageRef());
}

// The forward's operands as the node has them, for captures that only look at their shapes.
Operands forward_operands(const Node& node, Kept& keep) {
    Operands operands;
    for (const NodeInput& input : node.inputs) {
        if (input.is_number) {
            operands.push_back({nullptr, input.number});
            continue;
        }
        keep.push_back(shape_source(node, input));
        operands.push_back({keep.back().get(), {}});
    }
    return operands;
}

// Of an input of a pointwise function, of whose derivative nothing else matters.
void add_input(Look& look, const NodeInput& input) {
    input.is_number ? look.add_number(input.number) : look.add_array(input.dtype, input.dimensioned);
}

// All that the derivative of a pointwise function depends on, if that is short.
std::optional<Look> point_look(const Node& node, const compiler::Asked& asked) {
    if (node.fn->cls != FnClass::pointwise || node.inputs.size() > 8 || asked.defined.end() > 8)
        return std::nullopt;
    Look look;
    for (const NodeInput& input : node.inputs) add_input(look, input);
    for (uint64_t code : {asked.needed.first(), asked.defined.first(), uint64_t(asked.redo)})
        look.push(uint8_t(code));
    return look;
}

// What was saved says how an input looks; a pointwise function may have saved nothing of it.
void push_input(const Fn& fn, const NodeInput& input, Key& key) {
    if (fn.cls != FnClass::pointwise) return describe({input.saved.tensor.get(), input.number}, key);
    Look look;
    add_input(look, input);
    key.push(look);
}

// All that is asked. A set is one word, unless one of them has more; the last two are empty in most calls.
// The first word says that this is no key of a short look.
void push_asked(const Fn& fn, const compiler::Asked& asked, Key& key) {
    const BitSet* const sets[] = {&asked.needed, &asked.defined, &asked.factored,
                                  asked.shared ? &*asked.shared : nullptr};
    const bool more = asked.factored || asked.shared;
    bool large = false;
    for (const BitSet* set : sets) large |= set && !set->rest().empty();
    key.push(fn.id | uint64_t(asked.redo) << 32 | uint64_t(asked.shared.has_value()) << 33 |
             uint64_t(large) << 34 | uint64_t(more) << 35 | uint64_t(1) << 36 |
             uint64_t(asked.onto + 1) << 37);
    for (const BitSet* set : std::span(sets).first(!more ? 2 : asked.shared ? 4 : 3)) {
        key.push(set->first());
        if (large) key.push(set->rest().size());
        for (uint64_t word : set->rest()) key.push(word);
    }
}

// By what is needed and defined, and how the forward's operands look.
Fn& find_derivative(const Node& node, const compiler::Asked& asked, const std::optional<Look>& look) {
    static auto* table = new Table<Fn*>();
    Key key;
    if (look) {
        key.push(node.fn->id | uint64_t(asked.redo) << 32);
        key.push(*look);
    } else {
        push_asked(*node.fn, asked, key);
        for (const NodeInput& input : node.inputs) push_input(*node.fn, input, key);
    }
    Fn** found = table->find(key);
    if (!found) [[unlikely]] {
        Kept keep;
        Operands operands = forward_operands(node, keep);
        found = table->insert(key, std::make_unique<Fn*>(compiler::derivative(
                                       *node.fn, {operands.data(), operands.size()}, asked)));
    }
    return **found;
}

// A saved tensor with the history it had, for create_graph.
TensorRef with_history(const TensorRef& tensor, const Edge& edge) {
    if (!tensor || !edge || !tensor->storage) return tensor;
    if (tensor->node == edge.node && (edge.node || tensor->meta == edge.leaf)) return tensor;
    TensorRef copy = alias(*tensor);
    if (edge.leaf)
        copy->meta = edge.leaf;
    else
        set_history(*copy, edge.node, edge.index);
    return copy;
}

const Edge nowhere;

// What the node saved at a place; null: it has no such place.
const SavedTensor* saved_at(const Node& node, Source::Kind kind, size_t i) {
    if (kind == Source::input) return i < node.inputs.size() ? &node.inputs[i].saved : nullptr;
    const auto& list = kind == Source::output ? node.saved_outputs : node.hidden;
    return i < list.size() ? &list[i] : nullptr;
}

const char* role_of(Source::Kind kind) {
    return kind == Source::input ? "argument" : kind == Source::output ? "result" : "intermediate";
}

// The value of what it saved there, with its history if asked for.
TensorRef value_at(Node& node, const SavedTensor& saved, Source::Kind kind, size_t i, bool history) {
    const bool packed = node.packed && saved.tensor && !saved.tensor->storage;
    TensorRef value = packed ? unpacked(node, saved.tensor) : unpack(node, saved, role_of(kind), i);
    if (!history) return value;
    if (kind == Source::output && node.rows && i < node.rows->handed.size() && node.rows->handed[i]) {
        Node& handed = *node.rows->handed[i];  // its rows' other uses meet there
        return with_history(value, {NodeRef(&handed), nullptr, uint32_t(handed.rows->count)});
    }
    if (kind == Source::output) return with_history(value, {NodeRef(&node), nullptr, uint32_t(i)});
    return with_history(value, kind == Source::input ? node.inputs[i].edge : nowhere);
}

}  // namespace

Fn& derivative_fn(const Node& node, const compiler::Asked& asked) {
    const std::optional<Look> look = point_look(node, asked);
    if (!look) return find_derivative(node, asked, look);
    auto& last = node.fn->last.derivative;
    if (!last.fn || last.look != *look) {
        Fn& found = find_derivative(node, asked, look);
        last = {*look, &found};
    }
    return *last.fn;
}

void raise_released(const Node& node) {
    raise(
        ErrorKind::runtime,
        concat("Trying to backward through the graph a second time (", node.fn->name, " at ",
               SourceLine::text(node.line),
               ") (or directly access saved tensors after they have already been freed). The first backward "
               "freed its saved values. Specify retain_graph=True in the first, or run the forward again."));
}

void check_not_released(const Node& node) {
    if (node.released) raise_released(node);
}

void check_version(const Node& node, const Storage& storage, uint32_t version, const Tensor& saved,
                   const char* role, size_t index) {
    if (storage.version != version) raise_overwritten(node, storage, version, saved, role, index);
}

Operands derivative_operands(Node& node, const Fn& fn, Kept& keep, bool create_graph, const TensorRef& sum,
                             const TakenRows& taken) {
    Operands operands;
    const Rows* rows = taken.rows.empty() ? nullptr : node.rows.get();
    auto push = [&](const TensorRef& tensor) { operands.push_back({tensor.get(), {}}); };
    auto push_made = [&](TensorRef tensor) {
        keep.push_back(std::move(tensor));
        push(keep.back());
    };
    for (const Source& source : fn.sources) {
        const size_t i = source.index;
        switch (source.kind) {
        case Source::grad: push(node.grads[i]); break;
        case Source::shape: {
            TensorRef shape = shape_source(node, node.inputs[i]);
            if (rows && rows->inputs.has(i)) {
                Dims sizes = shape->sizes;
                sizes[0] = int64_t(taken.rows.size());
                shape = new_tensor(shape->dtype, sizes, StorageRef());
            }
            push_made(std::move(shape));
            break;
        }
        case Source::sum: push(sum); break;
        case Source::number:
            if (rows && rows->counted && i == 1)
                operands.push_back({nullptr, Number::of(int64_t(taken.rows.size()))});
            else
                operands.push_back({nullptr, node.inputs[i].number});
            break;
        default: {
            const SavedTensor* saved = saved_at(node, source.kind, i);
            KILN_CHECK(saved, internal, fn.name, ": ", role_of(source.kind), " ", i, " is not saved");
            const bool has_rows =
                rows && (source.kind == Source::output ||
                         (source.kind == Source::input ? rows->inputs : taken.hidden).has(i));
            if (has_rows)
                push_made(rows_at(*value_at(node, *saved, source.kind, i, false), taken.rows));
            else if (create_graph || node.packed)
                push_made(value_at(node, *saved, source.kind, i, create_graph));
            else
                push(unpack(node, *saved, role_of(source.kind), i));
        }
        }
    }
    return operands;
}

void pack_at(Node& node, SavedPlace place, const Opaque& pack, const Opaque& unpack) {
    check_not_released(node);
    auto* saved = const_cast<SavedTensor*>(saved_at(node, place.first, place.second));
    KILN_CHECK(saved && saved->tensor, runtime,
               "Calling register_hooks on a saved tensor with value None is forbidden");
    KILN_CHECK(saved->tensor->storage, runtime,
               "Calling register_hooks on a saved tensor whose hooks have already been set is not allowed.");
    Opaque value = callbacks.pack(pack, saved->tensor);
    if (!node.packed) node.packed = std::make_unique<std::vector<Packed>>();
    saved->tensor = shape_of(*saved->tensor);
    node.packed->push_back({saved->tensor, std::move(value), unpack});
}

TensorRef saved_value(Node& node, SavedPlace place) {
    check_not_released(node);
    const auto [kind, i] = place;
    const SavedTensor* saved = saved_at(node, kind, i);
    return saved ? value_at(node, *saved, kind, i, true) : nullptr;
}

}  // namespace kiln
