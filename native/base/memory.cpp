#include "base/memory.h"

#include <cstring>
#include <limits>
#include <new>

#include "base/block_cache.h"
#include "base/check.h"
#include "base/free_list.h"
#include "base/invariants.h"

namespace kiln {
namespace {

constinit blocks::Cache cache;

// ---- headers: storages not in use ----

constexpr size_t headers_at_once = 128;
Storage* free_headers = nullptr;  // linked through `context`

[[gnu::noinline]] void new_headers() {
    Storage* headers = new (std::nothrow) Storage[headers_at_once];
    KILN_CHECK(headers, memory, "allocate: no memory for a tensor's header");
    for (size_t i = 0; i < headers_at_once; ++i) {
        headers[i].context = free_headers;
        free_headers = headers + i;
    }
}

int inference_threads = 0;
thread_local bool inference = false;

Storage* take_header() {
    if (!free_headers) new_headers();
    Storage* storage = free_headers;
    free_headers = static_cast<Storage*>(storage->context);
    __builtin_prefetch(free_headers, 1);  // taken next: it may have been dropped long ago
    storage->context = nullptr;
    if (inference_threads) [[unlikely]]
        storage->inference = inference;
    return storage;
}

void give_header(Storage* storage) {
    *storage = Storage();
    storage->context = free_headers;
    free_headers = storage;
}

void drop_foreign(Storage* storage) {
    void* const context = storage->context;
    const Deleter deleter = storage->deleter;
    give_header(storage);  // first: a deleter may run Python, and with it anything
    deleter(context);
}

}  // namespace

bool inference_mode() { return inference; }

void set_inference_mode(bool wanted) {
    inference_threads += wanted - inference;
    inference = wanted;
}

void release(Storage* storage) {
    assert_locked();
    if (storage->noted) [[unlikely]]
        noted_is_gone(*storage);
    // A deleter may let go of foreign memory again: `x = from_numpy(x.numpy())` in a loop.
    if (storage->foreign()) return drop_in_turn(storage, &Storage::next_dying, drop_foreign);
    const blocks::Block block{storage->data, storage->size_class};
    give_header(storage);
    cache.give(block);
}

StorageRef allocate(size_t nbytes) {
    assert_locked();
    if (!free_headers) new_headers();  // before the block, which would leak if this raised
    const blocks::Block block = cache.take(nbytes);
    Storage* storage = take_header();
    storage->data = block.data;
    storage->nbytes = nbytes;
    storage->size_class = block.size_class;
    return StorageRef(storage);
}

StorageRef reserve(size_t nbytes) {
    assert_locked();
    Storage* storage = take_header();
    storage->nbytes = nbytes;
    return StorageRef(storage);
}

StorageRef adopt(void* data, size_t nbytes, Deleter deleter, void* context, bool read_only) {
    KILN_CHECK(deleter, internal, "adopt: foreign memory needs a deleter");
    Storage* storage = take_header();
    storage->data = data;
    storage->nbytes = nbytes;
    storage->deleter = deleter;
    storage->context = context;
    storage->outside = for_good;
    storage->read_only = read_only;
    return StorageRef(storage);
}

void drop_part(void* whole) {
    const StorageRef last(static_cast<Storage*>(whole));
    --last->refcount;
}

void become_part(Storage& part, Storage& whole, void* data) {
    ++whole.refcount;
    part.data = data;
    part.deleter = drop_part;
    part.context = &whole;
    part.recording_id = -1;
}

void leave_whole(Storage& part) {
    const StorageRef own = allocate(part.nbytes);
    if (part.nbytes) std::memcpy(own->data, part.data, part.nbytes);
    std::swap(part.data, own->data);
    std::swap(part.size_class, own->size_class);
    std::swap(part.deleter, own->deleter);
    std::swap(part.context, own->context);
}

size_t checked_nbytes(int64_t count, size_t itemsize) {
    size_t nbytes;
    const bool fits = count >= 0 && !__builtin_mul_overflow(size_t(count), itemsize, &nbytes) &&
                      nbytes <= size_t(std::numeric_limits<ptrdiff_t>::max());
    KILN_CHECK(fits, runtime, "a tensor of ", count, " elements of ", itemsize,
               " bytes is not addressable: expected a count >= 0 and fewer than 2^63 bytes");
    return nbytes;
}

MemoryStats memory_stats() { return cache.stats(); }
void reset_peak_allocated() { cache.reset_peak(); }
size_t empty_cache() { return cache.empty(); }
void set_cache_limit(size_t bytes) { cache.set_limit(bytes); }

}  // namespace kiln
