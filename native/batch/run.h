// One run of a list: which calls run together, and in which order; their operands gathered; results handed
// out.
#pragma once

#include "autograd/rows.h"
#include "batch/list.h"

namespace kiln {

class ListRun {
public:
    explicit ListRun(CallList& list) : list_(list) {}
    // Ends with an empty list; after an error, with what did not run still on it.
    void run();

private:
    void schedule();
    void mark_done(uint32_t call);
    Pattern* next();
    void launch(Pattern& pattern, std::span<const uint32_t> calls);
    bool gives_product(uint32_t call, const Tensor& matrix) const;
    void launch_apart(Pattern& pattern, std::span<const uint32_t> calls);
    bool launch_rows_or_not(Pattern& pattern, std::span<const uint32_t> calls);
    bool launch_rows(Pattern& pattern, std::span<const uint32_t> calls);
    void mark_failed(uint32_t call, const std::string& why);
    void run_alone(uint32_t call);
    const RowsFn& way_for(Pattern& pattern, std::span<const Operand> operands, const BitSet& rows);
    TensorRef gathered(std::span<const uint32_t> calls, uint32_t operand, bool needed);
    TensorRef side_by_side(std::span<const uint32_t> calls, uint32_t operand, bool needed);
    bool is_same(std::span<const uint32_t> calls, uint32_t operand) const;
    Tensor& ready_tensor(const ListedOperand& operand);
    void give_rows(std::span<const uint32_t> calls, const Results& results);
    void note_saved(std::span<const uint32_t> calls, Node& node);
    void give_memory(Storage& storage);
    void hand_out(ListedValue& value);
    void hand_out_all();
    void drop_done();

    // A list is longer than the caches are large: what a loop comes to a few calls later is fetched
    // meanwhile.
    static constexpr size_t ahead = 8;
    static void come(const Tensor* x) {
        __builtin_prefetch(x);
        __builtin_prefetch(&x->storage);
    }
    void come(std::span<const uint32_t> calls, size_t at, uint32_t operand) const {
        if (at + ahead < calls.size()) come(operand_of(calls[at + ahead], operand).tensor.get());
    }

    const ListedOperand& operand_of(uint32_t call, uint32_t operand) const {
        return list_.operands_[list_.calls_[call].first_operand + operand];
    }

    CallList& list_;
    std::shared_ptr<Calls> orders_;  // of the launch being made: its calls' places among all,
    uint32_t operand_ = 0;           // and which of its operands is gathered
    std::vector<Batch> batches_;
    std::vector<uint32_t> waits_;              // per call: operands it still waits for
    std::vector<uint32_t> first_, followers_;  // per call, who waits for it
    size_t left_ = 0;
};

// The sizes of a whole that has rows of such sizes.
Dims with_rows(int64_t rows, const Dims& sizes);

}  // namespace kiln
