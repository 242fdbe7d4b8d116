#include "autograd/kept_parts.h"

#include <algorithm>
#include <cstring>

#include "autograd/hooks.h"
#include "autograd/product_sum.h"
#include "autograd/rows.h"
#include "call/dispatch.h"

namespace kiln {

void KeptParts::add(TensorRef array, Part part, PartOf of) {
    entries_.push_back({of.call, of.argument, uint32_t(sources_.size()), 0});
    sources_.push_back({.values = std::move(array), .right = {}, .write = {}, .part = part});
}

void KeptParts::add_entries(Source source, std::span<const uint64_t> calls, std::span<const uint32_t> from,
                            uint32_t argument) {
    for (size_t i = 0; i < calls.size(); ++i)
        entries_.push_back(
            {calls[i], argument, uint32_t(sources_.size()), from.empty() ? uint32_t(i) : from[i]});
    sources_.push_back(std::move(source));
}

void KeptParts::add_rows(TensorRef values, std::span<const uint64_t> calls, std::span<const uint32_t> from,
                         uint32_t argument) {
    add_entries({.values = std::move(values), .right = {}, .write = {}, .rows = true}, calls, from, argument);
}

void KeptParts::add_products(TensorRef left, TensorRef right, int64_t each, std::span<const uint64_t> calls,
                             std::span<const uint32_t> from, uint32_t argument) {
    add_entries({.values = std::move(left), .right = std::move(right), .write = {}, .each = each}, calls,
                from, argument);
}

void KeptParts::add_written(Write write, std::span<const uint64_t> calls, std::span<const uint32_t> from,
                            uint32_t argument) {
    add_entries({.values = {}, .right = {}, .write = std::move(write)}, calls, from, argument);
}

namespace {

// A sum whose memory is its own as long as it says so.
struct OwnSum {
    TensorRef sum;
    BitSet from_zero;
    const Tensor* own = nullptr;

    SumOfParts parts() { return {sum, from_zero, 0}; }

    bool add_plain(const TensorRef& like, const std::byte* from) {
        const size_t bytes = size_t(like->numel) * itemsize(like->dtype);
        if (!sum) {
            sum = new_tensor(like->dtype, like->sizes);
            std::memcpy(sum->data(), from, bytes);
        } else {
            if (own != sum.get()) {
                if (!sum->contiguous || sum->sizes != like->sizes) return false;
                const TensorRef copy = new_tensor(like->dtype, like->sizes);
                std::memcpy(copy->data(), sum->data(), bytes);
                sum = copy;
            }
            add_plainly(like->dtype, sum->data(), from, like->numel);
        }
        own = sum.get();
        return true;
    }
};

}  // namespace

TensorRef KeptParts::evaluate(bool by_ops, bool create_graph) {
    std::ranges::stable_sort(entries_, [](const Entry& a, const Entry& b) {
        return a.call != b.call ? a.call > b.call : a.argument < b.argument;
    });
    OwnSum sum;
    std::vector<Entry> multiplied;
    std::vector<Results> unstacked(by_ops ? sources_.size() : 0);
    std::vector<TensorRef> likes(sources_.size());  // a row of each
    for (size_t e = 0; e < entries_.size(); ++e) {
        const Entry& entry = entries_[e];
        Source& source = sources_[entry.source];
        if (source.each) {
            multiplied.push_back(entry);
        } else if (source.write) {
            std::vector<uint32_t> rows{entry.row};
            for (; e + 1 < entries_.size() && entries_[e + 1].source == entry.source; ++e)
                rows.push_back(entries_[e + 1].row);
            sum.own = nullptr;
            source.write(sum.parts(), rows);
        } else if (source.rows && by_ops) {
            Results& all = unstacked[entry.source];
            if (all.empty()) all = callbacks.unstacked(source.values);
            sum.parts().add(all[entry.row], source.part);
        } else {
            const Tensor& x = *source.values;
            const bool plain = !by_ops && source.part == Part::whole && x.contiguous && adds_plainly(x.dtype);
            TensorRef& like = likes[entry.source];
            if (!like) like = source.rows ? row_of(x, 0) : source.values;
            const size_t bytes = size_t(like->numel) * itemsize(x.dtype);
            if (plain && sum.add_plain(like, x.data() + entry.row * bytes)) continue;
            sum.own = nullptr;
            sum.parts().add(source.rows ? row_of(x, entry.row) : source.values, source.part);
        }
    }
    if (!multiplied.empty()) add_gradient(sum.sum, products(multiplied, by_ops, create_graph));
    return std::move(sum.sum);
}

TensorRef KeptParts::products(std::span<const Entry> entries, bool by_ops, bool create_graph) {
    ProductSum sum;
    if (!by_ops) {
        for (const Entry& entry : entries) {
            const Source& source = sources_[entry.source];
            sum.add_rows(*source.values, *source.right, entry.row * source.each, source.each);
        }
        return sum.evaluate(false);
    }
    auto joined = [&](TensorRef Source::* side) {
        std::vector<Results> unstacked(sources_.size());
        std::vector<TensorRef> rows;
        for (const Entry& entry : entries) {
            const Source& source = sources_[entry.source];
            Results& all = unstacked[entry.source];
            if (all.empty()) all = callbacks.unstacked(source.*side);
            for (int64_t i = 0; i < source.each; ++i)
                rows.push_back(all[size_t(entry.row * source.each + i)]);
        }
        const Tensor& first = *(sources_[entries[0].source].*side);
        const Dims sizes{int64_t(rows.size()), first.sizes[1]};
        rows.push_back(nullptr);
        return callbacks.stacked(rows, *new_tensor(first.dtype, sizes, StorageRef()));
    };
    sum.add(joined(&Source::values), joined(&Source::right), create_graph);
    return sum.evaluate(create_graph);
}

}  // namespace kiln
