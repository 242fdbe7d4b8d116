// Memory that processes share: storages over a mapped file descriptor.
//
// A mapping has an owner, Python's object for the descriptor, where other processes may look at the memory
// too; without one (a batch that a worker sent) this process alone knows it, and it is as private as any
// other.
#include "binding/bind.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>

namespace kiln {

namespace {

constexpr size_t at_once = 64 << 20;  // up to here all pages are mapped at once, beyond as they are touched

struct Mapping {
    void* data;
    size_t nbytes;    // 0: not this one's to unmap
    PyObject* owner;  // or null
    StorageRef kept;  // what a lease is of; what the mapping replaced, where others may still look at it
};

// The storage of each owner's memory, so that a process has one however often it is sent to it.
std::unordered_map<PyObject*, Storage*>& storages() {
    static auto* map = new std::unordered_map<PyObject*, Storage*>();
    return *map;
}

void unmap(void* context) {
    auto* mapping = static_cast<Mapping*>(context);
    if (mapping->nbytes) munmap(mapping->data, mapping->nbytes);
    if (mapping->owner) {
        if (mapping->nbytes) storages().erase(mapping->owner);
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(mapping->owner);
        PyGILState_Release(state);
    }
    delete mapping;
}

// The first bytes of a descriptor as a storage.
StorageRef mapped(int descriptor, size_t nbytes, PyObject* owner) {
    struct stat found;
    KILN_CHECK(fstat(descriptor, &found) == 0 && nbytes && size_t(found.st_size) >= nbytes, runtime,
               "shared memory: expected a descriptor of at least ", nbytes, " bytes");
    const int flags = MAP_SHARED | (nbytes <= at_once ? MAP_POPULATE : 0);
    void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    KILN_CHECK(data != MAP_FAILED, memory, "shared memory: ", nbytes,
               " bytes cannot be mapped: ", std::strerror(errno));
    auto* mapping = new Mapping{data, nbytes, owner == Py_None ? nullptr : Py_NewRef(owner), {}};
    StorageRef storage = adopt(data, nbytes, unmap, mapping);
    if (!mapping->owner) storage->outside = 0;
    return storage;
}

TensorRef bytes_of(StorageRef storage) {
    const int64_t nbytes = int64_t(storage->nbytes);
    return new_tensor(DType::uint8, Dims{nbytes}, std::move(storage));
}

// map_shared(descriptor, bytes, owner or None): a uint8 tensor.
PyObject* map_shared(PyObject*, PyObject* args) {
    int descriptor;
    Py_ssize_t nbytes;
    PyObject* owner;
    if (!PyArg_ParseTuple(args, "inO:map_shared", &descriptor, &nbytes, &owner)) return nullptr;
    if (auto found = storages().find(owner); found != storages().end() && found->second->refcount)
        return wrap(bytes_of(StorageRef(found->second)));
    StorageRef storage = mapped(descriptor, size_t(nbytes), owner);
    if (owner != Py_None) storages()[owner] = storage.get();
    return wrap(bytes_of(std::move(storage)));
}

// lease(x, bytes, owner): the first bytes of x's memory as a uint8 tensor of a storage of its own.
PyObject* lease(PyObject*, PyObject* args) {
    PyObject *object, *owner;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "OnO:lease", &object, &nbytes, &owner)) return nullptr;
    const StorageRef kept = expect_tensor(object, "lease").storage;
    KILN_CHECK(nbytes >= 0 && size_t(nbytes) <= kept->nbytes, runtime, "lease: more than there is");
    auto* mapping = new Mapping{kept->data, 0, Py_NewRef(owner), kept};
    StorageRef storage = adopt(kept->data, size_t(nbytes), unmap, mapping);
    storage->outside = 0;
    return wrap(bytes_of(std::move(storage)));
}

// x._share(descriptor, owner): the memory behind x, for all that look at it, is the descriptor's from now on.
PyObject* tensor_share(PyObject* self, PyObject* args) {
    int descriptor;
    PyObject* owner;
    if (!PyArg_ParseTuple(args, "iO:_share", &descriptor, &owner)) return nullptr;
    const StorageRef storage = tensor_of(self).storage;
    settle(*storage, true);
    StorageRef other = mapped(descriptor, storage->nbytes, owner);
    std::memcpy(other->data, storage->data, storage->nbytes);
    std::swap(storage->data, other->data);
    std::swap(storage->size_class, other->size_class);
    std::swap(storage->deleter, other->deleter);
    std::swap(storage->context, other->context);
    other->borrowed = storage->borrowed;
    storage->borrowed = false;
    // arrays and addresses of the old memory stay good
    if (storage->outside || other->borrowed) static_cast<Mapping*>(storage->context)->kept = std::move(other);
    storages()[owner] = storage.get();
    storage->outside = for_good;
    storage->read_only = false;
    storage->below = 0;
    Py_RETURN_NONE;
}

PyObject* get_shared(PyObject* self, void*) {
    const Storage& storage = *asked(tensor_of(self), "is_shared").storage;
    if (storage.deleter != unmap) Py_RETURN_FALSE;
    PyObject* owner = static_cast<Mapping*>(storage.context)->owner;
    return Py_NewRef(owner ? owner : Py_True);
}

PyMethodDef functions[] = {
    {"map_shared", guard<map_shared>, METH_VARARGS,
     "The memory of a descriptor as a uint8 tensor: (descriptor, bytes, owner or None)."},
    {"lease", guard<lease>, METH_VARARGS,
     "A tensor's first bytes as a uint8 tensor that keeps an owner: (tensor, bytes, owner)."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef methods[] = {
    {"_share", guard<tensor_share>, METH_VARARGS,
     "Puts the memory behind it into a descriptor's, for all that look at it: (descriptor, owner)."},
};
PyGetSetDef shared_getset = {
    "_shared", guard<get_shared>, nullptr,
    "The owner of its memory, if that is a descriptor's; True without one; or False.", nullptr};

}  // namespace

int add_shared(PyObject* module) {
    if (add_to_tensor(methods, {&shared_getset, 1}) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
