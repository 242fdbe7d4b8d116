#include "program/answer.h"

#include <bit>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace kiln {

namespace {
constexpr int64_t most_slots = 1 << 24;  // of an environment; beyond any recording
}

std::span<const uint8_t> Answer::take(size_t count) {
    KILN_CHECK(count <= rest_.size(), internal, "answer: it ends too early");
    std::span<const uint8_t> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
}

int64_t Answer::integer() {
    static_assert(std::endian::native == std::endian::little);
    int64_t value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
}

int64_t Answer::integer(int64_t low, int64_t high) {
    int64_t value = integer();
    KILN_CHECK(value >= low && value < high, internal, "answer: ", value, " is not in [", low, ", ", high,
               ")");
    return value;
}

std::string Answer::text() {
    auto bytes = take(size_t(integer(0, int64_t(rest_.size()) + 1)));
    return {bytes.begin(), bytes.end()};
}

DType Answer::dtype() {
    std::optional<DType> found = dtype_from_name(text());
    KILN_CHECK(found, internal, "answer: not a dtype");
    return *found;
}

std::vector<int32_t> Answer::slots(int64_t low, int64_t high) {
    return list([&] { return int32_t(integer(low, high)); });
}

BitSet Answer::set() {
    BitSet found;
    for (int32_t i : slots(0, most_slots)) found.add(size_t(i));
    return found;
}

void Answer::end() const { KILN_CHECK(rest_.empty(), internal, "answer: it ends too late"); }

std::vector<Kernel*> read_kernels(Answer& answer) {
    return answer.list([&] { return &kernel_of(answer.text()); });
}

std::vector<SizeExpr> read_exprs(Answer& answer, uint32_t environment) {
    int64_t known = environment;
    return answer.list([&] {
        auto kind = SizeExpr::Kind(answer.integer(0, SizeExpr::divide + 1));
        const bool constant = kind == SizeExpr::constant;
        int64_t a = constant ? answer.integer() : answer.integer(0, known);
        int64_t b = answer.integer(0, constant ? INT64_MAX : known);
        ++known;
        return SizeExpr{kind, a, b};
    });
}

namespace {

constexpr int deepest = 64;  // programs in programs

std::shared_ptr<Program> read_body(Answer& answer, const std::vector<Kernel*>& kernels, size_t inputs,
                                   int depth);

Pointer read_pointer(Answer& answer, const Program& program) {
    auto to = uint32_t(answer.integer(0, int64_t(program.buffers.size())));
    auto offset = int32_t(answer.integer(-1, program.slots()));
    return Pointer{to, offset, uint32_t(answer.integer(0, 9))};
}

Control read_control(Answer& answer, const Program& program, int depth) {
    const int64_t slots = program.slots();
    Control control;
    control.kind = Control::Kind(answer.integer(0, Control::counted + 1));
    for (uint32_t* count : {&control.state, &control.each, &control.captured})
        *count = uint32_t(answer.integer(0, most_slots));
    control.length = int32_t(answer.integer(0, slots));
    control.reverse = answer.integer(0, 2);
    control.sizes = answer.slots(0, slots);
    control.strides = answer.slots(0, slots);
    for (auto* pointers : {&control.inputs, &control.outputs})
        *pointers = answer.list([&] { return read_pointer(answer, program); });
    const size_t inputs = control.inputs.size();
    control.programs = answer.list([&]() -> std::shared_ptr<const Program> {
        return read_body(answer, program.kernels, inputs, depth + 1);
    });
    // What a run relies on without looking.
    const size_t wanted[] = {2, 2, 1, 3};
    const bool is_cond = control.kind == Control::cond;
    bool right = control.programs.size() == wanted[control.kind] && inputs >= is_cond &&
                 size_t(control.state) + control.each + control.captured <= inputs;
    if (right) {
        const size_t results = control.programs[is_cond ? 0 : wanted[control.kind] - 1]->outputs.size();
        const size_t kept = control.kind == Control::scan ? control.state : 0;  // the states it had
        const bool is_loop = control.kind == Control::while_loop || control.kind == Control::counted;
        right = results + kept == control.outputs.size() + (control.kind == Control::while_loop) &&
                (control.kind == Control::counted || results >= control.state);
        if (is_cond) right = right && control.programs[1]->outputs.size() == results;
        if (control.kind == Control::scan)
            right = right && control.strides.size() == control.each + results - control.state;
        if (is_loop)  // the body says last whether another step follows
            right = right && control.programs[0]->outputs.size() == 1 &&
                    control.programs[1]->outputs.size() == control.state + 1 &&
                    control.programs[0]->outputs[0].dtype == DType::bool_ &&
                    control.programs[1]->outputs[control.state].dtype == DType::bool_;
        for (size_t k = 0; k < control.programs.size(); ++k)
            right = right && control.programs[k]->environment == control.sizes.size() + (k == 2);
    }
    KILN_CHECK(right, internal, "answer: not a step of control");
    return control;
}

std::shared_ptr<Program> read_body(Answer& answer, const std::vector<Kernel*>& kernels, size_t inputs,
                                   int depth) {
    KILN_CHECK(depth <= deepest, internal, "answer: nested too deeply");
    auto program = std::make_shared<Program>();
    program->kernels = kernels;
    program->environment = uint32_t(answer.integer(0, most_slots));
    program->exprs = read_exprs(answer, program->environment);
    const int64_t slots = program->slots();
    auto slot = [&] { return int32_t(answer.integer(0, slots)); };
    program->checks = answer.list([&] {
        int32_t a = slot();
        return Check{a, slot()};
    });
    program->buffers = answer.list([&] {
        auto kind = Buffer::Kind(answer.integer(0, Buffer::temp + 1));
        auto index = answer.integer(-1, kind == Buffer::input ? int64_t(inputs) : INT32_MAX);
        int32_t elements = kind == Buffer::input ? int32_t(answer.integer()) : slot();
        return Buffer{kind, uint32_t(index), elements, uint32_t(answer.integer(1, 9))};
    });
    auto buffer = [&] { return uint32_t(answer.integer(0, int64_t(program->buffers.size()))); };
    program->outputs = answer.list([&] {
        uint32_t from = buffer();
        DType dtype = answer.dtype();
        return Output{from, dtype, answer.slots(0, slots)};
    });
    program->steps = answer.list([&] {
        Step step;
        step.kernel = int32_t(answer.integer(Step::control, int64_t(program->kernels.size())));
        if (step.kernel == Step::free) {
            step.buffer = buffer();
            return step;
        }
        if (step.kernel == Step::control) {
            step.buffer = uint32_t(program->controls.size());
            program->controls.push_back(read_control(answer, *program, depth));
            return step;
        }
        step.label = answer.text();
        step.units = slot();
        step.grain = slot();
        step.scratch = int32_t(answer.integer(-1, slots));
        step.split.segments = int32_t(answer.integer(-1, slots));
        if (step.split.segments >= 0) step.split = {step.split.segments, slot(), slot(), slot()};
        step.pointers = answer.list([&] {
            uint32_t to = buffer();
            auto offset = int32_t(answer.integer(-1, slots));
            return Pointer{to, offset, uint32_t(answer.integer(1, 9))};
        });
        step.args = answer.slots(0, slots);
        return step;
    });
    return program;
}

}  // namespace

std::unique_ptr<Program> read_program(Answer& answer, size_t inputs) {
    const std::vector<Kernel*> kernels = read_kernels(answer);
    return std::make_unique<Program>(std::move(*read_body(answer, kernels, inputs, 0)));
}

}  // namespace kiln
