#include "batch/list.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "autograd/autograd.h"
#include "autograd/hooks.h"
#include "autograd/inplace.h"
#include "base/check.h"
#include "base/invariants.h"
#include "batch/run.h"
#include "call/busy.h"
#include "call/compiler.h"
#include "call/pointwise.h"
#include "call/value_checks.h"
#include "program/program_call.h"
#include "record/record.h"

namespace kiln {

namespace {

constexpr size_t most_calls = 1 << 20;  // a list past this runs by itself
constexpr size_t most_patterns = 8192;  // more are forgotten where nothing is pending
constexpr int64_t large_row = 4096;     // elements that are not copied side by side: the same array or none

constinit thread_local Listing state;

std::vector<std::shared_ptr<CallList>>& lists() {
    static auto* list = new std::vector<std::shared_ptr<CallList>>();
    return *list;
}

// The deleter of memory that will never be, and why, if that is known.
void gone_marker(void* why) { delete static_cast<std::string*>(why); }

}  // namespace

void listed_marker(void*) {}

Node* listed_history() {
    static auto* node = [] {
        auto* made = new NodeRef(new_node(*new_fn(nullptr, "listed")));
        (*made)->line = SourceLine();
        return made;
    }();
    return node->get();
}

Listing& listing_of_thread() { return state; }
uint64_t take_place() { return state.item ? state.item->take_place() : take_order(); }
bool is_batching() { return state.depth > 0 && !state.paused; }
CallList* list_of_thread() { return state.list; }

CallList& make_list_of_thread() {
    lists().push_back(std::make_shared<CallList>());
    return *(state.list = lists().back().get());
}

void drop_list(CallList* list) {
    if (state.list == list) state.list = nullptr;
    std::erase_if(lists(), [&](const auto& known) { return known.get() == list; });
}

void begin_batching() {
    KILN_CHECK(state.list, internal, "batching: this thread has no list");
    if (state.depth++ == 0) ++lists_in_use;
}

void end_batching(bool run) {
    KILN_CHECK(state.depth > 0, runtime, "batching: a block is left that was not entered");
    if (--state.depth > 0) return;
    --lists_in_use;
    run ? state.list->run() : state.list->drop_unreachable();
}

ListPaused::ListPaused() : before_(std::exchange(state.paused, true)) {}
ListPaused::~ListPaused() { state.paused = before_; }

void run_lists() {
    const auto all = lists();  // kept: a thread may end while another one's list runs
    for (const auto& list : all) list->run();
}

void run_lists_that_read(const Storage& storage) {
    const auto all = lists();
    for (const auto& list : all)
        if (list->reads(storage)) list->run();
}

void run_list_of(Storage& storage) {
    const StorageRef kept(&storage);
    // in the middle of a call, a pass or a run nothing else may go on
    if (before_list_runs && is_listed(storage) && storage.context == state.list && !state.paused &&
        !Away::here() && !SeenValues::any() && !in_region())
        before_list_runs();
    while (is_listed(storage)) {
        auto* list = static_cast<CallList*>(storage.context);
        const auto held = list->shared_from_this();
        list->run();
        KILN_CHECK(!is_listed(storage), runtime,
                   "the value was never computed: it is needed by what is about to compute it");
    }
}

bool put_on_list(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
                 Results& results) {
    if (state.item && !state.paused) note_uses(*state.item, fn, operands, out);
    if (!out.empty()) {
        const auto wait = [](const Tensor& x) {
            if (x.storage && is_listed(*x.storage)) run_list_of(*x.storage);
        };
        for (const Operand& operand : operands)
            if (operand.tensor) wait(*operand.tensor);
        for (const TensorRef& target : out) {
            wait(*target);
            if (target->storage) run_lists_that_read(*target->storage);  // the values from before
        }
        return false;
    }
    if (!is_batching() || current_recording() || anomaly_mode || saved_hooks().pack.object) return false;
    return state.list->append(fn, operands, results);
}

CallList::~CallList() {
    for (ListedValue& value : values_) give_up(value, "");
    clear();
}

// Its value never will be.
void CallList::give_up(ListedValue& value, const std::string& why) {
    if (!value.tensor) return;
    Storage& storage = *value.tensor->storage;
    if (!is_listed(storage)) return;
    storage.deleter = gone_marker;
    storage.context = why.empty() ? nullptr : new std::string(why);
}

const char* why_gone(const Storage& storage) {
    const bool known = storage.deleter == gone_marker && storage.context;
    return known ? static_cast<std::string*>(storage.context)->c_str() : nullptr;
}

// Another thread may be running this list; whether it was so.
bool CallList::wait_until_idle() {
    auto running = [this] { return running_ && runner_ != std::this_thread::get_id(); };
    if (!running()) [[likely]]
        return false;
    Away here;
    while (running() && wait_for_others()) {}
    return true;
}

int32_t CallList::value_of(const Tensor& x) const {
    return x.listed && x.listed <= values_.size() && values_[x.listed - 1].tensor.get() == &x
               ? int32_t(x.listed - 1)
               : -1;
}

// Why a call cannot wait; null: it can; empty: there is nothing to say of it.
const char* CallList::refuses(Fn& fn, std::span<const Operand> operands) const {
    if (!fn.op) return "";
    if (fn.op->at_once) return "runs on its line";
    bool arrays = false;
    for (const Operand& operand : operands) {
        if (!operand.tensor) continue;
        if (!operand.tensor->storage || operand.tensor->storage->nbytes == shape_only) return "";
        arrays = true;
        if (is_public(*operand.tensor->storage) && takes_part(*operand.tensor))
            return "reads memory that others can see";
    }
    if (!arrays) return "";
    const bool views = fn.cls == FnClass::view || fn.cls == FnClass::replay;
    if (views && !(operands[0].tensor && is_listed(*operands[0].tensor->storage))) return "";
    if (fn.cls == FnClass::replay)
        for (const Operand& operand : operands.subspan(1))
            if (operand.tensor) return "gives views of several arrays";
    const auto pending = [&](const Operand& x) { return x.tensor && is_listed(*x.tensor->storage); };
    if (fn.index_input >= 0 && pending(operands[size_t(fn.index_input)]))
        return "has positions that pending calls compute, and looks at them first";
    if (fn.op->divides && pending(operands[1]) && !is_float(operands[1].tensor->dtype))
        return "has divisors that pending calls compute, and looks at them first";
    return nullptr;
}

bool CallList::append(Fn& fn, std::span<const Operand> operands, Results& results) {
    assert_locked();
    if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
    wait_until_idle();
    if (const char* why = refuses(fn, operands)) {
        if (*why) ++statistics.at_once[{fn.name, why}];
        return false;
    }
    if (refuses_values(fn)) check_values(fn, operands);
    if (calls_.size() >= most_calls) run();
    Pattern& pattern = pattern_of(fn, operands);
    for (size_t i = 0; i < operands.size() && i < pattern.saved.end(); ++i)
        if (pattern.saved.has(i) && operands[i].tensor && operands[i].tensor->storage->inference)
            save(*operands[i].tensor);  // raises
    if (pattern.views) {
        const ListPaused paused;
        const GradMode off(false);
        results = kiln::run(fn, operands);
    }
    Tensor* viewed = pattern.views ? operands[0].tensor : nullptr;
    for (const TensorRef& result : results)
        if (result->storage != viewed->storage || !is_listed(*viewed->storage)) {  // a copy had to be made
            results.resize(0);
            return false;
        }
    if (viewed)
        for (const TensorRef& view : results) {
            if (fn.cls == FnClass::view) set_base(*view, *viewed);
            view->made = viewed->base ? viewed->made : Made::recorded;
            if (!grad_enabled()) view->made = Made::unrecorded;
        }
    add(pattern, operands, {results.data(), results.size()});
    const ListedCall& call = calls_.back();
    if (!viewed)
        for (uint32_t k = 0; k < call.values; ++k) results.push_back(values_[call.first_value + k].tensor);
    return true;
}

// ---- patterns ----

namespace {

// The parameter that an operand shows transposed, `w.t()`: each call has a view of its own, all of one
// matrix.
const Tensor* transposed_parameter(const Tensor& x, bool wants) {
    const Tensor* w = x.base.get();
    if (!w || x.ndim() != 2 || !w->meta || !w->meta->requires_grad || w->node || w->ndim() != 2)
        return nullptr;
    const bool shows = w->storage == x.storage && w->offset == x.offset && w->sizes[0] == x.sizes[1] &&
                       w->sizes[1] == x.sizes[0] && w->strides[0] == x.strides[1] &&
                       w->strides[1] == x.strides[0];
    if (!shows || !wants) return shows ? w : nullptr;
    const Node* node = x.node.get();
    const bool turns = node && node->fn->op && node->fn->op->view == ViewKind::permute && !node->extras;
    return turns && node->inputs[0].edge.leaf == w->meta ? w : nullptr;
}

}  // namespace

Pattern& CallList::pattern_of(Fn& fn, std::span<const Operand> operands) {
    const bool grad = grad_enabled();
    BitSet shared, transposed, needed;
    Key key;
    key.push(uint64_t(fn.id) | uint64_t(grad) << 32 | uint64_t(inference_mode()) << 33);
    for (size_t i = 0; i < operands.size(); ++i) {
        const Tensor* x = operands[i].tensor;
        if (!x) {
            key.push(uint64_t(1) << 40 | uint64_t(operands[i].number.kind));
            key.push(uint64_t(operands[i].number.bits()));
            continue;
        }
        const bool wants = grad && fn.op->differentiable && takes_part(*x);
        const bool there = !is_listed(*x->storage);
        const Tensor* matrix = there && x->base ? transposed_parameter(*x, wants) : nullptr;
        const bool fixed =
            there && (matrix || (x->meta && x->meta->requires_grad && !x->node) || x->numel >= large_row);
        if (wants) needed.add(i);
        if (fixed) shared.add(i);
        if (matrix) transposed.add(i);
        key.push(uint64_t(x->dtype) | uint64_t(x->ndim()) << 8 | uint64_t(fixed) << 16 |
                 uint64_t(wants) << 17 | uint64_t(matrix != nullptr) << 18);
        for (int64_t size : x->sizes) key.push(uint64_t(size));
        if (fixed) key.push(reinterpret_cast<uint64_t>(matrix ? matrix : x));
        if (matrix) key.push(reinterpret_cast<uint64_t>(x->storage.get()));
    }
    if (Pattern** found = known_.find(key)) return **found;
    return new_pattern(fn, operands, key, std::move(shared), std::move(transposed), std::move(needed));
}

namespace {

std::vector<CallGives> given_by(Fn& fn, std::span<const Operand> operands) {
    std::vector<CallGives> given;
    auto give = [&](DType dtype, const Dims& sizes) {
        given.push_back({dtype, sizes, checked_nbytes(checked_numel(sizes), itemsize(dtype))});
    };
    if (fn.cls == FnClass::pointwise) {
        const Dims shape = broadcast_shape(fn, operands);
        for (DType dtype : pointwise_dtypes(fn, operands)) give(dtype, shape);
    } else if (fn.cls != FnClass::program) {  // arrays joined, of one dtype; of views nothing
        for (const Dims& sizes : result_sizes(fn, operands)) give(operands[0].tensor->dtype, sizes);
    } else {
        const Program& program = program_for(fn, operands, ProgramFor::results);
        const Dims slots = slots_of(program, fn, operands);
        for (size_t k = 0; k < program.outputs.size(); ++k)
            give(program.outputs[k].dtype, output_sizes(program, k, slots.data()));
    }
    return given;
}

}  // namespace

[[gnu::noinline]] Pattern& CallList::new_pattern(Fn& fn, std::span<const Operand> operands, const Key& key,
                                                 BitSet shared, BitSet transposed, BitSet needed) {
    auto pattern = std::make_unique<Pattern>();
    pattern->fn = &fn;
    pattern->shared = std::move(shared);
    pattern->transposed = std::move(transposed);
    if (needed) pattern->needed = needed &= differentiable_operands(fn, operands);
    if (pattern->needed) pattern->saved = saved_operands(fn, operands, pattern->needed);
    pattern->grad = grad_enabled();
    pattern->inference = inference_mode();
    pattern->tracked = bool(pattern->needed);
    pattern->views = fn.cls == FnClass::view || fn.cls == FnClass::replay;
    pattern->given = given_by(fn, operands);
    Pattern* made = pattern.get();
    patterns.push_back(std::move(pattern));
    known_.insert(key, std::make_unique<Pattern*>(made));
    return *made;
}

// ---- calls ----

// `views`: what the call gives, if that shares its operand's memory.
void CallList::add(Pattern& pattern, std::span<const Operand> operands, std::span<const TensorRef> views) {
    if (calls_.empty()) ++lists_in_use;
    const auto number = uint32_t(calls_.size());
    const size_t values = pattern.views ? views.size() : pattern.given.size();
    ListedCall& call = calls_.emplace_back(ListedCall{.pattern = &pattern,
                                                      .first_operand = uint32_t(operands_.size()),
                                                      .operands = uint32_t(operands.size()),
                                                      .first_value = uint32_t(values_.size()),
                                                      .values = uint32_t(values),
                                                      .depth = 0,
                                                      .order = pattern.tracked ? take_place() : 0,
                                                      .line = SourceLine::current()});
    for (const Operand& operand : operands) {
        ListedOperand& own = operands_.emplace_back(ListedOperand{TensorRef(operand.tensor), operand.number});
        if (!operand.tensor) continue;
        Storage& storage = *operand.tensor->storage;
        if (is_listed(storage) && storage.context != this) run_list_of(storage);  // another thread's
        if (is_listed(storage)) {
            own.value = value_of(*operand.tensor);
            own.after = own.value < 0 ? storage.recording_id : int32_t(values_[size_t(own.value)].call);
            call.depth = std::max(call.depth, calls_[size_t(own.after)].depth + 1);
        } else if (is_public(storage)) {
            Operand seen{operand.tensor, {}};
            own.tensor = std::move(execute(*core_fns().copy, {&seen, 1}, {}, false)[0]);
        }
    }
    for (size_t k = 0; k < values; ++k) {
        TensorRef tensor;
        if (pattern.views) {
            tensor = views[k];
        } else {
            const CallGives& given = pattern.given[k];
            StorageRef storage = adopt(nullptr, given.nbytes, listed_marker, this);
            storage->outside = 0;
            storage->recording_id = int32_t(number);
            tensor = new_tensor(given.dtype, given.sizes, std::move(storage));
        }
        if (pattern.tracked && is_float(tensor->dtype)) tensor->node = NodeRef(listed_history());
        tensor->listed = uint32_t(values_.size() + 1);
        values_.push_back({std::move(tensor), number});
    }
    if (pattern.listed++ == 0) active_.push_back(&pattern);
    pattern.depths += call.depth;
    pattern.deepest = std::max(pattern.deepest, call.depth);
    ++pattern.calls;
}

void CallList::clear() {
    if (calls_.empty()) return;
    --lists_in_use;
    calls_.clear();
    operands_.clear();
    read_.clear();
    looked_at_ = 0;
    for (Pattern* pattern : active_) {
        pattern->listed = pattern->depths = pattern->deepest = 0;
        pattern->ready.clear();
    }
    active_.clear();
    const std::vector<ListedValue> dying = std::exchange(values_, {});
    values_.reserve(dying.size());
    if (patterns.size() > most_patterns) {
        patterns.clear();
        known_ = {};
    }
}

// Writes are few, so operands are looked at when one comes, each once.
bool CallList::reads(const Storage& storage) {
    if (calls_.empty()) return false;
    if (running_) return true;  // who runs it waits for that
    for (; looked_at_ < operands_.size(); ++looked_at_)
        if (const TensorRef& x = operands_[looked_at_].tensor) read_.insert(x->storage.get());
    return read_.contains(&storage);
}

void CallList::drop_unreachable() {
    if (running_) return;
    std::unordered_map<const void*, uint32_t> ours;  // references of the list's own to tensors and storages
    const auto count = [&](const TensorRef& x) {
        if (x && ours[x.get()]++ == 0 && x->storage) ++ours[x->storage.get()];
    };
    for (const ListedValue& value : values_) count(value.tensor);
    for (const ListedOperand& operand : operands_) count(operand.tensor);
    const auto is_held = [&](const ListedValue& value) {
        const Tensor& x = *value.tensor;
        return x.refcount > ours[&x] || x.storage->refcount > ours[x.storage.get()];
    };
    if (std::none_of(values_.begin(), values_.end(), is_held)) clear();
}

void CallList::run() {
    assert_locked();
    const auto kept = shared_from_this();
    wait_until_idle();
    if (running_ || calls_.empty()) return;  // from inside its own run: what is not there yet, settle refuses
    const ListPaused paused;
    const RecordingPaused at_once;
    running_ = true;
    runner_ = std::this_thread::get_id();
    struct End {
        CallList& list;
        ~End() {
            list.running_ = false;
            tell_others();
        }
    } end{*this};
    struct NoHooks {  // on saved tensors: calls were made without
        SavedHooks before = std::exchange(saved_hooks(), {});
        ~NoHooks() { std::swap(saved_hooks(), before); }
    } no_hooks;
    ++statistics.runs;
    ListRun(*this).run();
}

}  // namespace kiln
