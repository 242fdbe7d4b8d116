// The Tensor type: identity, properties, what PyTorch users read from a tensor.
#include "binding/bind.h"

#include <structmember.h>

#include "autograd/autograd.h"
#include "autograd/hooks.h"
#include "autograd/inplace.h"
#include "batch/list.h"
#include "call/busy.h"
#include "call/trace.h"

namespace kiln {

PyTypeObject* tensor_type = nullptr;

namespace {

constexpr size_t most_spare = 1024;
std::vector<PyObject*>& spare_objects() {
    static auto* list = [] {
        auto made = std::make_unique<std::vector<PyObject*>>();
        made->reserve(most_spare);  // nothing is allocated where an object is dropped
        return made.release();
    }();
    return *list;
}

PyObject* new_object(PyTypeObject* type, const TensorRef& tensor) {
    PyObject* object = nullptr;
    auto& spare = spare_objects();
    if (type == tensor_type && !spare.empty()) {
        object = spare.back();
        spare.pop_back();
        PyObject_Init(object, type);
    } else {
        // A subclass has its own way, which tracks it; what tp_alloc does not fill stays zero.
        object = type == tensor_type ? reinterpret_cast<PyObject*>(PyObject_GC_New(TensorObject, type))
                                     : type->tp_alloc(type, 0);
        if (!object) throw Error(ErrorKind::python, "");
    }
    auto* self = reinterpret_cast<TensorObject*>(object);
    self->tensor = tensor.get();
    ++self->tensor->refcount;
    self->tensor->wrapper = object;
    self->dict = nullptr;
    self->weakrefs = nullptr;
    self->tracked = type != tensor_type;
    return object;
}

// What lives and dies with a tensor object: extras of its tensor, and of the node that made it, as long as
// nobody else holds these. What two hold is nobody's own, and no part of a cycle the collector may see.
template <class Body>
void each_own_extras(const Tensor& tensor, Body&& body) {
    if (tensor.refcount != 1) return;
    if (tensor.meta && tensor.meta->refcount == 1 && tensor.meta->extras) body(*tensor.meta->extras);
    if (tensor.node && tensor.node->refcount == 1 && tensor.node->extras) body(*tensor.node->extras);
}

int tensor_traverse(PyObject* object, visitproc visit, void* arg) {
    auto* self = reinterpret_cast<TensorObject*>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->dict);
    if (!self->tensor) return 0;
    int result = 0;
    each_own_extras(*self->tensor, [&](const Extras& extras) {
        if (!result) result = visit_extras(extras, visit, arg);
    });
    if (result) return result;
    const NodeRef& node = self->tensor->node;
    if (self->tensor->refcount == 1 && node && node->refcount == 1)
        Py_VISIT(static_cast<PyObject*>(node->context.object));
    const StorageRef& storage = self->tensor->storage;
    if (self->tensor->refcount == 1 && storage && storage->refcount == 1) Py_VISIT(exporter_of(*storage));
    return 0;
}

// The memory and what a user's function knows stay: a finalizer may still look at them, and they break a
// cycle by themselves.
int tensor_clear(PyObject* object) {
    auto* self = reinterpret_cast<TensorObject*>(object);
    Py_CLEAR(self->dict);
    if (self->tensor) each_own_extras(*self->tensor, clear_extras);
    return 0;
}

int tensor_setattr(PyObject* object, PyObject* name, PyObject* value) {
    int result = PyObject_GenericSetAttr(object, name, value);
    if (reinterpret_cast<TensorObject*>(object)->dict) track(object);
    return result;
}

PyObject* get_dict(PyObject* object, void* context) {
    PyObject* dict = PyObject_GenericGetDict(object, context);
    if (dict) track(object);
    return dict;
}

void tensor_dealloc(PyObject* object) {
    auto* self = reinterpret_cast<TensorObject*>(object);
    PyTypeObject* type = Py_TYPE(object);
    if (self->tracked) PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    Py_CLEAR(self->dict);
    if (Tensor* tensor = std::exchange(self->tensor, nullptr)) {
        tensor->wrapper = nullptr;
        if (--tensor->refcount == 0) release(tensor);
    }
    auto& spare = spare_objects();
    if (type == tensor_type && spare.size() < most_spare)
        spare.push_back(object);
    else
        type->tp_free(object);
    Py_DECREF(type);
}

PyObject* get_shape(PyObject* self, void*) {
    note_sizes_read(tensor_of(self));
    return size_object(tensor_of(self).sizes);
}
PyObject* get_dtype(PyObject* self, void*) { return Py_NewRef(dtype_object(tensor_of(self).dtype)); }
PyObject* get_ndim(PyObject* self, void*) { return PyLong_FromLong(tensor_of(self).ndim()); }
PyObject* get_requires_grad(PyObject* self, void*) {
    return guarded([&] { return PyBool_FromLong(takes_part(asked(tensor_of(self), "requires_grad"))); });
}
PyObject* get_base(PyObject* self, void*) { return wrap(TensorRef(asked(tensor_of(self), "_base").base)); }
PyObject* tensor_is_view(PyObject* self, PyObject*) {
    return PyBool_FromLong(bool(asked(tensor_of(self), "_is_view").base));
}
PyObject* get_is_leaf(PyObject* self, void*) {
    return PyBool_FromLong(!edge_of(asked(tensor_of(self), "is_leaf")).node);
}
PyObject* get_version(PyObject* self, void*) {
    const TensorRef x(&asked(tensor_of(self), "_version"));
    KILN_CHECK(!x->storage->inference, runtime, "Inference tensors do not track version counter.");
    return PyLong_FromLong(x->storage->version);
}
PyObject* get_memory(PyObject* self, void*) { return PyLong_FromSize_t(tensor_of(self).storage->nbytes); }
// Other memory's never, while it lives; the same for two storages of one array.
PyObject* get_place(PyObject* self, void*) {
    const Storage& storage = *tensor_of(self).storage;
    const bool apart = storage.outside || storage.foreign();
    return PyLong_FromVoidPtr(apart ? storage.data : const_cast<Storage*>(&storage));
}
PyObject* get_alone(PyObject* self, void*) {
    const TensorRef x(&tensor_of(self));
    settle(*x->storage, true);
    bool own_base = x->base && x->base->refcount == 1 && x->base->storage == x->storage;
    return PyBool_FromLong(x->storage->refcount == 1u + own_base && !x->storage->foreign());
}
PyObject* get_retains(PyObject* self, void*) {
    const Tensor& x = asked(tensor_of(self), "retains_grad");
    return PyBool_FromLong(x.meta && x.meta->retained);
}

void set_requires_grad(Tensor& x, bool wanted) {
    KILN_CHECK(wanted || !x.node, runtime,
               "you can only change requires_grad flags of leaf variables. If you want to use a computed "
               "variable in a subgraph that doesn't require differentiation use var_no_grad = "
               "var.detach().");
    KILN_CHECK(!wanted || is_float(x.dtype), runtime,
               "only Tensors of floating point dtype can require gradients, got ", name(x.dtype));
    KILN_CHECK(!wanted || !x.storage->inference || inference_mode(), runtime,
               "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
    if (wanted || x.meta) ensure_meta(x).requires_grad = wanted;
}

int put_requires_grad(PyObject* self, PyObject* value, void*) {
    KILN_CHECK(value && PyBool_Check(value), runtime, "requires_grad must be a bool");
    set_requires_grad(tensor_of(self), value == Py_True);
    return 0;
}

PyObject* get_grad(PyObject* self, void*) {
    const Tensor& x = asked(tensor_of(self), "grad");
    if (x.meta && x.meta->grad) return wrap(x.meta->grad);
    if (x.node && !(x.meta && x.meta->retained) &&
        PyErr_WarnEx(
            PyExc_UserWarning,
            "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad "
            "attribute won't be populated during autograd.backward(). If you indeed want the .grad "
            "field to be populated for a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor.",
            1) < 0)
        return nullptr;
    Py_RETURN_NONE;
}

int put_grad(PyObject* self, PyObject* value, void*) {
    Tensor& x = tensor_of(self);
    if (!value || value == Py_None) {
        if (x.meta) x.meta->grad = nullptr;
        return 0;
    }
    KILN_CHECK(is_tensor(value), type, "assigned grad expected to be a Tensor or None but got grad of type ",
               Py_TYPE(value)->tp_name);
    KILN_CHECK(value != self, runtime, "can't assign Variable as its own grad");
    Tensor& grad = tensor_of(value);
    KILN_CHECK(grad.sizes == x.sizes, runtime, "attempting to assign a gradient of size '",
               shape_text(grad.sizes), "' to a tensor of size '", shape_text(x.sizes),
               "'. Please ensure that the gradient and the tensor are the same size");
    KILN_CHECK(grad.dtype == x.dtype, runtime, "attempting to assign a gradient with dtype '",
               name(grad.dtype), "' to a tensor with dtype '", name(x.dtype),
               "'. Please ensure that the gradient and the tensor have the same dtype");
    ensure_meta(x).grad = TensorRef(&grad);
    return 0;
}

PyObject* get_data(PyObject* self, void*) {
    const TensorRef x(&tensor_of(self));
    TensorRef data = alias(*x);
    data->untracked = true;
    return wrap(data);
}

// A new tensor under the same Python object: graphs keep the old one.
void put_under(PyObject* self, const TensorRef& changed) {
    auto* object = reinterpret_cast<TensorObject*>(self);
    TensorRef old(object->tensor);
    if (old->meta && old->meta->owner == old.get()) old->meta->owner = changed.get();
    ++changed->refcount;
    object->tensor = changed.get();
    changed->wrapper = std::exchange(old->wrapper, nullptr);
    --old->refcount;                  // the object's
    drop_when_alone(std::move(old));  // another thread may be in the middle of a call with it
}

PyObject* tensor_become(PyObject* self, PyObject* args) {
    const char* name;
    PyObject* view;
    if (!PyArg_ParseTuple(args, "sO:_become", &name, &view)) return nullptr;
    put_under(self, become(tensor_of(self), expect_tensor(view, "view"), name));
    return Py_NewRef(self);
}

int put_data(PyObject* self, PyObject* value, void*) {
    Tensor& x = tensor_of(self);
    KILN_CHECK(value, runtime, "Deleting tensor data is not allowed. Delete tensor instead!");
    KILN_CHECK(is_tensor(value), type, "Variable data has to be a tensor, but got ", Py_TYPE(value)->tp_name);
    Tensor& source = tensor_of(value);
    KILN_CHECK(is_float(source.dtype) || !x.requires_grad(), runtime,
               "data set to a tensor that requires gradients must be floating point or complex dtype, "
               "got ",
               name(source.dtype));
    KILN_CHECK(source.dtype == x.dtype || !x.node, runtime, "data: expected dtype ", name(x.dtype), ", got ",
               name(source.dtype));
    TensorRef changed = alias(source);
    changed->untracked = x.untracked;
    if (is_listed(*x.storage)) run_list_of(*x.storage);
    changed->node = x.node;
    changed->output = x.output;
    changed->meta = x.meta;
    put_under(self, changed);
    return 0;
}

PyObject* tensor_dim(PyObject* self, PyObject*) { return get_ndim(self, nullptr); }
PyObject* tensor_numel(PyObject* self, PyObject*) {
    return guarded([&] {
        note_sizes_read(tensor_of(self));
        return PyLong_FromLongLong(tensor_of(self).numel);
    });
}
PyObject* tensor_element_size(PyObject* self, PyObject*) {
    return PyLong_FromSize_t(itemsize(tensor_of(self).dtype));
}
PyObject* tensor_offset(PyObject* self, PyObject*) {
    return PyLong_FromLongLong(asked(tensor_of(self), "storage_offset").offset);
}
PyObject* tensor_is_contiguous(PyObject* self, PyObject*) {
    return PyBool_FromLong(asked(tensor_of(self), "is_contiguous").contiguous);
}
PyObject* tensor_is_float(PyObject* self, PyObject*) {
    return PyBool_FromLong(is_float(tensor_of(self).dtype));
}

int64_t wrap_dim(const Tensor& x, PyObject* index) {
    Py_ssize_t dim = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (dim == -1 && PyErr_Occurred()) throw Error(ErrorKind::python, "");
    int limit = std::max(x.ndim(), 1);
    KILN_CHECK(dim >= -limit && dim < limit && x.ndim(), index,
               "Dimension out of range (expected to be in range of [", -limit, ", ", limit - 1, "], but got ",
               int64_t(dim), ")");
    return dim < 0 ? dim + x.ndim() : dim;
}

// Whether size() or stride() is asked for one dim, which is args[0] then.
bool asks_for_dim(const char* method, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const Py_ssize_t given = count + (names ? PyTuple_GET_SIZE(names) : 0);
    KILN_CHECK(given < 2, type, method, "() takes from 0 to 1 arguments but ", given, " were given");
    return given == 1 && args[0] != Py_None;
}

PyObject* tensor_size(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const TensorRef x(&tensor_of(self));
    note_sizes_read(*x);
    if (!asks_for_dim("size", args, count, names)) return size_object(x->sizes);
    return PyLong_FromLongLong(x->sizes[wrap_dim(*x, args[0])]);
}

PyObject* tensor_stride(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const TensorRef x(&tensor_of(self));
    note_sizes_read(asked(*x, "stride"));
    if (!asks_for_dim("stride", args, count, names)) return dims_object(x->strides);
    return PyLong_FromLongLong(x->strides[wrap_dim(*x, args[0])]);
}

PyObject* tensor_detach(PyObject* self, PyObject*) { return wrap(alias(tensor_of(self))); }

PyObject* tensor_is_inference(PyObject* self, PyObject*) {
    return PyBool_FromLong(asked(tensor_of(self), "is_inference").storage->inference);
}

PyObject* tensor_detach_(PyObject* self, PyObject*) {
    const TensorRef x(&tensor_of(self));
    if (is_listed(*x->storage)) run_list_of(*x->storage);
    KILN_CHECK(!x->base, runtime, "Can't detach views in-place. Use detach() instead.");
    x->node = nullptr;
    if (x->meta) x->meta->requires_grad = false;
    return Py_NewRef(self);
}

PyObject* tensor_requires_grad_(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    KILN_CHECK(!count || !is_no_flag(args[0]), type,
               "requires_grad_(): argument 'requires_grad' must be bool, not ", Py_TYPE(args[0])->tp_name);
    const int wanted = count ? PyObject_IsTrue(args[0]) : 1;
    checked_ok(wanted);
    set_requires_grad(tensor_of(self), wanted);
    return Py_NewRef(self);
}

PyObject* make_subclass(PyObject*, PyObject* args) {
    PyObject *type, *data;
    int requires_grad = 0;
    if (!PyArg_ParseTuple(args, "OO|p:_make_subclass", &type, &data, &requires_grad)) return nullptr;
    KILN_CHECK(PyType_Check(type) && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), tensor_type),
               type, "_make_subclass: expected a subclass of Tensor");
    TensorRef tensor = alias(expect_tensor(data, "data"));
    if (requires_grad) set_requires_grad(*tensor, true);
    return new_object(reinterpret_cast<PyTypeObject*>(type), tensor);
}

