// What a region remembers: bounded and measured.
#include "region.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "check.h"
#include "compiler.h"
#include "invariants.h"

namespace kiln {

namespace {

constexpr size_t most_entries = 256;        // recordings remembered per region
constexpr size_t most_forgotten = 4 * 256;  // from here on recordings must be seen again to pay

bool check_mode = asked_to_check();

// "mul(float32[n, 1] strided, a float)"
std::string op_text(const RegionEntry& entry, size_t index) {
    if (index >= entry.ops.size()) return "nothing";
    const RecordedOp& op = entry.ops[index];
    std::string text = op.fn->name + (op.writes ? "_(" : "(");
    for (uint32_t i = 0; i < op.args; ++i) {
        const RecordedArg& arg = entry.args[op.first_arg + i];
        if (i) text += ", ";
        if (arg.cls == ArgClass::number) {
            text += arg.dtype == DType::float64 ? "a float" : arg.dtype == DType::bool_ ? "a bool" : "an int";
            continue;
        }
        text += concat(name(arg.dtype), "[");
        for (int d = 0; d < arg.ndim; ++d) text += concat(d ? ", " : "", arg.ones >> d & 1 ? "1" : "n");
        const char* views[] = {"", "", " squeezed", " reshaped", " expanded", " strided"};
        text += concat("]", views[int(arg.cls)], " #", arg.storage);
    }
    return text + ")";
}

bool same_op(const RegionEntry& a, const RegionEntry& b, size_t index) {
    const RecordedOp &x = a.ops[index], &y = b.ops[index];
    if (x.fn != y.fn || x.hidden != y.hidden || x.writes != y.writes || x.args != y.args) return false;
    for (uint32_t i = 0; i < x.args; ++i) {
        const RecordedArg &p = a.args[x.first_arg + i], &q = b.args[y.first_arg + i];
        if (p.cls != q.cls || p.dtype != q.dtype || p.ndim != q.ndim || p.storage != q.storage ||
            p.ones != q.ones || p.classes != q.classes)
            return false;
    }
    return true;
}

size_t common_ops(const RegionEntry& a, const RegionEntry& b) {
    size_t count = std::min(a.ops.size(), b.ops.size()), same = 0;
    while (same < count && same_op(a, b, same)) ++same;
    return same;
}

std::string microseconds(double seconds) {
    return std::isfinite(seconds) ? concat(std::round(seconds * 1e7) / 10, " us") : "an unknown time";
}

}  // namespace

bool checking() { return check_mode; }
void set_checking(bool on) { check_mode = on; }

void RegionEntry::give(Region& region, std::shared_ptr<RegionVariant> program) {
    pending = false;
    failed = !program;
    if (failed) return;
    variant = std::move(program);
    ++compiles;
    ++region.compiles;
}

std::shared_ptr<RegionEntry> Region::entry(const Hash128& hash, bool* is_new) {
    const auto known = entries.find(hash);
    *is_new = known == entries.end();
    if (!*is_new) {
        known->second->last_use = ++uses;
        return known->second;
    }
    auto made_now = std::make_shared<RegionEntry>();
    entries.emplace(hash, made_now);
    made_now->number = ++made;
    made_now->last_use = ++uses;
    if (entries.size() > most_entries) {
        auto oldest = std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
            return a.second->last_use < b.second->last_use;
        });
        std::shared_ptr<RegionEntry> gone = oldest->second;
        measuring -= std::exchange(gone->measuring, false);  // another thread may still run it
        entries.erase(oldest);
        forgot_one();
        compiler::log(false, concat(name, ": forgets recording ", gone->number, " (", gone->ops.size(),
                                    " ops, seen ", gone->seen, " times) to keep ", most_entries));
    }
    return made_now;
}

void Region::forgot_one() {
    if (++evicted < most_forgotten || 2 * runs >= uses || off) return;
    off = "hardly any recording was seen again";
    compiler::log(false, concat(name, ": ", made, " recordings, ", runs, " of ", uses,
                                " runs by a program: the region is switched off"));
}

void Region::describe(RegionEntry& entry, std::span<const RecordedOp> ops,
                      std::span<const RecordedArg> args) {
    entry.ops.assign(ops.begin(), ops.end());
    entry.args.assign(args.begin(), args.end());
    const RegionEntry* nearest = nullptr;
    size_t most = 0;
    for (const auto& [hash, other] : entries) {
        if (other.get() == &entry || other->ops.empty()) continue;
        size_t same = common_ops(entry, *other);
        if (!nearest || same > most || (same == most && other->last_use > nearest->last_use)) {
            nearest = other.get();
            most = same;
        }
    }
    if (nearest)
        entry.anew = concat("op ", most + 1, " was ", op_text(*nearest, most), " in recording ",
                            nearest->number, " and is ", op_text(entry, most));
}

void Region::measured(RegionEntry& entry) {
    entry.decided = true;
    entry.measuring = false;
    --measuring;
    auto pays = [](double with, double without) { return with <= std::max(without * 1.05, without + 1e-6); };
    double record = std::isfinite(entry.times.record) ? entry.times.record : 0;
    double program = entry.failed ? entry.times.replay : entry.times.program;
    if (!std::isfinite(program) || !std::isfinite(entry.times.replay)) return;
    entry.slower = !pays(program + record, entry.times.replay);
    if (entry.slower)
        compiler::log(false, concat(this->name, ": recording ", entry.number, " takes ",
                                    microseconds(program + record), " as a program, ",
                                    microseconds(entry.times.replay), " op by op: it runs op by op"));
    double with = 0, without = 0;
    uint64_t known = 0;
    for (const auto& [hash, other] : entries) {
        if (!other->decided || !std::isfinite(other->times.replay)) continue;
        known += other->seen;
        without += other->times.replay;
        with += (other->slower || other->failed ? other->times.replay : other->times.program) +
                (std::isfinite(other->times.record) ? other->times.record : 0);
    }
    if (2 * known < uses || pays(with, without)) return;
    off = "recording it was measured to cost more than it saves";
    compiler::log(false, concat(this->name, ": recording costs more than it saves (", microseconds(with),
                                " against ", microseconds(without), "): the region is switched off"));
}

}  // namespace kiln
