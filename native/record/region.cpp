#include "record/region.h"

#include <algorithm>
#include <utility>

#include "call/compiler.h"
#include "record/record.h"

namespace kiln {

namespace {

constexpr size_t most_entries = 256;  // recordings remembered per region
constexpr size_t most_ends = 8;       // different ends remembered of a recording

// Compiling takes as long as many hundred runs. Where recordings are few, second sight tells that one
// repeats; where they are many, a long one must be seen once more for each so many ops.
constexpr uint64_t few_entries = 8;
constexpr size_t ops_per_sight = 64;

// A call whose ops have no program in sight takes 2 of a region's patience, one whose programs are being
// compiled takes 1, one that ran by its programs gives 4. A look after a rest has patience for a part of the
// calls of the rest, so looking costs little whatever the program does, and recordings that come again after
// many calls are found as well.
constexpr int64_t lost_call = 2, waiting_call = 1, ran_call = 4;
constexpr uint64_t first_rest = 128, most_rest = uint64_t(1) << 20;
constexpr uint64_t rest_per_look = 32;
constexpr uint64_t first_off = 4096, most_off = uint64_t(1) << 28;
constexpr uint32_t trial_calls = 16;
constexpr uint64_t steady = 32;  // calls by programs, from which on a later rest is a first one again

}  // namespace

void RegionEntry::give(Region& region, std::shared_ptr<RegionVariant> program) {
    region.stop_waiting(*this);
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

std::shared_ptr<RegionEntry> Region::expected() const {
    const auto known = last ? entries.find(last->next) : entries.end();
    return known == entries.end() ? nullptr : known->second;
}

std::shared_ptr<RegionEntry> Region::entry(const Recording& recording) {
    const Hash128 hash = recording.expected() ? recording.expected()->hash : recording.hash();
    const auto known = entries.find(hash);
    if (last) last->next = hash;
    if (known != entries.end()) {
        known->second->last_use = ++uses;
        return last = known->second;
    }
    auto added = last = std::make_shared<RegionEntry>();
    added->hash = hash;
    added->list = recording.list();
    added->environment = recording.environment();
    for (RecordedStorage s : recording.storages()) {
        s.identity = std::exchange(s.storage, {}).get();
        added->storages.push_back(s);
    }
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

bool Region::repeats(const RegionEntry& entry, size_t ops) const {
    const bool few = made <= few_entries || check_mode;
    return entry.seen >= 2 + (few ? 0 : ops / ops_per_sight);
}

void Region::note(const RegionEntry& entry, size_t ops, bool by_program) {
    uint64_t& count = by_program ? call.ran : entry.pending ? call.waiting : call.lost;
    if (by_program || entry.pending || !(entry.failed || entry.variant)) count += ops;
}

void Region::end_call() {
    const RegionOps ops = std::exchange(call, RegionOps());
    const uint64_t all = ops.ran + ops.waiting + ops.lost;
    if (check_mode || wait || !off.empty() || all == 0) return;
    if (2 * ops.ran >= all) {
        patience = std::max(patience, std::min(patience + ran_call, most_patience));
        if (++ran == trial_at) trial = {trial_calls};
        if (ran == steady) next_rest = 0;
        return;
    }
    ran = 0;
    patience -= ops.lost > ops.waiting ? lost_call : waiting_call;
    if (patience > 0) return;
    if (waits > 0 && ops.waiting >= ops.lost) {
        off = "its programs are being compiled";
        rest = until_compiled;
        return;
    }
    next_rest = next_rest == 0 ? first_rest : std::min(2 * next_rest, most_rest);
    off = "hardly any recording was seen again";
    rest = next_rest;
    compiler::log(
        false, concat(name, ": hardly any of its recordings is seen again: it rests for ", rest, " calls"));
}

bool Region::rests() {
    if (rest == 0) return wake(), false;
    rest -= rest != until_compiled;
    return true;
}

void Region::wake() {
    rest = 0;
    off.clear();
    patience = std::max(most_patience / 2, int64_t(next_rest / rest_per_look) * lost_call);
    ran = 0;
    if (!std::exchange(anew, false)) return;
    trial_at = first_trial;
    for (auto& [hash, entry] : entries) {  // it may be called on larger tensors by now
        measuring -= std::exchange(entry->measuring, false);
        entry->decided = entry->slower = false;
        entry->settled = 0;
        entry->times = {};
    }
}

void Region::stop(const std::string& why) {
    if (!off.empty()) return;
    next_trial = next_trial == 0 ? first_off : std::min(4 * next_trial, most_off);
    off = why;
    rest = next_trial;
    trial = {};
    anew = true;
}

void Region::wait_for(RegionEntry& entry) {
    if (std::exchange(entry.pending, true)) return;
    ++waits;
    large_pending += entry.list.ops.size() > large_program;
}

void Region::stop_waiting(RegionEntry& entry) {
    if (!std::exchange(entry.pending, false)) return;
    --waits;
    large_pending -= entry.list.ops.size() > large_program;
    if (rest == until_compiled) wake();
}

}  // namespace kiln
