// DLPack: memory lent to other libraries and borrowed from them, never copied here.
//
//     lent        a capsule owns a managed tensor, which owns a tensor of kiln and its shape and strides; who
//                 takes it renames the capsule and calls the managed tensor's deleter when done
//     borrowed    the capsule is renamed, and a storage calls its managed tensor's deleter at its end
//
// Both forms of the protocol: "dltensor", and from version 1.0 on "dltensor_versioned", which can say that
// memory is read-only.
#include "binding/bind.h"

#include <memory>
#include <optional>
#include <type_traits>

namespace kiln {

namespace {

// ---- dlpack.h, version 1.0 ----

struct DLDevice {
    int32_t type, index;
};
struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
};
struct DLTensor {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};
struct Managed {
    DLTensor tensor;
    void* context;
    void (*deleter)(Managed*);
};
struct ManagedVersioned {
    uint32_t major, minor;
    void* context;
    void (*deleter)(ManagedVersioned*);
    uint64_t flags;
    DLTensor tensor;
};
constexpr int32_t cpu_device = 1;
constexpr uint64_t flag_read_only = 1, flag_copied = 2;
enum Code : uint8_t { code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6 };

template <class M>
constexpr bool versioned = std::is_same_v<M, ManagedVersioned>;
template <class M>
constexpr const char* capsule_name = versioned<M> ? "dltensor_versioned" : "dltensor";
template <class M>
constexpr const char* used_name = versioned<M> ? "used_dltensor_versioned" : "used_dltensor";

DLDataType type_of(DType dtype) {
    static const Code codes[dtype_count] = {code_bool, code_uint,  code_int,    code_int,   code_int,
                                            code_int,  code_float, code_bfloat, code_float, code_float};
    return {codes[int(dtype)], uint8_t(8 * itemsize(dtype)), 1};
}

DType dtype_of(DLDataType type) {
    for (int i = 0; i < dtype_count; ++i) {
        DLDataType own = type_of(DType(i));
        if (own.code == type.code && own.bits == type.bits && type.lanes == 1) return DType(i);
    }
    raise(ErrorKind::buffer, concat("from_dlpack: no dtype holds elements of code ", int(type.code), ", ",
                                    int(type.bits), " bits, ", int(type.lanes), " lanes"));
}

// ---- lent ----

// What a managed tensor owns; the tensor is dropped with the interpreter lock held, or not at all once there
// is no interpreter.
template <class M>
struct Lent {
    M managed = {};
    TensorRef tensor;
    std::optional<Loan> loan;
    std::vector<int64_t> dims;

    static void drop(M* managed) {
        if (!Py_IsInitialized()) return;
        PyGILState_STATE state = PyGILState_Ensure();
        delete static_cast<Lent*>(managed->context);
        PyGILState_Release(state);
    }
};

// A capsule that goes with its own name was never taken.
template <class M>
void drop_capsule(PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, capsule_name<M>)) return;
    auto* managed = static_cast<M*>(PyCapsule_GetPointer(capsule, capsule_name<M>));
    if (managed->deleter) managed->deleter(managed);
}

template <class M>
PyObject* lend(Tensor& x, bool copied) {
    auto lent = std::make_unique<Lent<M>>();
    lent->tensor = alias(x);
    lent->loan.emplace(x.storage);
    lent->dims.assign(x.sizes.begin(), x.sizes.end());
    lent->dims.insert(lent->dims.end(), x.strides.begin(), x.strides.end());
    DLTensor& tensor = lent->managed.tensor;
    tensor.data = x.numel ? x.data() : nullptr;
    tensor.device = {cpu_device, 0};
    tensor.ndim = x.ndim();
    tensor.dtype = type_of(x.dtype);
    tensor.shape = lent->dims.data();
    tensor.strides = lent->dims.data() + x.ndim();
    lent->managed.context = lent.get();
    lent->managed.deleter = Lent<M>::drop;
    if constexpr (versioned<M>) {
        lent->managed.major = 1;
        lent->managed.flags = (x.storage->read_only ? flag_read_only : 0) | (copied ? flag_copied : 0);
    }
    Object capsule = checked(PyCapsule_New(&lent->managed, capsule_name<M>, drop_capsule<M>));
    lent.release();
    return capsule.release();
}

