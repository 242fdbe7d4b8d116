// Steps of control: which program runs next, and on what.

#include <algorithm>
#include <cstring>

#include "base/threads.h"
#include "program/running.h"

namespace kiln {

namespace {

using Pointers = SmallVector<std::byte*, 16>;

void move_to(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

// The programs of one step of control, at the sizes of the run it belongs to. They are made when they are
// first needed: of a recursion's branches, one need not be.
class Calls {
public:
    Calls(const Control& control, const int64_t* slots) : control_(control), programs_(3) {
        for (int32_t slot : control.sizes) environment_.push_back(slots[slot]);
        environment_.push_back(0);  // how many steps there are
    }

    void run(const int64_t* slots, const SmallVector<std::byte*, 16>& starts, Run& run) {
        auto address = [&](const Pointer& p) {
            return starts[p.buffer] + (p.offset < 0 ? 0 : slots[p.offset] * int64_t(p.itemsize));
        };
        inputs_.resize(0);
        for (const Pointer& p : control_.inputs) inputs_.push_back(address(p));
        outputs_.resize(0);
        for (const Pointer& p : control_.outputs) outputs_.push_back(p.itemsize ? address(p) : nullptr);
        switch (control_.kind) {
        case Control::cond: return branch(run);
        case Control::while_loop: {
            for (size_t k = 0; k < control_.state; ++k) give_own(k, program(1, run));
            while_loop(outputs_.data(), run);
            return;
        }
        case Control::scan: return scan(slots, run);
        case Control::counted: return counted(run);
        }
    }

private:
    Running& program(size_t k, const Run& run) {
        if (!programs_[k]) {
            const Program& what = *control_.programs[k];
            programs_[k] = std::make_unique<Running>(
                what, std::span(environment_.data(), size_t(what.environment)), run);
        }
        return *programs_[k];
    }

    std::byte* own(size_t bytes) {
        memory_.push_back(std::make_unique<Memory>(std::max<size_t>(bytes, 1)));
        return memory_.back()->data();
    }

    // Memory for a result that nobody reads.
    void give_own(size_t k, const Running& from) {
        if (outputs_[k]) return;
        unread_.resize(std::max(unread_.size(), k + 1));
        if (!unread_[k]) unread_[k] = own(from.output_bytes(k));
        outputs_[k] = unread_[k];
    }

    void branch(Run& run) {
        const bool flag = *reinterpret_cast<const bool*>(inputs_[0]);
        Running& chosen = program(flag ? 0 : 1, run);
        for (size_t k = 0; k < outputs_.size(); ++k) give_own(k, chosen);
        chosen.run(std::span(inputs_.data() + 1, inputs_.size() - 1), outputs(), run);
    }

    // The state goes to and fro between two places, `a` the first of them; its end is in `a`. A step also
    // says whether another one follows.
    int64_t while_loop(std::byte** a, Run& run) {
        Running &condition = program(0, run), &body = program(1, run);
        second_places(body);
        std::byte* const flag_at = reinterpret_cast<std::byte*>(&flag_);
        condition.run(std::span(inputs_.data(), inputs_.size()), std::span(&flag_at, 1), run);
        if (!flag_) {
            for (size_t k = 0; k < control_.state; ++k) move_to(a[k], inputs_[k], body.output_bytes(k));
            return 0;
        }
        const auto places = [&](std::byte* const* state, Pointers into) {
            std::copy_n(state, control_.state, into.data());
            return into;
        };
        Pointers outputs;
        outputs.resize(control_.state);
        outputs.push_back(flag_at);
        const Pointers first = places(a, outputs), second = places(second_.data(), outputs),
                       in_first = places(a, inputs_), in_second = places(second_.data(), inputs_);
        body.run(std::span(inputs_.data(), inputs_.size()), std::span(first.data(), first.size()), run);
        Running::Bound forth = body.bind({in_first.data(), in_first.size()}, {second.data(), second.size()}),
                       back = body.bind({in_second.data(), in_second.size()}, {first.data(), first.size()});
        int64_t steps = 1;
        for (; flag_; ++steps) body.run(steps % 2 ? forth : back, run);
        for (size_t k = 0; k < control_.state; ++k)
            move_to(a[k], steps % 2 ? a[k] : second_[k], body.output_bytes(k));
        return steps;
    }

    void second_places(const Running& body) {
        for (size_t k = second_.size(); k < control_.state; ++k) second_.push_back(own(body.output_bytes(k)));
    }

    void scan(const int64_t* slots, Run& run) {
        Running& body = program(0, run);
        second_places(body);
        const int64_t length = slots[control_.length];
        const size_t state = control_.state, each = control_.each, results = body.outputs(),
                     parts = results - state;
        Pointers from(inputs_), to(outputs_);
        Dims steps;  // bytes from one part to the next
        for (size_t k = 0; k < each + parts; ++k) {
            const Pointer& p = k < each ? control_.inputs[state + k] : control_.outputs[state + k - each];
            steps.push_back(slots[control_.strides[k]] * int64_t(p.itemsize));  // 0 where nobody reads it
        }
        for (size_t k = 0; k < results; ++k) give_own(k, body);
        to.resize(results);
        for (int64_t step = 0; step < length; ++step) {
            const int64_t at = control_.reverse ? length - 1 - step : step;
            for (size_t k = 0; k < state; ++k) {
                const size_t bytes = body.output_bytes(k);
                if (std::byte* kept = outputs_[results + k])
                    move_to(kept + size_t(at) * bytes, from[k], bytes);
            }
            for (size_t k = 0; k < each; ++k) from[state + k] = inputs_[state + k] + at * steps[k];
            for (size_t k = 0; k < parts; ++k) to[state + k] = outputs_[state + k] + at * steps[each + k];
            std::copy_n(step % 2 ? second_.data() : outputs_.data(), state, to.data());
            body.run(std::span(from.data(), from.size()), std::span(to.data(), to.size()), run);
            std::copy_n(to.data(), state, from.data());
        }
        for (size_t k = 0; k < state; ++k) move_to(outputs_[k], from[k], body.output_bytes(k));
    }

    void counted(Run& run) {
        Running& body = program(1, run);
        for (size_t k = first_.size(); k < control_.state; ++k) first_.push_back(own(body.output_bytes(k)));
        environment_[control_.sizes.size()] = while_loop(first_.data(), run);
        Running rest(*control_.programs[2], std::span(environment_.data(), environment_.size()), run);
        for (size_t k = 0; k < outputs_.size(); ++k) give_own(k, rest);
        rest.run(std::span(inputs_.data(), inputs_.size()), outputs(), run);
    }

    std::span<std::byte* const> outputs() const { return {outputs_.data(), outputs_.size()}; }

    const Control& control_;
    Dims environment_;
    std::vector<std::unique_ptr<Running>> programs_;
    std::vector<std::unique_ptr<Memory>> memory_;
    Pointers inputs_, outputs_, first_, second_;
    std::vector<std::byte*> unread_;
    bool flag_ = false;
};

Controls::Controls() = default;
Controls::~Controls() = default;

void Controls::run(const Control& control, size_t number, const int64_t* slots,
                   const SmallVector<std::byte*, 16>& starts, Run& run) {
    if (calls_.size() <= number) calls_.resize(number + 1);
    if (!calls_[number]) calls_[number] = std::make_unique<Calls>(control, slots);
    FloatEnvironment environment;  // once for all that is launched by itself (Running::run)
    calls_[number]->run(slots, starts, run);
}

}  // namespace kiln
