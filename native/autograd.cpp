#include "autograd.h"

#include <algorithm>
#include <unordered_map>

#include "check.h"
#include "compiler.h"
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

std::vector<Node*>& spare_nodes() {
    static auto* list = new std::vector<Node*>();
    return *list;
}

Node* make_node() {
    auto& spare = spare_nodes();
    if (spare.empty()) return new Node();
    Node* node = spare.back();
    spare.pop_back();
    return new (node) Node();
}

void destroy(Node* node) {
    node->~Node();
    if (spare_nodes().size() < 4096)
        spare_nodes().push_back(node);
    else
        ::operator delete(node);
}

uint64_t bit(size_t i) { return uint64_t(1) << i; }

SavedTensor save(Tensor& tensor) { return {TensorRef(&tensor), tensor.storage->version}; }

// A tensor with sizes but no storage.
TensorRef shape_of(const Tensor& tensor) { return new_tensor(tensor.dtype, tensor.sizes, StorageRef()); }

}  // namespace

AutogradMeta::AutogradMeta() = default;
AutogradMeta::~AutogradMeta() {
    if (retains_grad && grad_fn) std::erase_if(grad_fn->retains, [&](const auto& r) { return r.first == this; });
}

uint64_t add_hook(Tensor& tensor, Opaque function) {
    static uint64_t next_id = 1;
    KILN_CHECK(tensor.requires_grad(), runtime, "cannot register a hook on a tensor that doesn't require gradient");
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

void release(AutogradMeta* meta) { delete meta; }

void release(Node* node) {
    auto& dying = dying_nodes();
    static bool draining = false;
    dying.push_back(node);
    if (draining) return;
    draining = true;
    while (!dying.empty()) {
        Node* next = dying.back();
        dying.pop_back();
        destroy(next);
    }
    draining = false;
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
    KILN_CHECK(!target.storage->read_only, runtime, fn.name, ": the tensor's memory is read-only; use .clone() first");
    KILN_CHECK(!overlaps_itself(target), runtime,
               "unsupported operation: more than one element of the written-to tensor refers to a single memory "
               "location. Please clone() the tensor before performing the operation.");
    if (fn.cls != FnClass::pointwise) return;  // others have read everything before they write
    for (const Operand& operand : operands)
        KILN_CHECK(!operand.tensor || !overlaps_partly(target, *operand.tensor), runtime,
                   "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
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
    KILN_CHECK(!is_leaf(*target), runtime, "a leaf Variable that requires grad is being used in an in-place operation (",
               fn.name, "); do it under no_grad(), or on a clone()");
    KILN_CHECK(!target->base || !is_leaf(*target->base), runtime,
               "a view of a leaf Variable that requires grad is being used in an in-place operation (", fn.name,
               "); do it under no_grad(), or on a clone()");
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

const Saves& saves_of(Fn& fn, std::span<const Operand> operands) {
    uint64_t arrays = bit(operands.size());
    for (size_t i = 0; i < operands.size(); ++i)
        if (operands[i].tensor) arrays |= bit(i);
    for (const auto& [key, saves] : fn.saves)
        if (key == arrays) return *saves;
    fn.saves.emplace_back(arrays, compiler::saves({&fn, operands}));
    return *fn.saves.back().second;
}

// Whether a call that writes `out` changes what `tensor` holds.
bool overwritten(const Tensor& tensor, std::span<const TensorRef> out) {
    return std::any_of(out.begin(), out.end(), [&](const TensorRef& t) { return t->storage == tensor.storage; });
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
NodeRef record_inputs(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, const Saves& saves,
                      const Wanted& wanted) {
    bool same_shape = fn.cls == FnClass::pointwise && out.empty() && one_shape(operands);
    NodeRef node(make_node());
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

// ---- writes through views ----

// The numbers that place a view in its base: strides and offset, before them the sizes if asked for.
void place_in_base(const Tensor& view, bool with_sizes, Operands& operands) {
    auto push = [&](int64_t value) { operands.push_back({nullptr, Number::of(value)}); };
    KILN_CHECK(view.base->contiguous, not_implemented,
               "an in-place operation on a view of a tensor that is not contiguous is not differentiable yet; use clone()");
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
    for (size_t k = 0; k < outputs; ++k) {
        if (!is_float(results[k]->dtype)) continue;
        set_history(*results[k], node, uint32_t(k));
        if (!out.empty() && results[k]->base) write_to_base(*results[k]);
        if (fn.cls == FnClass::view) set_base(*results[k], *operands[0].tensor);
    }
    return results;
}

namespace {

// The saved tensor's value; raises if it was overwritten since.
TensorRef unpack(const Node& node, const SavedTensor& saved, const char* role, size_t index) {
    if (!saved.tensor || !saved.tensor->storage) return saved.tensor;
    const Storage& storage = *saved.tensor->storage;
    if (storage.version == saved.version) [[likely]]
        return saved.tensor;
    auto write = last_writes().find(&storage);
    raise(ErrorKind::runtime,
          concat("one of the variables needed for gradient computation has been modified by an inplace operation: ", role, " ",
                 index, " of ", node.fn->name, ", ", name(saved.tensor->dtype), shape_text(saved.tensor->sizes),
                 ", was saved at version ", saved.version, " (", SourceLine::text(node.line), ") and is at version ",
                 storage.version, write == last_writes().end() ? "" : " (changed at " + SourceLine::text(write->second) + ")",
                 "; change a clone() instead, or do it after backward()"));
}

struct DerivativeEntry {
    Fn* fn;
};

// The forward's operands as the node has them, for captures that only look at their shapes.
Operands forward_operands(const Node& node, Results& keep) {
    Operands operands;
    for (const NodeInput& input : node.inputs) {
        if (input.is_number) {
            operands.push_back({nullptr, input.number});
            continue;
        }
        keep.push_back(input.saved.tensor);
        if (!keep.back()) {
            const Tensor& like = **std::find_if(node.grads.begin(), node.grads.end(), [](const auto& g) { return bool(g); });
            keep.back() = new_tensor(input.dtype, like.sizes, StorageRef());
        }
        operands.push_back({keep.back().get(), {}});
    }
    return operands;
}

// The key of a derivative: what is needed and defined, and how the forward's operands look; of a pointwise one
// only their dtypes and which are 0-d.
Key derivative_key(const Node& node, uint64_t needed, uint64_t defined, bool redo) {
    Key key;
    key.push(node.fn->id | uint64_t(redo) << 32 | defined << 40);
    key.push(needed);
    if (node.fn->cls == FnClass::pointwise) {
        uint64_t word = 0;
        for (const NodeInput& input : node.inputs)
            word = word << 8 | (input.is_number ? 64 | uint64_t(input.number.kind)
                                                : uint64_t(input.dtype) | uint64_t(input.dimensioned) << 5);
        key.push(word);
        return key;
    }
    for (const NodeInput& input : node.inputs) describe({input.saved.tensor.get(), input.number}, key);
    return key;
}

Fn& derivative_fn(const Node& node, uint64_t needed, uint64_t defined, bool redo) {
    static auto* table = new Table<DerivativeEntry>();
    Key key = derivative_key(node, needed, defined, redo);
    DerivativeEntry* entry = table->find(key);
    if (!entry) [[unlikely]] {
        Results keep;
        Operands operands = forward_operands(node, keep);
        auto made = std::make_unique<DerivativeEntry>();
        made->fn = compiler::derivative(*node.fn, {operands.data(), operands.size()}, needed, defined, redo);
        entry = table->insert(key, std::move(made));
    }
    return *entry->fn;
}

// A saved tensor with the history it had, for create_graph.
TensorRef with_history(const TensorRef& tensor, const Edge& edge) {
    if (!tensor || !edge || !tensor->storage) return tensor;
    if (tensor->meta && tensor->grad_fn() == edge.node.get() && (edge.node || tensor->meta == edge.leaf)) return tensor;
    TensorRef copy = alias(*tensor);
    if (edge.leaf)
        copy->meta = edge.leaf;
    else
        set_history(*copy, edge.node, edge.index);
    return copy;
}

// The derivative's operands in the order its sources say.
Operands derivative_operands(Node& node, const Fn& fn, Results& keep, bool create_graph) {
    Operands operands;
    auto push = [&](TensorRef tensor) {
        keep.push_back(std::move(tensor));
        operands.push_back({keep.back().get(), {}});
    };
    for (const Source& source : fn.sources) {
        size_t i = source.index;
        switch (source.kind) {
        case Source::grad: push(node.grads[i]); break;
        case Source::input: {
            TensorRef value = unpack(node, node.inputs[i].saved, "argument", i);
            push(create_graph ? with_history(value, node.inputs[i].edge) : value);
            break;
        }
        case Source::output: {
            TensorRef value = unpack(node, node.saved_outputs[i], "result", i);
            push(create_graph ? with_history(value, Edge{NodeRef(&node), nullptr, uint32_t(i)}) : value);
            break;
        }
        case Source::hidden: push(unpack(node, node.hidden[i], "intermediate", i)); break;
        case Source::shape: push(node.inputs[i].saved.tensor ? node.inputs[i].saved.tensor : shape_of(*keep[0])); break;
        case Source::number: operands.push_back({nullptr, node.inputs[i].number}); break;
        }
    }
    return operands;
}

TensorRef sum_to(const TensorRef& gradient, const Tensor& like) {
    if (gradient->sizes == like.sizes) return gradient;
    Operand operands[2] = {{gradient.get(), {}}, {const_cast<Tensor*>(&like), {}}};
    TensorRef shape = shape_of(like);
    operands[1].tensor = shape.get();
    return std::move(call(*core_fns().sum_to, operands)[0]);
}

TensorRef converted(const TensorRef& gradient, DType dtype) {
    if (gradient->dtype == dtype) return gradient;
    TensorRef out = fresh_tensor(dtype, gradient->sizes);
    Operand operand{gradient.get(), {}};
    return std::move(call(*core_fns().copy, {&operand, 1}, {&out, 1})[0]);
}

TensorRef sum(const TensorRef& a, const TensorRef& b) {
    Operand operands[2] = {{a.get(), {}}, {b.get(), {}}};
    return std::move(call(*core_fns().add, operands)[0]);
}

class Engine {
public:
    ~Engine() {
        for (Node* node : all_) node->grads.clear();  // also after an error
    }

    Engine(std::span<const TensorRef> inputs, const BackwardOptions& options) : inputs_(inputs), options_(options) {
        static uint64_t runs = 0;
        run_ = ++runs;
    }

    void add_root(Tensor& root, const TensorRef& gradient) {
        Edge edge = edge_of(root);
        if (edge.node) discover(edge.node.get());
        roots_.push_back({std::move(edge), gradient});
    }

    std::vector<TensorRef> run() {
        mark_needed();
        for (auto& [edge, gradient] : roots_) deliver(edge, gradient, false);
        for (auto& [edge, gradient] : roots_)
            if (edge.node && edge.node->waiting == 0) ready(edge.node.get());
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end(), later);
            NodeRef node = std::move(heap_.back());
            heap_.pop_back();
            visit(*node);
        }
        return finish();
    }

private:
    struct Leaf {
        MetaRef meta;
        TensorRef gradient;
    };

    static bool later(const NodeRef& a, const NodeRef& b) { return a->order < b->order; }

    // Counts, for every node the root reaches, how many edges lead to it.
    void discover(Node* root) {
        std::vector<Node*> stack;
        auto enter = [&](Node* node) {
            if (node->run == run_) return;
            KILN_CHECK(node->grads.empty(), runtime, "backward: called again on a graph a backward is passing through");
            node->run = run_;
            node->waiting = 0;
            node->needed = false;
            stack.push_back(node);
            all_.push_back(node);
        };
        enter(root);
        while (!stack.empty()) {
            Node* node = stack.back();
            stack.pop_back();
            for (NodeInput& input : node->inputs) {
                Node* next = input.edge.node.get();
                if (!next) continue;
                enter(next);
                ++next->waiting;
            }
        }
    }

    bool wants(const Edge& edge) const {
        if (edge.node) return edge.node->needed;
        if (!edge.leaf) return false;
        if (options_.accumulate && inputs_.empty()) return true;
        return std::any_of(inputs_.begin(), inputs_.end(), [&](const TensorRef& x) { return x->meta == edge.leaf; });
    }

    bool is_input(const Node* node) const {
        return std::any_of(inputs_.begin(), inputs_.end(), [&](const TensorRef& x) { return x->grad_fn() == node; });
    }

    // A node is needed if something asked for lies behind it. Nodes are visited oldest first.
    void mark_needed() {
        if (inputs_.empty()) {
            for (Node* node : all_) node->needed = true;
            return;
        }
        std::sort(all_.begin(), all_.end(), [](Node* a, Node* b) { return a->order < b->order; });
        for (Node* node : all_) {
            node->needed = is_input(node);
            for (NodeInput& input : node->inputs) node->needed |= bool(input.edge) && wants(input.edge);
        }
    }

    void ready(Node* node) {
        heap_.push_back(NodeRef(node));
        std::push_heap(heap_.begin(), heap_.end(), later);
    }

    void add_to(TensorRef& slot, const TensorRef& gradient) { slot = slot ? sum(slot, gradient) : gradient; }

    void deliver(const Edge& edge, const TensorRef& gradient, bool counted) {
        if (edge.node) {
            Node& node = *edge.node;
            if (gradient && node.needed) {
                if (node.grads.empty()) node.grads.resize(node.outputs);
                add_to(node.grads[edge.index], gradient);
            }
            if (counted && --node.waiting == 0) ready(&node);
        } else if (edge.leaf && gradient) {
            for (Leaf& leaf : leaves_)
                if (leaf.meta == edge.leaf) return add_to(leaf.gradient, gradient);
            leaves_.push_back({edge.leaf, gradient});
        }
    }

    void visit(Node& node) {
        if (!node.needed || node.grads.empty()) {
            for (NodeInput& input : node.inputs) deliver(input.edge, nullptr, true);
            return;
        }
        for (const Hook& hook : node.hooks.empty() ? std::vector<Hook>() : node.hooks) {
            TensorRef& gradient = node.grads[hook.index];
            if (TensorRef changed = gradient ? call_hook(hook.function, gradient) : nullptr) gradient = changed;
        }
        capture(node);
        KILN_CHECK(!node.released, runtime,
                   "Trying to backward through the graph a second time (", node.fn->name, " at ", SourceLine::text(node.line),
                   "): its saved values were freed by the first backward. Run the forward again, or pass "
                   "retain_graph=True to the first backward.");
        Results gradients = differentiate(node);
        node.grads.clear();
        for (size_t i = 0; i < node.inputs.size(); ++i) {
            NodeInput& input = node.inputs[i];
            TensorRef gradient = i < gradients.size() ? std::move(gradients[i]) : nullptr;
            if (gradient && input.saved.tensor) gradient = sum_to(gradient, *input.saved.tensor);
            if (gradient) gradient = converted(gradient, input.dtype);
            deliver(input.edge, gradient, true);
        }
        if (!options_.retain_graph) forget(node);
    }

    Results differentiate(Node& node) {
        uint64_t needed = 0, defined = 0;
        for (size_t i = 0; i < node.inputs.size(); ++i)
            if (node.inputs[i].edge && wants(node.inputs[i].edge)) needed |= bit(i);
        for (size_t k = 0; k < node.grads.size(); ++k)
            if (node.grads[k]) defined |= bit(k);
        Results gradients;
        gradients.resize(node.inputs.size());
        if (!needed || !defined) return gradients;
        Fn& fn = derivative_fn(node, needed, defined, options_.create_graph && !node.hidden.empty());
        Results keep;
        Operands operands = derivative_operands(node, fn, keep, options_.create_graph);
        std::span<const Operand> given(operands.data(), operands.size());
        Results results = options_.create_graph ? replay(*compiler::recipe_for({&fn, given}), given)
                                                : kiln::run(fn, given);
        for (size_t k = 0; k < fn.targets.size() && k < results.size(); ++k)
            gradients[fn.targets[k]] = std::move(results[k]);
        return gradients;
    }

    void forget(Node& node) {
        node.released = true;
        for (NodeInput& input : node.inputs)
            if (input.saved.tensor && input.saved.tensor->storage) input.saved.tensor = shape_of(*input.saved.tensor);
        node.saved_outputs.clear();
        node.hidden.clear();
    }

    void capture(Node& node) {
        for (size_t i = 0; i < inputs_.size(); ++i)
            if (inputs_[i]->grad_fn() == &node) {
                captured_.resize(inputs_.size());
                captured_[i] = node.grads[inputs_[i]->meta->output];
            }
        for (auto& [meta, index] : node.retains)
            if (node.grads[index]) store_plain(*meta, node.grads[index]);
    }

    // Gradients given by the caller stay theirs: the engine's references to them keep them from being taken.
    // .grad never shares memory with anything reachable; it is added to in place while no graph is made.
    void store(AutogradMeta& meta, const TensorRef& gradient) {
        TensorRef result = gradient;
        for (const Hook& hook : std::vector<Hook>(meta.hooks))
            if (TensorRef changed = call_hook(hook.function, result)) result = changed;
        store_plain(meta, result);
    }

    void store_plain(AutogradMeta& meta, const TensorRef& gradient) {
        if (!meta.grad) {
            meta.grad = owned(gradient);
        } else if (options_.create_graph) {
            meta.grad = sum(meta.grad, gradient);
        } else {
            Operand operands[2] = {{meta.grad.get(), {}}, {gradient.get(), {}}};
            call(*core_fns().add, operands, {&meta.grad, 1});
        }
    }

    TensorRef owned(const TensorRef& gradient) {
        uint32_t holders = gradient->storage->recording ? 2 : 1;
        bool alone = gradient->contiguous && gradient->refcount == 1 && gradient->storage->refcount == holders &&
                     gradient->offset == 0;
        if (options_.create_graph || alone) return gradient;
        TensorRef copy = fresh_tensor(gradient->dtype, gradient->sizes);
        Operand operand{gradient.get(), {}};
        kiln::run(*core_fns().copy, {&operand, 1}, {&copy, 1});
        return copy;
    }

    std::vector<TensorRef> finish() {
        if (options_.accumulate) {
            for (Leaf& leaf : leaves_) store(*leaf.meta, leaf.gradient);
            return {};
        }
        captured_.resize(inputs_.size());
        for (size_t i = 0; i < inputs_.size(); ++i)
            for (Leaf& leaf : leaves_)
                if (inputs_[i]->meta == leaf.meta) captured_[i] = leaf.gradient;
        return std::move(captured_);
    }

    std::span<const TensorRef> inputs_;
    BackwardOptions options_;
    uint64_t run_;
    std::vector<Node*> all_;
    std::vector<NodeRef> heap_;
    std::vector<std::pair<Edge, TensorRef>> roots_;
    std::vector<Leaf> leaves_;
    std::vector<TensorRef> captured_;
};

}  // namespace

TensorRef (*call_hook)(const Opaque& hook, const TensorRef& gradient) = nullptr;

std::vector<TensorRef> run_backward(std::span<const TensorRef> roots, std::span<const TensorRef> gradients,
                                    std::span<const TensorRef> inputs, const BackwardOptions& options) {
    struct Mode {
        bool before;
        ~Mode() { grad_mode = before; }
    } mode{set_grad_enabled(options.create_graph)};
    Engine engine(inputs, options);
    for (size_t i = 0; i < roots.size(); ++i) {
        Tensor& root = *roots[i];
        KILN_CHECK(root.requires_grad(), runtime, "element ", i,
                   " of tensors does not require grad and does not have a grad_fn");
        TensorRef gradient = i < gradients.size() ? gradients[i] : nullptr;
        if (!gradient) {
            KILN_CHECK(root.numel == 1, runtime, "grad can be implicitly created only for scalar outputs (this one is ",
                       shape_text(root.sizes), "); pass gradient=");
            gradient = full_like(root, 1.0);
        }
        KILN_CHECK(gradient->sizes == root.sizes, runtime, "Mismatch in shape: grad_output[", i, "] has a shape of ",
                   shape_text(gradient->sizes), " and output[", i, "] has a shape of ", shape_text(root.sizes), ".");
        engine.add_root(root, gradient);
    }
    return engine.run();
}

}  // namespace kiln