Py_ssize_t tensor_length(PyObject* self) {
    Tensor& x = tensor_of(self);
    if (guarded([&] { return note_sizes_read(x), 0; }) < 0) return -1;
    if (x.ndim()) return Py_ssize_t(x.sizes[0]);
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
}

PyGetSetDef getset[] = {
    {"shape", guard<get_shape>, nullptr, "The sizes, a kiln.Size.", nullptr},
    {"dtype", get_dtype, nullptr, "The type of the elements.", nullptr},
    {"ndim", get_ndim, nullptr, "How many dims.", nullptr},
    {"requires_grad", get_requires_grad, guard<put_requires_grad>,
     "Whether gradients are recorded for this tensor.", nullptr},
    {"is_leaf", guard<get_is_leaf>, nullptr, "Whether it was made by the user, not by a recorded op.",
     nullptr},
    {"retains_grad", guard<get_retains>, nullptr, "Whether a non-leaf keeps its .grad.", nullptr},
    {"grad", guard<get_grad>, guard<put_grad>, "The accumulated gradient, or None.", nullptr},
    {"data", guard<get_data>, guard<put_data>,
     "The same memory without history; writes through it are not tracked.", nullptr},
    {"_base", guard<get_base>, nullptr, "What it is a view of, or None.", nullptr},
    {"_version", guard<get_version>, nullptr, "How often the memory was written in place.", nullptr},
    {"_memory", get_memory, nullptr, "How many bytes its storage has.", nullptr},
    {"_place", get_place, nullptr, "A number that says which memory it looks at.", nullptr},
    {"_alone", guard<get_alone>, nullptr, "Whether nobody else can see its memory.", nullptr},
    {"__dict__", get_dict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(TensorObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TensorObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef methods[] = {
    {"dim", tensor_dim, METH_NOARGS, "How many dims."},
    {"ndimension", tensor_dim, METH_NOARGS, "How many dims."},
    {"numel", tensor_numel, METH_NOARGS, "How many elements."},
    {"nelement", tensor_numel, METH_NOARGS, "How many elements."},
    {"element_size", tensor_element_size, METH_NOARGS, "Bytes per element."},
    {"storage_offset", guard<tensor_offset>, METH_NOARGS,
     "Elements between the storage's start and element 0."},
    {"is_contiguous", guard<tensor_is_contiguous>, METH_NOARGS, "Whether elements lie in memory in order."},
    {"is_floating_point", tensor_is_float, METH_NOARGS, "Whether the dtype is a float one."},
    {"size", method<tensor_size>(), METH_FASTCALL | METH_KEYWORDS, "The sizes, or the size of one dim."},
    {"stride", method<tensor_stride>(), METH_FASTCALL | METH_KEYWORDS,
     "The strides in elements, or that of one dim."},
    {"detach", guard<tensor_detach>, METH_NOARGS, "The same memory without history."},
    {"detach_", guard<tensor_detach_>, METH_NOARGS, "Forgets the history in place."},
    {"requires_grad_", method<tensor_requires_grad_>(), METH_FASTCALL, "Sets requires_grad; returns self."},
    {"is_inference", guard<tensor_is_inference>, METH_NOARGS, "Whether it was made in inference mode."},
    {"_become", guard<tensor_become>, METH_VARARGS,
     "Looks where a view does from now on, and has its history."},
    {"_is_view", guard<tensor_is_view>, METH_NOARGS, "Whether it is a view of another tensor."},
    {"_make_subclass", guard<make_subclass>, METH_VARARGS | METH_STATIC,
     "data's memory under a subclass of Tensor."},
    {nullptr, nullptr, 0, nullptr},
};

Py_hash_t hash_identity(PyObject* self) { return _Py_HashPointer(self); }

// What a buffer lives on: the tensor may be given other memory before the buffer is released.
struct Lent {
    Loan loan;
    std::vector<Py_ssize_t> dims;  // sizes, then strides
};

void tensor_releasebuffer(PyObject*, Py_buffer* view) { delete static_cast<Lent*>(view->internal); }

int tensor_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    const TensorRef held(&tensor_of(self));
    Tensor& x = *held;
    KILN_CHECK(x.contiguous || (flags & PyBUF_STRIDES) == PyBUF_STRIDES, buffer,
               "memoryview: the tensor is not contiguous; call .contiguous() first");
    KILN_CHECK(!(x.storage->read_only && (flags & PyBUF_WRITABLE)), buffer,
               "the tensor's memory is read-only");
    KILN_CHECK(x.dtype != DType::bfloat16 || !(flags & PyBUF_FORMAT), buffer,
               "memoryview: buffers have no name for bfloat16; use x.float(), or x.view(kiln.int16)");
    KILN_CHECK(!(grad_enabled() && x.requires_grad()), buffer,
               "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.");
    ready_for_others(x);
    int ndim = x.ndim();
    auto* lent = new Lent{Loan(x.storage), std::vector<Py_ssize_t>(size_t(2 * ndim))};
    Py_ssize_t* dims = lent->dims.data();
    for (int d = 0; d < ndim; ++d) {
        dims[d] = x.sizes[d];
        dims[ndim + d] = x.strides[d] * Py_ssize_t(itemsize(x.dtype));
    }
    *view = {};
    view->buf = x.data();
    view->obj = Py_NewRef(self);
    view->len = x.numel * Py_ssize_t(itemsize(x.dtype));
    view->itemsize = Py_ssize_t(itemsize(x.dtype));
    view->readonly = x.storage->read_only;
    view->ndim = ndim;
    view->format = flags & PyBUF_FORMAT ? const_cast<char*>(buffer_format(x.dtype)) : nullptr;
    view->shape = flags & PyBUF_ND ? dims : nullptr;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? dims + ndim : nullptr;
    view->internal = lent;
    return 0;
}

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(tensor_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(tensor_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(tensor_clear)},
    {Py_tp_setattro, reinterpret_cast<void*>(tensor_setattr)},
    {Py_tp_getset, getset},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_hash, reinterpret_cast<void*>(hash_identity)},
    {Py_mp_length, reinterpret_cast<void*>(tensor_length)},
    {Py_sq_length, reinterpret_cast<void*>(tensor_length)},
    {Py_bf_getbuffer, slot<tensor_getbuffer>()},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(tensor_releasebuffer)},
    {Py_tp_doc,
     const_cast<char*>("A multi-dimensional array of one dtype. Made by kiln.tensor, zeros, randn, ...")},
    {0, nullptr},
};

}  // namespace