// (tensor, versioned, copied) -> capsule
PyObject* to_capsule(PyObject*, PyObject* args) {
    PyObject* object;
    int with_version, copied;
    if (!PyArg_ParseTuple(args, "Opp:to_capsule", &object, &with_version, &copied)) return nullptr;
    const TensorRef held(&expect_tensor(object, "__dlpack__"));
    Tensor& x = *held;
    KILN_CHECK(!x.requires_grad(), buffer, "Can't export tensors that require gradient, use tensor.detach()");
    KILN_CHECK(with_version || !x.storage->read_only, buffer,
               "__dlpack__: the tensor's memory is read-only, which only max_version=(1, 0) or later can "
               "say; use tensor.clone()");
    ready_for_others(x);
    return with_version ? lend<ManagedVersioned>(x, copied) : lend<Managed>(x, copied);
}

// ---- borrowed ----

template <class M>
void give_back(void* context) {
    auto* managed = static_cast<M*>(context);
    if (managed->deleter) managed->deleter(managed);
}

void expect_sound(const DLTensor& tensor, DType dtype) {
    KILN_CHECK(tensor.device.type == cpu_device, buffer,
               "from_dlpack: expected memory of the CPU (device type 1), got device type ",
               int64_t(tensor.device.type));
    KILN_CHECK(tensor.ndim >= 0 && tensor.ndim <= 64 && (tensor.shape || !tensor.ndim), buffer,
               "from_dlpack: not a tensor's shape: ", int64_t(tensor.ndim), " dims");
    for (int d = 0; tensor.strides && d < tensor.ndim; ++d)
        KILN_CHECK(tensor.strides[d] >= 0 || tensor.shape[d] <= 1, buffer,
                   "from_dlpack: negative strides are not supported; copy the array first");
    auto at = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
    KILN_CHECK(at % itemsize(dtype) == 0, buffer,
               "from_dlpack: the memory is not aligned to its element size; copy the array first");
}

// The tensor of a capsule, which is used up when nothing can fail any more.
template <class M>
PyObject* borrow(PyObject* capsule) {
    auto* managed = static_cast<M*>(PyCapsule_GetPointer(capsule, capsule_name<M>));
    bool read_only = false;
    if constexpr (versioned<M>) {
        KILN_CHECK(managed->major == 1, buffer, "from_dlpack: expected DLPack version 1, got version ",
                   int64_t(managed->major));
        read_only = managed->flags & flag_read_only;
    }
    const DLTensor& tensor = managed->tensor;
    DType dtype = dtype_of(tensor.dtype);
    expect_sound(tensor, dtype);
    const auto ndim = size_t(tensor.ndim);
    Dims sizes{std::span<const int64_t>(tensor.shape, ndim)};
    const int64_t numel = checked_numel(sizes);
    Dims strides = contiguous_strides(sizes);
    if (tensor.strides) strides = Dims(std::span<const int64_t>(tensor.strides, ndim));
    const size_t nbytes = numel ? checked_nbytes(extent(sizes, strides, 0).second, itemsize(dtype)) : 0;
    KILN_CHECK(tensor.data || !numel, buffer, "from_dlpack: elements without memory");
    checked_ok(PyCapsule_SetName(capsule, used_name<M>));
    alignas(memory_alignment) static std::byte nothing[memory_alignment];  // where no elements are
    void* data = numel ? static_cast<std::byte*>(tensor.data) + tensor.byte_offset : nothing;
    StorageRef storage = adopt(data, nbytes, give_back<M>, managed, read_only);
    TensorRef flat = new_tensor(dtype, Dims(), std::move(storage));
    PyObject* object = wrap(new_view(*flat, std::move(sizes), std::move(strides), 0));
    if (object) track(object);
    return object;
}

PyObject* from_capsule(PyObject*, PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, capsule_name<ManagedVersioned>)) return borrow<ManagedVersioned>(capsule);
    KILN_CHECK(PyCapsule_IsValid(capsule, capsule_name<Managed>), runtime,
               "from_dlpack: expected a DLPack capsule, got ", Py_TYPE(capsule)->tp_name,
               "; a capsule can be used only once");
    return borrow<Managed>(capsule);
}

PyMethodDef functions[] = {
    {"to_capsule", guard<to_capsule>, METH_VARARGS,
     "A tensor's memory for others: (tensor, versioned, copied)."},
    {"from_capsule", guard<from_capsule>, METH_O, "The memory of a DLPack capsule as a tensor."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_dlpack(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
