// Automatic batching: calls are put on a list instead of run, and give tensors whose values come later. Where
// a value is needed the list runs: calls of one pattern, whose operands are there, as one launch on rows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "autograd/node.h"
#include "autograd/rows.h"
#include "autograd/source_line.h"
#include "batch/items.h"
#include "call/dispatch.h"
#include "call/look.h"
#include "call/tensor.h"

namespace kiln {

// What does a function for rows: the same or another, for operands some of which have a dim more in front.
struct RowsFn {
    BitSet rows;                  // operands that have one row for each call; all calls share the others
    Fn* fn = nullptr;             // null: calls run one by one
    bool counted = false;         // its numbers begin with how many rows there are
    std::string why;              // they run one by one
    bool differentiable = false;  // its gradients can be told apart by rows
};

struct CallGives {
    DType dtype;
    Dims sizes;
    size_t nbytes;
};

// Calls that can be one launch: of one function, on operands that look alike, with the same numbers and
// parameters.
struct Pattern {
    Fn* fn = nullptr;
    BitSet shared;                         // operands that are a parameter, the same in all calls
    BitSet transposed;                     // of these, those that are a parameter transposed for the call
    BitSet needed;                         // operands that take part in backward
    BitSet saved;                          // operands that are kept for backward
    bool grad = false, inference = false;  // the modes of its calls
    bool tracked = false;                  // its calls leave a node for backward
    bool views = false;                    // it gives views of its first operand
    std::vector<CallGives> given;          // what a call gives
    std::vector<RowsFn> ways;              // known ways of running it on rows
    // Of the list that runs:
    uint64_t listed = 0;          // calls in it not run yet
    uint64_t depths = 0;          // of these, the sum of depths
    uint32_t deepest = 0;         // of all of them in the list
    std::vector<uint32_t> ready;  // of these, those whose operands are there
    // Since statistics were cleared:
    uint64_t calls = 0, launches = 0, alone = 0;
    std::string why_alone;
};

struct ListedCall {
    Pattern* pattern;
    uint32_t first_operand, operands;
    uint32_t first_value, values;
    uint32_t depth;
    uint64_t order;  // among all calls of the program that take part in backward; 0: it does not
    SourceLine line;
    bool done = false;    // it ran,
    bool failed = false;  // or it, or what it waits for, raised an error
};

// An operand as the list keeps it. `value`: the list's, or none; `after`: the call it waits for, or none.
struct ListedOperand {
    TensorRef tensor;
    Number number;
    int32_t value = -1;
    int32_t after = -1;
};

// What a call gives: a row of what its launch gave, once that has run.
struct ListedValue {
    TensorRef tensor;
    uint32_t call;
    int32_t batch = -1;
    uint32_t row = 0;
    bool handed = false;  // its tensor has memory and history
};

// What a launch gave: `whole` has the rows in front, if there are any; its history passes the node that hands
// rows out.
struct Batch {
    TensorRef whole;
    NodeRef handed;                  // its outputs are the rows, and behind them the whole
    int64_t rows = 0;                // 0: of a call that ran alone
    std::shared_ptr<HeldRows> held;  // its rows that somebody outside the list has
};

struct ListStatistics {
    uint64_t runs = 0;
    std::map<std::pair<std::string, std::string>, uint64_t> at_once;  // (function, why) -> calls
};

class CallList : public std::enable_shared_from_this<CallList> {
public:
    CallList() = default;
    ~CallList();
    CallList(const CallList&) = delete;

    // Puts a call on the list, or leaves it to be run at once: false.
    bool append(Fn& fn, std::span<const Operand> operands, Results& results);
    // Runs what is pending. From a thread other than the owner's too: whoever comes second waits.
    void run();
    // Whether what is pending reads this memory.
    bool reads(const Storage& storage);
    // After an exception: forgets what is pending, if nobody can come to need it.
    void drop_unreachable();
    bool empty() const { return calls_.empty(); }

    ListStatistics statistics;
    std::vector<std::unique_ptr<Pattern>> patterns;

private:
    friend class ListRun;
    const char* refuses(Fn& fn, std::span<const Operand> operands) const;
    Pattern& pattern_of(Fn& fn, std::span<const Operand> operands);
    Pattern& new_pattern(Fn& fn, std::span<const Operand> operands, const Key& key, BitSet shared,
                         BitSet transposed, BitSet needed);
    int32_t value_of(const Tensor& x) const;
    bool wait_until_idle();
    void add(Pattern& pattern, std::span<const Operand> operands, std::span<const TensorRef> results);
    void clear();
    static void give_up(ListedValue& value, const std::string& why);

    std::vector<ListedCall> calls_;
    std::vector<ListedOperand> operands_;
    std::vector<ListedValue> values_;
    std::vector<Pattern*> active_;             // those with calls on the list
    std::unordered_set<const Storage*> read_;  // what operands read, of as many as were looked at
    size_t looked_at_ = 0;
    Table<Pattern*> known_;
    bool running_ = false;
    std::thread::id runner_;
};

// How many threads are in a `batching` block, and lists with calls on them there are: 0 in most programs.
inline int lists_in_use = 0;

// Where `lists_in_use`: puts a call on this thread's list. False: it runs at once, after what it must wait
// for.
bool put_on_list(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out, Results& results);

void begin_batching();
void end_batching(bool run);
bool is_batching();
// The next call's place among all calls of this thread's program.
uint64_t take_place();
CallList* list_of_thread();  // null: none yet
CallList& make_list_of_thread();
void drop_list(CallList* list);  // its thread has ended

// What a thread puts on which list; strands that take turns (kiln.batching.map) have each its own.
struct Listing {
    CallList* list = nullptr;
    int depth = 0;  // of `batching` blocks
    bool paused = false;
    Item* item = nullptr;  // whose calls they are
};
Listing& listing_of_thread();

// Told before the list of a thread runs because the thread needs a value of it, where the thread may do other
// things first: then what it needs may be there.
inline void (*before_list_runs)() = nullptr;

// While it lives, nothing is put on this thread's list.
class ListPaused {
public:
    ListPaused();
    ~ListPaused();
    ListPaused(const ListPaused&) = delete;

private:
    const bool before_;
};

// Runs what is pending on any list; on those that read a memory which is about to be written.
void run_lists();
void run_lists_that_read(const Storage& storage);

// Whether a storage's values are on a list, and runs that.
inline bool is_listed(const Storage& storage);
void run_list_of(Storage& storage);
const char* why_gone(const Storage& storage);  // the error of what was to compute it; null: not known
void listed_marker(void*);                     // the deleter of such a storage
inline bool is_listed(const Storage& storage) { return storage.deleter == listed_marker; }

// The history of a tensor whose call is on a list: one node for all, which nothing passes through.
Node* listed_history();

// Whether the interpreter's error that is set is Ctrl-C's.
inline bool (*is_interrupt)() = nullptr;

// Asked of the rest of kiln: how a function is done for rows (kiln/batching/rules.py).
inline RowsFn (*rows_of)(Fn& fn, std::span<const Operand> operands, const BitSet& rows) = nullptr;

}  // namespace kiln
