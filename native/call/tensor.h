// Tensors: a view of a storage, with the little that autograd hangs on it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/small_vector.h"

namespace kiln {

// Sizes, strides, dims, environments.
class Dims : public SmallVector<int64_t, 6> {
public:
    using SmallVector::SmallVector;
    int ndim() const { return int(size()); }
};

struct Node;
struct Tensor;
struct AutogradMeta;
struct Extras;  // what few nodes and leaves have (autograd.h)
// Not inlined: where a reference goes it is mostly not the last one.
[[gnu::noinline]] void release(Node* node);
[[gnu::noinline]] void release(Tensor* tensor);
[[gnu::noinline]] void release(AutogradMeta* meta);
using NodeRef = Ref<Node>;
using TensorRef = Ref<Tensor>;
using MetaRef = Ref<AutogradMeta>;

// Something the interpreter owns that the core keeps alive without knowing it (a hook, an attribute).
struct Opaque {
    void* object = nullptr;
    static void (*retain)(void*);
    static void (*drop)(void*);

    Opaque() = default;
    explicit Opaque(void* borrowed) : object(borrowed) {
        if (object) retain(object);
    }
    Opaque(const Opaque& other) : Opaque(other.object) {}
    Opaque(Opaque&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
    Opaque& operator=(Opaque other) noexcept {
        std::swap(object, other.object);
        return *this;
    }
    ~Opaque() {
        if (object) drop(object);
    }
};

// A function to call when backward comes by: on one gradient; on all that a node gets; on all it gives and
// gets; when a leaf's .grad is there.
enum class HookKind : uint8_t { tensor, before, after, accumulated };
struct Hook {
    uint64_t id;
    uint32_t index;  // of a tensor's hook: the node's output
    HookKind kind;
    Opaque function;
};

// The hooks of a node or a leaf. Whoever may remove one knows only its id, and keeps nothing alive.
class Hooks {
public:
    Hooks() = default;
    Hooks(const Hooks&) = delete;
    Hooks& operator=(const Hooks&) = delete;
    ~Hooks() {
        if (!list_.empty()) clear();
    }
    uint64_t add(HookKind kind, uint32_t index, Opaque function);
    static void remove(uint64_t id);  // nothing, if its list or the hook is gone
    void clear();
    const std::vector<Hook>& list() const { return list_; }
    std::vector<Hook> of(HookKind kind) const;  // a copy: what runs may add and remove

private:
    std::vector<Hook> list_;
};

// What autograd keeps of a leaf, or of a tensor whose .grad is kept; shared when `.data =` gives the tensor
// new memory.
struct AutogradMeta {
    AutogradMeta();
    ~AutogradMeta();
    uint32_t refcount = 0;
    bool requires_grad = false;  // of a leaf
    uint32_t place = 0;          // the engine's: where the run that goes through gathers its gradient,
    uint64_t run = 0;            // if this is that run
    uint32_t waiting = 0;        // where a leaf has extras: edges to it that the run has yet to come along
    Tensor* owner = nullptr;     // the leaf, while it lives; borrowed
    AutogradMeta* next_dying = nullptr;
    NodeRef retained;  // whose output's gradient is kept in `grad`, though the tensor is no leaf
    TensorRef grad;
    std::unique_ptr<Extras> extras;
};

// How a view came to be, where that decides whether it may be written and followed: with gradients recorded,
// without, in inference mode, as one of several results of one function, or by a user's function.
enum class Made : uint8_t { recorded, unrecorded, inference, one_of_several, of_user };

struct Tensor {
    Tensor();
    ~Tensor();
    uint32_t refcount = 0;
    DType dtype = DType::float32;
    bool contiguous = true;
    bool untracked = false;      // made by `.data`: writes through it do not bump the version
    Made made = Made::recorded;  // of a view
    uint32_t output = 0;         // of `node`: which of its outputs this is
    uint32_t made_at = 0;        // of a view: the version of its memory then
    int64_t offset = 0;          // in elements
    int64_t numel = 1;
    Dims sizes;
    Dims strides;
    StorageRef storage;
    NodeRef node;  // what computed it, if that can be differentiated
    MetaRef meta;
    TensorRef base;           // of a view: what it views, itself no view
    uint64_t base_order = 0;  // of a view: the order of base's node when its own history was made
    void* wrapper = nullptr;  // the interpreter's object for this tensor, borrowed
    uint32_t listed = 0;      // a list's (batch/list.h): where this one may stand in it

    int ndim() const { return sizes.ndim(); }
    bool requires_grad() const { return node || (meta && meta->requires_grad); }
    // The address of element 0; the storage must hold values (see record.h).
    std::byte* data() const {
        return static_cast<std::byte*>(storage->data) + offset * int64_t(itemsize(dtype));
    }
};

AutogradMeta* new_meta();
AutogradMeta& ensure_meta(Tensor& tensor);

// A tensor over new memory (or, with `storage`, over that), contiguous. Sizes must not be negative.
TensorRef new_tensor(DType dtype, const Dims& sizes);
TensorRef new_tensor(DType dtype, const Dims& sizes, StorageRef storage);
// The same with the sizes of `like`, which is contiguous: nothing is computed anew.
TensorRef new_tensor_like(DType dtype, const Tensor& like, StorageRef storage);
// A view of source's storage; no autograd, no checks.
TensorRef new_view(const Tensor& source, Dims sizes, Dims strides, int64_t offset);
TensorRef alias(const Tensor& source);
// Gives a tensor of no elements another shape, and memory of its own for it.
void resize(Tensor& tensor, const Dims& sizes);

Dims contiguous_strides(const Dims& sizes);
bool is_contiguous(const Dims& sizes, const Dims& strides);
int64_t checked_numel(const Dims& sizes);  // Error{runtime} on overflow or a negative size
// The first and one past the last element of the storage a tensor can touch.
std::pair<int64_t, int64_t> extent(const Dims& sizes, const Dims& strides, int64_t offset);
// Whether a dim of more than one element has stride 0.
bool is_expanded(const Tensor& tensor);
// Whether two elements of one tensor share memory; exactly, where strides alone do not tell by looking at
// all.
bool overlaps_itself(const Tensor& tensor);
// Writes a tensor's elements one by one in logical order, from values that lie so: of elements that share
// memory the last one stays.
void write_in_order(Tensor& target, const std::byte* values);
// Whether two tensors share some elements without being the same elements in the same order; where that
// cannot be told from sizes and strides alone (a tensor with gaps), they count as apart.
bool overlaps_partly(const Tensor& a, const Tensor& b);
std::string shape_text(const Dims& sizes);  // "[2, 3]"

// The closed set of views. Arguments as PyTorch's functions of these names, except that sizes are complete.
// Null if no view exists and `must_view` is false.
TensorRef view_reshape(const Tensor& x, const Dims& sizes, bool must_view);
bool can_view(const Tensor& x, const Dims& sizes, Dims* strides);
TensorRef view_permute(const Tensor& x, const Dims& dims);
TensorRef view_expand(const Tensor& x, const Dims& sizes);
TensorRef view_slice(const Tensor& x, int64_t dim, int64_t start, int64_t length, int64_t step);
TensorRef view_select(const Tensor& x, int64_t dim, int64_t place);  // without that dim
TensorRef view_as_strided(const Tensor& x, const Dims& sizes, const Dims& strides, int64_t offset);

}  // namespace kiln
