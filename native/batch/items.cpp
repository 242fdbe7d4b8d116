#include "batch/items.h"

#include <algorithm>
#include <map>
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

struct Uses {
    Last reads, writes;
};

// Of one memory.
struct Use {
    Uses any, whole;                                        // of any part, and of all of it
    std::map<std::pair<int64_t, int64_t>, Uses> stretches;  // of bytes from one place up to another
    int64_t longest = 0;                                    // of these
};
constexpr size_t most_stretches = 4096;  // of one memory; where there are more, those only read are forgotten

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
    x.storage->noted = true;
    return &(*uses)[x.storage.get()];
}
bool is_whole(const Tensor& x) { return size_t(x.numel) * itemsize(x.dtype) >= x.storage->nbytes; }

void refuse_others(const Item& item, const Uses& uses, bool writes, const Tensor& x) {
    if (const int64_t other = another(item, uses.writes); other >= 0)
        refuse(item, writes ? "writes" : "reads", other, "writes", x);
    if (!writes) return;
    if (const int64_t other = another(item, uses.reads); other >= 0)
        refuse(item, "writes", other, "reads", x);
}
void note(Uses& uses, bool writes, uint64_t id) { (writes ? uses.writes : uses.reads).add(id); }

// Of a part without gaps: what others do to bytes of it.
void note_stretch(const Item& item, Use& use, bool writes, const Tensor& x) {
    const int64_t begin = x.offset * int64_t(itemsize(x.dtype));
    const int64_t end = begin + x.numel * int64_t(itemsize(x.dtype));
    for (auto at = use.stretches.lower_bound({begin - use.longest + 1, 0});
         at != use.stretches.end() && at->first.first < end; ++at)
        if (at->first.second > begin) refuse_others(item, at->second, writes, x);
    if (use.stretches.size() >= most_stretches)
        std::erase_if(use.stretches, [](const auto& stretch) { return !stretch.second.writes.last; });
    note(use.stretches[{begin, end}], writes, item.id);
    use.longest = std::max(use.longest, end - begin);
}

void note_use(const Item& item, bool writes, const Tensor& x) {
    Use* const use = use_of(x);
    if (!use || !x.numel) return;
    const bool whole = is_whole(x);
    refuse_others(item, whole ? use->any : use->whole, writes, x);
    note(use->any, writes, item.id);
    if (whole)
        note(use->whole, writes, item.id);
    else if (x.contiguous)
        note_stretch(item, *use, writes, x);
}

// Places of an item's own, behind those of the items before and in front of those that are to come.
Places places_in(Places* outer) {
    constexpr uint64_t most = 1 << 26;
    const uint64_t count = outer ? std::min(most, (outer->end - outer->next) / 256) : most;
    const uint64_t first = outer ? std::exchange(outer->next, outer->next + count) : take_order(count);
    return {first, first + count};
}

}  // namespace

Item::Item(int64_t index_, Item* outer)
    : id([] {
          static uint64_t made = 0;
          return ++made;
      }()),
      index(index_), outer_(outer), places_(places_in(outer ? &outer->places_ : nullptr)) {
    noted_is_gone = [](const Storage& storage) { uses->erase(&storage); };
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
    for (const Operand& operand : operands)
        if (operand.tensor) note_use(item, false, *operand.tensor);
    for (const TensorRef& target : out) note_use(item, true, *target);
}

}  // namespace kiln
