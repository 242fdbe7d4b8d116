#include "autograd/rows.h"

#include <cstring>

#include "autograd/autograd.h"
#include "base/check.h"
#include "call/dispatch.h"

namespace kiln {

namespace {

NodeRef new_rows_node(Fn& fn, Tensor& whole) {
    NodeRef node = new_node(fn);
    node->rows.reset(new Rows());
    node->rows->like = shape_of(whole);
    node->rows->count = whole.sizes[0];
    return node;
}

TensorRef row_of(const Tensor& whole, int64_t row) {
    return new_view(whole, Dims(std::span(whole.sizes.begin() + 1, whole.sizes.size() - 1)),
                    Dims(std::span(whole.strides.begin() + 1, whole.strides.size() - 1)),
                    whole.offset + row * whole.strides[0]);
}

void copy_to(const TensorRef& target, Tensor& x) {
    const Operand from{&x, {}};
    run(*core_fns().copy, {&from, 1}, {&target, 1});
}

void add_to(const TensorRef& target, Tensor& x) {
    const Operand operands[2] = {{target.get(), {}}, {&x, {}}};
    run(*core_fns().add, operands, {&target, 1});
}

// The buffer of a node that hands out, which nobody else has.
const TensorRef& own_buffer(Node& node) {
    Rows& rows = *node.rows;
    if (node.grads.empty()) node.grads.resize(node.outputs);
    TensorRef& buffer = node.grads[size_t(rows.count)];
    if (!buffer) {
        buffer = new_tensor(rows.like->dtype, rows.like->sizes);
        rows.written.assign(size_t(rows.count), false);
        rows.owned = true;
    } else if (!rows.owned) {
        TensorRef own = new_tensor(buffer->dtype, buffer->sizes);
        copy_to(own, *buffer);
        buffer = std::move(own);
        rows.owned = true;
    }
    return buffer;
}

// Rows that nobody wrote are 0.
void fill_rows(Node& node) {
    Rows& rows = *node.rows;
    const TensorRef& buffer = node.grads[size_t(rows.count)];
    if (!rows.owned || rows.count == 0) return;
    const size_t bytes = size_t(buffer->numel / rows.count) * itemsize(buffer->dtype);
    for (int64_t i = 0; i < rows.count; ++i)
        if (!rows.written[size_t(i)]) std::memset(buffer->data() + size_t(i) * bytes, 0, bytes);
    rows.written.assign(size_t(rows.count), true);
}

}  // namespace

void DropRows::operator()(Rows* rows) const { delete rows; }

NodeRef make_handed(Tensor& whole, std::vector<uint64_t> orders, const SourceLine& line) {
    static Fn& fn = *new_fn(nullptr, "rows_of_launch");
    NodeRef node = new_rows_node(fn, whole);
    node->line = line;
    node->rows->hands_out = true;
    node->rows->orders = std::move(orders);
    NodeInput& input = node->inputs.emplace_back(edge_of(whole));
    input.dtype = whole.dtype;
    if (input.edge.node) input.edge.node->of_launch = true;
    node->outputs = uint32_t(whole.sizes[0] + 1);
    node->order = take_order();
    set_history(whole, node, uint32_t(whole.sizes[0]));
    return node;
}

NodeRef make_gathered(Tensor& whole, std::span<const Edge> edges, std::vector<Rows::Place> places) {
    static Fn& fn = *new_fn(nullptr, "gathered_rows");
    NodeRef node = new_rows_node(fn, whole);
    node->rows->places = std::move(places);
    node->inputs.reserve(edges.size());
    for (const Edge& edge : edges) node->inputs.emplace_back(edge).dtype = whole.dtype;
    node->order = take_order();
    set_history(whole, node, 0);
    return node;
}

void add_to_rows(Node& node, uint32_t index, const TensorRef& gradient) {
    Rows& rows = *node.rows;
    if (index < uint64_t(rows.count)) {
        const TensorRef& buffer = own_buffer(node);
        const TensorRef row = row_of(*buffer, index);
        rows.written[index] ? add_to(row, *gradient) : copy_to(row, *gradient);
        rows.written[index] = true;
        return;
    }
    if (node.grads.empty()) node.grads.resize(node.outputs);
    TensorRef& buffer = node.grads[index];
    if (!buffer) {
        buffer = gradient;
        rows.owned = false;
        rows.written.assign(size_t(rows.count), true);
        return;
    }
    const TensorRef& own = own_buffer(node);
    fill_rows(node);
    add_to(own, *gradient);
}

void add_rows(Node& node, const Tensor& gradient, std::span<const uint32_t> from,
              std::span<const uint32_t> to) {
    Rows& rows = *node.rows;
    const TensorRef& buffer = own_buffer(node);
    const size_t bytes = size_t(gradient.numel / gradient.sizes[0]) * itemsize(gradient.dtype);
    const bool plain = gradient.contiguous && gradient.dtype == buffer->dtype;
    for (size_t i = 0; i < from.size(); ++i) {
        if (plain && !rows.written[to[i]]) {
            std::memcpy(buffer->data() + to[i] * bytes, gradient.data() + from[i] * bytes, bytes);
        } else {
            const TensorRef row = row_of(*buffer, to[i]), given = row_of(gradient, from[i]);
            rows.written[to[i]] ? add_to(row, *given) : copy_to(row, *given);
        }
        rows.written[to[i]] = true;
    }
}

TensorRef take_rows(Node& node) {
    if (node.grads.empty() || !node.grads[size_t(node.rows->count)]) return nullptr;
    fill_rows(node);
    return std::move(node.grads[size_t(node.rows->count)]);
}

void spread_rows(Node& node) {
    const auto count = size_t(node.rows->count);
    if (node.grads.empty() || !node.grads[count]) return;
    fill_rows(node);
    const TensorRef buffer = std::move(node.grads[count]);
    for (size_t i = 0; i < count; ++i) node.grads[i] = row_of(*buffer, int64_t(i));
}

void collect_rows(Node& node) {
    const auto count = size_t(node.rows->count);
    if (node.grads.empty()) return;
    node.grads[count] = nullptr;
    for (size_t i = 0; i < count; ++i)
        if (const TensorRef row = std::move(node.grads[i])) add_to_rows(node, uint32_t(i), row);
}

}  // namespace kiln