void track(PyObject* tensor) {
    auto* self = reinterpret_cast<TensorObject*>(tensor);
    if (!std::exchange(self->tracked, true)) PyObject_GC_Track(tensor);
}

PyObject* wrap(const TensorRef& tensor) {
    if (!tensor) Py_RETURN_NONE;
    if (tensor->wrapper) return Py_NewRef(static_cast<PyObject*>(tensor->wrapper));
    return new_object(tensor_type, tensor);
}

PyObject* wrap_results(const Results& results) {
    if (results.size() == 1) return wrap(results[0]);
    Object tuple = checked(PyTuple_New(Py_ssize_t(results.size())));
    for (size_t i = 0; i < results.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, wrap(results[i]));
    return tuple.release();
}

Tensor& expect_tensor(PyObject* object, const char* what) {
    KILN_CHECK(is_tensor(object), type, what, ": expected a Tensor, got ", Py_TYPE(object)->tp_name);
    return tensor_of(object);
}

int add_to_tensor(std::span<PyMethodDef> methods, std::span<PyGetSetDef> properties) {
    auto* type = reinterpret_cast<PyObject*>(tensor_type);
    for (PyMethodDef& method : methods) {
        Object descriptor = Object::steal(PyDescr_NewMethod(tensor_type, &method));
        if (!descriptor || PyObject_SetAttrString(type, method.ml_name, descriptor.get()) < 0) return -1;
    }
    for (PyGetSetDef& property : properties) {
        Object descriptor = Object::steal(PyDescr_NewGetSet(tensor_type, &property));
        if (!descriptor || PyObject_SetAttrString(type, property.name, descriptor.get()) < 0) return -1;
    }
    return 0;
}

int add_tensor(PyObject* module) {
    std::span<const PyType_Slot> operators = operator_slots();
    std::vector<PyType_Slot> all(operators.begin(), operators.end());
    all.insert(all.end(), std::begin(slots), std::end(slots));
    PyType_Spec spec = {"kiln.Tensor", sizeof(TensorObject), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, all.data()};
    return (tensor_type = add_type(module, spec)) ? 0 : -1;
}

}  // namespace kiln
