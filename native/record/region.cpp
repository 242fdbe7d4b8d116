#include "record/region.h"

#include <algorithm>
#include <utility>

#include "call/compiler.h"

namespace kiln {

namespace {

constexpr size_t most_entries = 256;  // recordings remembered per region
constexpr size_t most_ends = 8;       // different ends remembered of a recording

}  // namespace

void RegionEntry::give(Region& region, std::shared_ptr<RegionVariant> program) {
    pending = false;
    failed = !program;
    if (failed) return;
    variant = std::move(program);
    ++compiles;
    ++region.compiles;
}

void RegionEntry::note_end(const char* cause) {
    const std::string_view text = cause;
    const bool mid_call = text == "a value was read" || text.starts_with("of a write");
    SourceLine line = mid_call && SourceLine::current ? SourceLine::current() : SourceLine();
    auto same = [&](const RegionEnd& end) { return end.cause == text && end.line == line; };
    auto known = std::find_if(ends.begin(), ends.end(), same);
    if (known != ends.end())
        ++known->times;
    else if (ends.size() < most_ends)
        ends.push_back({cause, std::move(line), 1});
}

std::shared_ptr<RegionEntry> Region::entry(const Hash128& hash, const OpList& list) {
    if (const auto known = entries.find(hash); known != entries.end()) {
        known->second->last_use = ++uses;
        return known->second;
    }
    auto added = std::make_shared<RegionEntry>();
    added->list = list;
    entries.emplace(hash, added);
    added->number = ++made;
    added->last_use = ++uses;
    if (entries.size() <= most_entries) return added;
    auto oldest = std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        return a.second->last_use < b.second->last_use;
    });
    const std::shared_ptr<RegionEntry> gone = oldest->second;
    measuring -= std::exchange(gone->measuring, false);  // another thread may still run it
    entries.erase(oldest);
    ++evicted;
    compiler::forgotten(*this, *gone);
    return added;
}

}  // namespace kiln
