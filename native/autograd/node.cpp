#include "autograd/node.h"

#include "autograd/engine.h"
#include "autograd/hooks.h"
#include "autograd/inplace.h"
#include "base/check.h"
#include "base/free_list.h"
#include "record/record.h"

namespace kiln {

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

NodeRef new_node(Fn& fn) {
    NodeRef node(FreeList<Node>::make());
    node->fn = &fn;
    node->line = SourceLine::current();
    if (anomaly_mode) [[unlikely]]
        callbacks.new_node(*node, current_node());
    return node;
}

void set_history(Tensor& tensor, const NodeRef& node, uint32_t index) {
    tensor.node = node;
    tensor.output = index;
    if (tensor.meta && tensor.meta->retained) [[unlikely]]
        retain_at(*tensor.meta, node, index);
}

Edge edge_of(Tensor& tensor) {
    if (Node* node = up_to_date_grad_fn(tensor)) return {NodeRef(node), nullptr, tensor.output};
    if (tensor.meta && tensor.meta->requires_grad) return {nullptr, tensor.meta, 0};
    return {};
}

TensorRef shape_of(const Tensor& tensor) { return new_tensor(tensor.dtype, tensor.sizes, StorageRef()); }

SavedTensor save(Tensor& tensor) {
    KILN_CHECK(
        !tensor.storage->inference, runtime,
        "Inference tensors cannot be saved for backward. Please do not use Tensors created in "
        "inference mode in computation tracked by autograd. To work around this, you can make a clone "
        "to get a normal tensor and use it in autograd, or use no_grad() instead of inference_mode().");
    return {TensorRef(&tensor), tensor.storage->version};
}

}  // namespace kiln
