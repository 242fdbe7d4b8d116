// Running a recording: by its program, or op by op on ready kernels; and the check that both give one result.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "record/record.h"

namespace kiln {

namespace {

// Sights since a recording has its program: those after the first of these are timed, half by the program,
// half op by op.
constexpr uint64_t measure_from = 7, measure_runs = 8;

Operands operands_of(const Recording& recording, const ListedOp& op, std::vector<TensorRef>& keep) {
    return recording.list().operands_of(op, recording.environment().data(), [&](const ListedArg& arg) {
        keep.push_back(recording.tensor_of(arg));
        return Operand{keep.back().get(), {}};
    });
}

std::string place_of(const Recording& recording, const ListedOp& op) {
    const size_t index = size_t(&op - recording.list().ops.data());
    return concat("KILN_CHECK: ", recording.region()->name, ": ", op.fn->name, " of line ",
                  SourceLine::text(recording.lines()[index]));
}

// Whether a result is what the call on its line said it would be.
void check_result(const Recording& recording, const ListedOp& op, const ListedArg& out, const Tensor& y) {
    const TensorRef said = recording.tensor_of(out);
    KILN_CHECK(said->dtype == y.dtype && said->sizes == y.sizes && said->strides == y.strides, internal,
               place_of(recording, op), " gave ", name(said->dtype), " ", shape_text(said->sizes),
               " with strides ", shape_text(said->strides), " there, and now ", name(y.dtype), " ",
               shape_text(y.sizes), " with strides ", shape_text(y.strides));
}

void replay_op(const Recording& recording, const ListedOp& op, const Operands& operands) {
    std::span<const ListedArg> outs = recording.list().outs_of(op);
    auto storage_of = [&](const ListedArg& out) -> Storage& {
        return *recording.storages()[out.value].storage;
    };
    Results targets;
    if (op.writes)
        for (const ListedArg& out : outs) {
            Storage& storage = storage_of(out);
            if (!storage.data) take_memory(storage, *allocate(storage.nbytes));
            targets.push_back(recording.tensor_of(out));
        }
    const bool check = check_mode && recording.lines().size() == recording.list().ops.size();
    Results results;
    try {
        results =
            execute(*op.fn, {operands.data(), operands.size()}, {targets.data(), targets.size()}, op.hidden);
    } catch (const Error& error) {
        std::string text;
        if (!check || error.kind == ErrorKind::memory || !compiler::forgive(error, &text)) throw;
        raise(ErrorKind::internal, concat(place_of(recording, op), " raised nothing there, and now: ", text));
    }
    if (op.writes) return;
    for (size_t k = 0; check && k < outs.size(); ++k) check_result(recording, op, outs[k], *results[k]);
    for (size_t k = 0; k < outs.size(); ++k) take_memory(storage_of(outs[k]), *results[k]->storage);
}

// Where memory that nobody can see is used for the last time: (op, storage), the last op first.
using LastUses = std::vector<std::pair<const ListedOp*, Storage*>>;

LastUses last_uses(const Recording& recording) {
    LastUses found;
    std::vector<bool> seen(recording.storages().size());
    auto meet = [&](const ListedOp& op, int32_t index) {
        if (index < 0 || seen[index]) return;
        seen[index] = true;
        const RecordedStorage& s = recording.storages()[index];
        if (s.pending && s.storage->refcount == 1 && s.storage->nbytes != shape_only)
            found.push_back({&op, s.storage.get()});
    };
    for (auto op = recording.list().ops.rbegin(); op != recording.list().ops.rend(); ++op) {
        for (const ListedArg& arg : recording.list().args_of(*op)) meet(*op, arg.value);
        for (const ListedArg& out : recording.list().outs_of(*op)) meet(*op, out.value);
    }
    return found;
}

void free_after(const ListedOp& op, LastUses& uses) {
    for (; !uses.empty() && uses.back().first == &op; uses.pop_back())
        take_memory(*uses.back().second, *allocate(0));
}

// Runs the ops one by one, and adds what they take without making their operands, as eager calls would, to
// `seconds`. Memory that nobody can see goes after its last use, unless it is to be looked at.
void replay(const Recording& recording, double* seconds, bool keep_dead = false) {
    LastUses uses = keep_dead ? LastUses() : last_uses(recording);
    std::vector<TensorRef> keep;
    std::vector<Operands> operands;
    operands.reserve(recording.list().ops.size());
    for (const ListedOp& op : recording.list().ops) operands.push_back(operands_of(recording, op, keep));
    Stopwatch watch(seconds);
    for (size_t i = 0; i < operands.size(); ++i) {
        stop_if_interrupted();
        const ListedOp& op = recording.list().ops[i];
        if (!recording.lines().empty()) call_numbers.call = recording.lines()[i].call;
        replay_op(recording, op, operands[i]);
        free_after(op, uses);
    }
}

void run_variant(const Recording& recording, const RegionVariant& variant) {
    const Program& program = *variant.program;
    Dims slots(recording.environment());
    slots.resize(program.slots());
    KILN_CHECK(evaluate(program, slots.data()), internal, "a recorded program does not fit its recording");
    SmallVector<Input, 16> inputs;
    for (const RecordedStorage& s : recording.storages())
        if (!s.pending) inputs.push_back({s.storage->data, s.storage.get()});
    std::vector<StorageRef> outputs;  // new memory becomes a value's when the program has run
    for (int32_t index : variant.outputs) {
        const StorageRef& value = recording.storages()[index].storage;
        outputs.push_back(value->data ? value : allocate(value->nbytes));
    }
    if (!recording.lines().empty()) call_numbers.call = recording.lines()[0].call;
    run(program, slots.data(), {inputs.data(), inputs.size()}, outputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
        Storage& value = *recording.storages()[variant.outputs[k]].storage;
        if (&value != outputs[k].get()) take_memory(value, *outputs[k]);
    }
}

// ---- the check mode ----

StorageRef copy_of(const Storage& storage) {
    StorageRef copy = allocate(storage.nbytes);
    std::memcpy(copy->data, storage.data, storage.nbytes);
    return copy;
}

// Whether all bits are the same, but for those of NaNs.
bool same_values(DType dtype, const Storage& a, const Storage& b) {
    const size_t width = itemsize(dtype);
    const auto *x = static_cast<const std::byte*>(a.data), *y = static_cast<const std::byte*>(b.data);
    if (std::equal(x, x + a.nbytes, y)) return true;
    auto is_nan = [&](const std::byte* at) { return std::isnan(read_element(dtype, at).as_double()); };
    for (size_t i = 0; i + width <= a.nbytes; i += width)
        if (std::memcmp(x + i, y + i, width) != 0 && !(is_nan(x + i) && is_nan(y + i))) return false;
    return true;
}

// What a recording writes, as it is before.
std::vector<StorageRef> copies_of_written(const Recording& recording) {
    std::vector<StorageRef> copies;
    for (const RecordedStorage& s : recording.storages())
        copies.push_back(s.written ? copy_of(*s.storage) : StorageRef());
    return copies;
}

// After the program: runs every op again from the same start, and compares what both left in memory.
void compare_with_ops(const Recording& recording, const RegionVariant& variant, const LiveSet& live,
                      std::span<const StorageRef> before) {
    std::span<const RecordedStorage> storages = recording.storages();
    for (size_t i = 0; i < storages.size(); ++i)
        KILN_CHECK(!live[i] || storages[i].storage->data, internal, "KILN_CHECK: ", recording.region()->name,
                   ": the program left storage ", i, ", which others hold, without a value");
    std::vector<StorageRef> made(storages.size());
    for (int32_t i : variant.outputs) {
        Storage& storage = *storages[i].storage;
        if (storages[i].written) {
            made[i] = copy_of(storage);
        } else {
            made[i] = reserve(storage.nbytes);
            take_memory(*made[i], storage);
        }
    }
    for (size_t i = 0; i < storages.size(); ++i)
        if (before[i]) std::memcpy(storages[i].storage->data, before[i]->data, before[i]->nbytes);
    replay(recording, nullptr, true);
    for (size_t i = 0; i < storages.size(); ++i)
        KILN_CHECK(!made[i] || same_values(storages[i].dtype, *storages[i].storage, *made[i]), internal,
                   "KILN_CHECK: ", recording.region()->name, ": the program of ", recording.list().ops.size(),
                   " ops left other bits in storage ", i, " than the ops themselves");
}

// How often each memory was written, as the lines of the calls have counted it.
std::vector<uint32_t> versions_of(const Recording& recording) {
    std::vector<uint32_t> versions;
    for (const RecordedStorage& s : recording.storages()) versions.push_back(s.storage->version);
    return versions;
}

// ---- choosing ----

// The program for this live set, made if it is time; null: op by op.
std::shared_ptr<RegionVariant> variant_for(const Recording& recording,
                                           const std::shared_ptr<RegionEntry>& entry, const LiveSet& needed) {
    std::shared_ptr<RegionVariant> known = entry->variant;
    if (known && std::ranges::equal(needed, known->live, std::less_equal())) return known;
    if (entry->failed || entry->pending) return nullptr;
    LiveSet live = needed;
    for (size_t i = 0; known && i < live.size(); ++i) live[i] |= known->live[i];
    if (entry->looked != live) {
        entry->looked = live;
        if (auto found = compiler::stored_region(recording, live)) return entry->variant = std::move(found);
    }
    Region& region = *recording.region();
    const size_t ops = recording.list().ops.size();
    if (!region.wait && !region.repeats(*entry, ops)) return nullptr;
    if (!region.wait && !check_mode) {
        if (ops > large_program && large_pending > 0) return nullptr;
        compiler::compile_region_later(recording, entry, live);
        return nullptr;
    }
    auto made = compiler::compile_region(recording, live);
    entry->give(region, made);
    return made;
}

// Whether the program ran. What goes wrong before its first write is logged, and the ops run one by one.
bool run_program(const Recording& recording, const std::shared_ptr<RegionEntry>& entry, const LiveSet& live) {
    std::shared_ptr<RegionVariant> variant;  // kept: another thread may give the entry another one
    std::vector<StorageRef> before;
    try {
        variant = variant_for(recording, entry, live);
        if (!variant) return false;
        if (check_mode) before = copies_of_written(recording);
        run_variant(recording, *variant);
    } catch (const Error& error) {
        std::string text;
        if (!compiler::forgive(error, &text)) throw;
        if (error.kind != ErrorKind::memory) entry->failed = true;
        compiler::log(true, concat(recording.region()->name, ": ", recording.list().ops.size(),
                                   " ops run op by op: ", text));
        return false;
    }
    if (!before.empty()) compare_with_ops(recording, *variant, live, before);
    return true;
}

}  // namespace

void run_recording(Recording& recording, const char* cause) {
    const SeenValues::Pause pause;
    Region& region = *recording.region();
    // Of a run by the program everything is timed, of one op by op what eager calls would take as well.
    double seconds = 0, ops_seconds = 0;
    Stopwatch watch(region.measuring ? &seconds : nullptr);
    LiveSet live;
    live.reserve(recording.storages().size());
    for (const RecordedStorage& s : recording.storages())
        live.push_back(s.pending ? s.storage->refcount > 1 : s.written);
    std::shared_ptr<RegionEntry> entry = region.entry(recording);
    region.copied = recording.copied();
    const std::vector<uint32_t> versions = check_mode ? versions_of(recording) : std::vector<uint32_t>();
    KILN_CHECK(!check_mode || (entry->list == recording.list() && entry->hash == recording.hash()), internal,
               "KILN_CHECK: ", region.name, ": two different recordings have one hash");
    entry->note_end(cause);
    if (entry->lines.empty()) entry->lines.assign(recording.lines().begin(), recording.lines().end());
    uint64_t sight = ++entry->seen;
    bool measuring = entry->measuring;
    entry->settled += !on_call && (entry->variant || entry->failed);  // a watched run takes longer
    if (entry->settled == measure_from && !measuring && !entry->decided && !check_mode) {
        entry->measuring = true;
        ++region.measuring;
    }
    bool ran = !entry->slower && !(measuring && sight % 2) && run_program(recording, entry, live);
    if (!ran) replay(recording, measuring ? &ops_seconds : nullptr);
    KILN_CHECK(versions.empty() || versions == versions_of(recording), internal, "KILN_CHECK: ", region.name,
               ": the run of ", recording.list().ops.size(),
               " ops counted writes that their lines have counted");
    ++(ran ? region.runs : region.replays);
    ++(ran ? entry->runs : entry->replays);
    region.note(*entry, entry->list.ops.size(), ran || entry->measuring);
    if (!measuring || on_call) return;
    watch.stop();
    double& best = ran ? entry->times.program : entry->times.replay;
    best = std::min(best, ran ? seconds : ops_seconds);
    if (recording.seconds() > 0) entry->times.record = std::min(entry->times.record, recording.seconds());
    if (!entry->measuring || entry->settled < measure_from + measure_runs) return;
    entry->measuring = false;
    --region.measuring;
    entry->decided = true;
    compiler::decide(region, *entry);
}

}  // namespace kiln
