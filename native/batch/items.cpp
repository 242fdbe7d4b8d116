#include "batch/items.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "batch/list.h"
#include "call/op.h"

namespace kiln {

namespace {

// The last two items that did something: enough to find one that is another.
struct Last {
    uint64_t last = 0, before = 0;
    void add(uint64_t id) {
        if (id != last) before = std::exchange(last, id);
    }
};

struct Use {
    StorageRef storage;  // held, so that its address stays its own
    Last reads, writes, whole_reads, whole_writes;
};

auto* const items = new std::unordered_map<uint64_t, int64_t>;  // those that live: their indices
auto* const uses = new std::unordered_map<const Storage*, Use>;

// The index of an item that lives and is another one than this and those it is in; -1: none.
int64_t another(const Item& item, const Last& last) {
    for (const uint64_t id : {last.last, last.before}) {
        if (!id || item.is_or_is_in(id)) continue;
        if (const auto found = items->find(id); found != items->end()) return found->second;
    }
    return -1;
}

[[noreturn]] void refuse(const Item& item, const char* does, int64_t other, const char* did,
                         const Tensor& x) {
    raise(
        ErrorKind::runtime,
        concat(
            "batching.map: item ", item.index, " ", does, " what item ", other, " ", did, ", a ",
            name(x.dtype), " tensor of shape ", shape_text(x.sizes),
            ": items run together and must not depend on each other; give each a tensor of its own (clone), "
            "or write after the map"));
}

// What a use is noted in; null for memory that only this call's item can have.
Use* use_of(const Tensor& x) {
    if (!x.storage || is_listed(*x.storage) || is_part(*x.storage) || x.storage->nbytes == size_t(-1))
        return nullptr;
    Use& use = (*uses)[x.storage.get()];
    if (!use.storage) use.storage = x.storage;
    return &use;
}
bool is_whole(const Tensor& x) { return size_t(x.numel) * itemsize(x.dtype) >= x.storage->nbytes; }

}  // namespace

Item::Item(int64_t index_, const Item* outer)
    : id([] {
          static uint64_t made = 0;
          return ++made;
      }()),
      index(index_), outer_(outer) {
    items->emplace(id, index);
}

Item::~Item() {
    items->erase(id);
    if (items->empty()) const auto dropped = std::exchange(*uses, {});
}

bool Item::is_or_is_in(uint64_t other) const {
    for (const Item* item = this; item; item = item->outer_)
        if (item->id == other) return true;
    return false;
}

void note_uses(const Item& item, const Fn& fn, std::span<const Operand> operands,
               std::span<const TensorRef> out) {
    if (fn.cls == FnClass::view) return;
    for (const Operand& operand : operands) {
        Use* const use = operand.tensor ? use_of(*operand.tensor) : nullptr;
        if (!use) continue;
        const bool whole = is_whole(*operand.tensor);
        const int64_t other = another(item, whole ? use->writes : use->whole_writes);
        if (other >= 0) refuse(item, "reads", other, "writes", *operand.tensor);
        use->reads.add(item.id);
        if (whole) use->whole_reads.add(item.id);
    }
    for (const TensorRef& target : out) {
        Use* const use = use_of(*target);
        if (!use) continue;
        const bool whole = is_whole(*target);
        int64_t other = another(item, whole ? use->reads : use->whole_reads);
        if (other >= 0) refuse(item, "writes", other, "reads", *target);
        other = another(item, whole ? use->writes : use->whole_writes);
        if (other >= 0) refuse(item, "writes", other, "writes", *target);
        use->writes.add(item.id);
        if (whole) use->whole_writes.add(item.id);
    }
}

void forget_unused() {
    std::vector<StorageRef> dropped;  // at the end: a deleter may run anything
    for (auto at = uses->begin(); at != uses->end();)
        if (at->second.storage->refcount == 1) {
            dropped.push_back(std::move(at->second.storage));
            at = uses->erase(at);
        } else {
            ++at;
        }
}

}  // namespace kiln
