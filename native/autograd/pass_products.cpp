// Products of matrices that several calls share: their rows are kept, and multiplied once.
#include "autograd/pass.h"
#include "call/dispatch.h"

namespace kiln {

Pass::Matrix Pass::matrix_at(const Edge& edge) const {
    const auto is_shared = [&](const Edge& e) {
        if (is_row(e)) return true;  // one product alone has the same bits
        if (e.node) return e.node->waiting > 1 || e.node->kept;
        const LeafSum* leaf = leaves().find(e.leaf.get());
        return leaf && (leaves().edges_left(*e.leaf) > 1 || leaf->products || leaf->kept);
    };
    Matrix matrix{edge, false, is_shared(edge)};
    while (const NodeRef node = matrix.edge.node) {
        const Edge next = is_row(matrix.edge)        ? behind_row(matrix.edge)
                          : is_looked_through(*node) ? node->inputs[0].edge
                                                     : Edge();
        if (!next) break;
        matrix = {next, !matrix.transposed, matrix.shared || is_shared(next)};
    }
    return matrix;
}

Edge Pass::behind_row(const Edge& row) const {
    const Node *handed = row.node.get(), *launch = handed->rows->source.get();
    const int64_t at = row.index;
    if (!launch || !launch->rows || at >= handed->rows->count || handed->extras || launch->extras) return {};
    const Fn& fn = *launch->fn;
    const bool turns = fn.cls == FnClass::view && fn.op && fn.op->view == ViewKind::permute;
    if (!turns || fn.dims.size() != 3 || fn.dims[0] != 0 || fn.dims[1] != 2 || reach.asks_for(*handed))
        return {};
    const Edge& edge = launch->inputs[0].edge;
    if (!edge.node || !edge.node->rows || edge.node->extras) return {};
    if (edge.node->rows->kind != Rows::gathers) return {edge.node, nullptr, uint32_t(at)};
    const Rows::Place& place = edge.node->rows->places[size_t(at)];
    Edge from = edge.node->inputs[place.input].edge;
    if (place.of_launch) from.index = place.row;
    return reach.wants(from) ? from : Edge();
}

bool Pass::is_looked_through(const Node& node) const {
    const Fn& fn = *node.fn;
    return fn.cls == FnClass::view && fn.op && fn.op->view == ViewKind::permute && fn.dims.size() == 2 &&
           fn.dims[0] == 1 && !node.extras && !reach.asks_for(node) && reach.wants(node.inputs[0].edge);
}

BitSet Pass::products_that_wait(const Node& node, const Fn& fn) const {
    BitSet seen, shared, many;
    if (reach.options.batched) return shared;
    for (const Product& product : fn.products) {
        const size_t i = product.operand;
        const NodeInput& input = node.inputs[i];
        if (!reach.wants(input.edge)) continue;
        if (node.rows && node.rows->inputs.has(i)) continue;  // a launch's rows: each is one call's
        const Matrix matrix = matrix_at(input.edge);
        if (!matrix.edge.leaf) continue;
        if (!is_worth_keeping(input.saved.tensor->sizes, rows_of(node, product))) many.add(i);
        if (node.rows || seen.has(i) || matrix.shared) shared.add(i);
        seen.add(i);
    }
    shared -= many;
    return shared;
}

int64_t Pass::rows_of(const Node& node, const Product& product) {
    int64_t rows = product.count;
    for (const auto& [operand, dim] : product.rows) {
        const TensorRef& x = node.inputs[operand].saved.tensor;
        if (node.rows && dim == 0 && node.rows->inputs.has(operand)) continue;  // of a launch: of one call
        rows *= x ? x->sizes[dim] : ProductSum::most_rows;
    }
    return rows;
}

bool Pass::is_worth_keeping(const Dims& matrix, int64_t rows) {
    const int64_t height = matrix[0], width = matrix[1];
    return rows <= ProductSum::most_rows && rows * (height + width) <= height * width && rows > 0;
}

Pass::Given Pass::without_factors(const Node& node, const Fn& fn, Results results) {
    Given given;
    given.gradients.resize(node.inputs.size());
    for (size_t k = 0; k < results.size(); ++k) {
        const Target& target = fn.targets[k];
        if (target.role == Target::gradient) given.gradients[target.operand] = std::move(results[k]);
        if (target.role != Target::left) continue;
        const NodeInput& input = node.inputs[target.operand];
        const Dims& sizes = input.saved.tensor->sizes;
        keep_product(input.edge, as_rows(results[k], sizes[0]), as_rows(results[k + 1], sizes[1]),
                     part_of(node, target.operand));
    }
    return given;
}

TensorRef Pass::as_rows(const TensorRef& x, int64_t width) {
    const Dims sizes{x->numel / width, width};
    if (x->sizes == sizes) return x;
    return reshaped(x, sizes);
}

void Pass::keep_product(const Edge& edge, TensorRef left, TensorRef right, PartOf of) {
    const Matrix matrix = matrix_at(edge);
    if (matrix.transposed) std::swap(left, right);
    if (reach.launches) [[unlikely]] {
        const int64_t rows = left->sizes[0];
        return kept_at(matrix.edge)
            .add_products(contiguous(left), contiguous(right), rows, {&of.call, 1}, {}, of.argument);
    }
    std::unique_ptr<ProductSum>& products = leaves().of(matrix.edge.leaf).products;
    if (!products) products = std::make_unique<ProductSum>();
    products->add(left, right, reach.options.create_graph, last_factors_);
}

}  // namespace kiln
