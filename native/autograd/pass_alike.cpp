// Launches that backward could pass next and that are alike, as those of the steps of many episodes: it passes
// them as one, whose rows are those of all.
#include <algorithm>
#include <cstring>

#include "autograd/pass.h"
#include "call/dispatch.h"

namespace kiln {

namespace {

constexpr size_t most_bytes = 1 << 18;  // of each of its arrays: larger launches gain nothing
constexpr size_t most_alike = 256;

bool is_small(const TensorRef& x) {
    return !x || !x->storage || size_t(x->numel) * itemsize(x->dtype) <= most_bytes;
}

// Whether both have it, or neither, with rows of the same sizes and dtype.
bool have_like_rows(const TensorRef& a, const TensorRef& b) {
    if (!a || !b) return !a && !b;
    return bool(a->storage) == bool(b->storage) && a->dtype == b->dtype && a->ndim() == b->ndim() &&
           std::equal(a->sizes.begin() + 1, a->sizes.end(), b->sizes.begin() + 1);
}

bool is_same_array(const TensorRef& a, const TensorRef& b) {
    if (!a || !b || a == b) return a == b;
    return a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype &&
           a->sizes == b->sizes && a->strides == b->strides;
}

bool is_same_number(const Number& a, const Number& b) { return a.kind == b.kind && a.bits() == b.bits(); }

// The rows of several arrays, one after the other.
TensorRef rows_of_all(std::span<const TensorRef> parts, int64_t rows) {
    const Tensor& first = *parts[0];
    Dims sizes = first.sizes;
    sizes[0] = rows;
    if (!first.storage) return new_tensor(first.dtype, sizes, StorageRef());
    TensorRef all = new_tensor(first.dtype, sizes);
    int64_t at = 0;
    for (const TensorRef& part : parts) {
        const TensorRef to = new_view(*all, part->sizes, all->strides, at * all->strides[0]);
        const Operand from{part.get(), {}};
        if (!part->contiguous)
            run(*core_fns().copy, {&from, 1}, {&to, 1});
        else if (part->numel)
            std::memcpy(to->data(), part->data(), size_t(part->numel) * itemsize(part->dtype));
        at += part->sizes[0];
    }
    return all;
}

}  // namespace

// Nobody looks at it, all its rows got gradients, and they are no more than copies are worth.
bool Pass::may_run_with_others(const Node& node) const {
    if (!node.rows || node.rows->kind != Rows::launch || node.extras || !node.needed || node.packed ||
        !node.hidden.empty() || node.rows->counted || !node.rows->released.empty() || anomaly_mode ||
        by_ops() || !reach.inputs.empty() || node.rows->arrived.empty())
        return false;
    bool any = false;
    for (const RowsOfGradient& gradient : node.rows->arrived) {
        if (!gradient.values) continue;
        if (!gradient.whole() || !is_small(gradient.values)) return false;
        any = true;
    }
    return any && std::ranges::all_of(node.saved_outputs, is_small, &SavedTensor::tensor) &&
           std::ranges::all_of(node.inputs, [&](const NodeInput& input) {
               return !node.rows->inputs.has(size_t(&input - &node.inputs[0])) || is_small(input.saved.tensor);
           });
}

bool Pass::are_alike(const Node& a, const Node& b) const {
    if (a.fn != b.fn || a.outputs != b.outputs || a.inputs.size() != b.inputs.size() ||
        a.saved_outputs.size() != b.saved_outputs.size() || !(a.rows->inputs == b.rows->inputs) ||
        a.rows->arrived.size() != b.rows->arrived.size())
        return false;
    for (size_t k = 0; k < a.rows->arrived.size(); ++k)
        if (!have_like_rows(a.rows->arrived[k].values, b.rows->arrived[k].values)) return false;
    for (size_t k = 0; k < a.saved_outputs.size(); ++k)
        if (!have_like_rows(a.saved_outputs[k].tensor, b.saved_outputs[k].tensor)) return false;
    for (size_t i = 0; i < a.inputs.size(); ++i) {
        const NodeInput &x = a.inputs[i], &y = b.inputs[i];
        if (x.is_number != y.is_number || x.dtype != y.dtype || x.dimensioned != y.dimensioned ||
            x.like_result != y.like_result || reach.wants(x.edge) != reach.wants(y.edge))
            return false;
        if (x.is_number ? !is_same_number(x.number, y.number)
            : a.rows->inputs.has(i)
                ? !have_like_rows(x.saved.tensor, y.saved.tensor)
                : x.edge.node != y.edge.node || x.edge.leaf != y.edge.leaf || x.edge.index != y.edge.index ||
                      !is_same_array(x.saved.tensor, y.saved.tensor))
            return false;
    }
    return true;
}

// The node to visit next; null: all were. Launches that may run with others wait until nothing else is left:
// then `alike_` are those that run with it.
Node* Pass::take_next() {
    alike_.clear();
    while (!ready_.empty()) {
        Node* node = take_latest();
        if (!reach.launches || !may_run_with_others(*node)) return node;
        waiting_launches_.push_back(node);
    }
    if (waiting_launches_.empty()) return nullptr;
    Node* latest = *std::ranges::max_element(waiting_launches_, is_earlier);
    const auto is_alike = [&](Node* node) {
        if (node == latest) return true;
        if (alike_.size() >= most_alike || !are_alike(*latest, *node)) return false;
        alike_.push_back(node);
        return true;
    };
    std::erase_if(waiting_launches_, is_alike);
    return latest;
}

// `alike_` and the one that is visited.
void Pass::visit_alike(Node& latest) {
    std::vector<Node*> launches = std::exchange(alike_, {});
    launches.push_back(&latest);
    std::ranges::sort(launches, is_earlier);
    const NodeRef together = new_node(*latest.fn);
    auto calls = std::make_shared<Calls>();
    for (const Node* launch : launches) {
        check_rows(*launch, {});
        calls->insert(calls->end(), launch->rows->calls->begin(), launch->rows->calls->end());
    }
    const auto rows = int64_t(calls->size());
    auto of_all = [&](auto&& array_of) {
        std::vector<TensorRef> parts;
        for (Node* launch : launches) parts.push_back(array_of(*launch));
        return parts[0] ? rows_of_all(parts, rows) : nullptr;
    };
    auto saved = [](TensorRef tensor) {
        const uint32_t version = tensor && tensor->storage ? tensor->storage->version : 0;
        return SavedTensor{std::move(tensor), version};
    };
    make_launch(*together, std::move(calls), latest.rows->inputs, false);
    together->outputs = latest.outputs;
    together->line = latest.line;
    for (size_t i = 0; i < latest.inputs.size(); ++i) {
        NodeInput& input = together->inputs.emplace_back(latest.inputs[i]);
        if (latest.rows->inputs.has(i))
            input.saved = saved(of_all([&](Node& node) { return node.inputs[i].saved.tensor; }));
    }
    for (size_t k = 0; k < latest.saved_outputs.size(); ++k)
        together->saved_outputs.push_back(
            saved(of_all([&](Node& node) { return node.saved_outputs[k].tensor; })));
    std::vector<RowsOfGradient> arrived(latest.rows->arrived.size());
    BitSet defined;
    for (size_t k = 0; k < arrived.size(); ++k) {
        arrived[k].values = of_all([&](Node& node) { return node.rows->arrived[k].values; });
        if (arrived[k].values) defined.add(k);
    }
    for (Node* launch : launches) launch->rows->arrived.clear();
    call_numbers.forward = latest.line.call;
    differentiate_rows(*together, arrived, defined, {}, launches);
    for (Node* launch : launches) {
        pass_over(*launch);
        end_launch(*launch, {});
        if (reach.suspended.empty()) launch->run = 0;  // behind this pass
    }
}

}  // namespace kiln
