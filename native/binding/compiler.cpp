// The calls up: what the core has no function, program or kernel for is asked of one Python function.
#include "call/compiler.h"

#include "binding/bind.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "autograd/autograd.h"
#include "autograd/node.h"
#include "base/system_memory.h"
#include "base/threads.h"
#include "call/busy.h"
#include "call/op_list.h"
#include "program/answer.h"
#include "program/entry.h"

namespace kiln {

namespace {

PyObject* compiler_module = nullptr;  // its name, imported at the first call
PyObject* compiler_function = nullptr;

// ---- from Python values ----

// A list or tuple, read item by item.
class Items {
public:
    explicit Items(PyObject* sequence)
        : list_(checked(PySequence_Fast(sequence, "compile: expected a sequence"))) {}
    Py_ssize_t size() const { return PySequence_Fast_GET_SIZE(list_.get()); }
    PyObject* operator[](Py_ssize_t i) const {
        KILN_CHECK(i < size(), internal, "compile: a tuple is too short");
        return PySequence_Fast_GET_ITEM(list_.get(), i);
    }

private:
    Object list_;
};

// ---- to Python values ----

// What a function may depend on: ("float32", (0, 1, ...) where a size is 1, stride classes or None), or the
// letter of a number. Of what is computed at `points`, only whether an array has dims: (0,) or ().
Object describe_operand(const Operand& operand, bool points) {
    if (!operand.tensor) {
        Kind k = operand.number.kind;
        return checked(PyUnicode_FromString(k == Kind::float_ ? "f" : k == Kind::bool_ ? "b" : "i"));
    }
    const Tensor& x = *operand.tensor;
    if (points)
        return checked(Py_BuildValue("(sNO)", name(x.dtype), dims_object(Dims(x.ndim() > 0)), Py_None));
    Dims ones(x.sizes.size()), classes(x.sizes.size());
    for (size_t d = 0; d < x.sizes.size(); ++d) {
        ones[d] = x.sizes[d] == 1;
        classes[d] = int64_t(stride_class(x.strides[d]));
    }
    return checked(Py_BuildValue("(sNN)", name(x.dtype), dims_object(ones),
                                 x.contiguous ? Py_NewRef(Py_None) : dims_object(classes)));
}

Object describe_operands(std::span<const Operand> operands, bool points = false) {
    Object list = checked(PyTuple_New(Py_ssize_t(operands.size())));
    for (size_t i = 0; i < operands.size(); ++i)
        PyTuple_SET_ITEM(list.get(), i, describe_operand(operands[i], points).release());
    return list;
}

// What `read` makes of the answer to a request.
template <class Read>
auto answer_to(const char* request, const Object& args, Read read) {
    Object bytes = ask(request, args);
    Answer answer(bytes_of(bytes.get()));
    auto made = read(answer);
    answer.end();
    return made;
}

// (handle, identity)
void set_handle(Fn& fn, PyObject* object) {
    Items fields(object);
    fn.handle = Opaque(fields[0]);
    KILN_CHECK(PyBytes_Check(fields[1]) && PyBytes_GET_SIZE(fields[1]) == sizeof fn.identity, internal,
               "a function's identity: expected ", sizeof fn.identity, " bytes");
    std::memcpy(fn.identity.data(), PyBytes_AS_STRING(fields[1]), sizeof fn.identity);
}

Object request_of(const Call& call, bool points = false) {
    Object operands = describe_operands(call.operands, points);
    return checked(Py_BuildValue("(OO)", handle_of(*call.fn), operands.get()));
}

FnClass class_from(Answer& answer) {
    std::string name = answer.text();
    return name == "pointwise" ? FnClass::pointwise : name == "replay" ? FnClass::replay : FnClass::program;
}

}  // namespace

Object ask(const char* request, Object args) {
    expect_stack();
    // Python code of this size ends in errors that nobody set, or ends the process, where memory ends inside
    // it.
    void* room = map_aligned(16 << 20, false);
    KILN_CHECK(room, memory, "compiling: 16 MiB of memory are not to be had");
    unmap(room, 16 << 20);
    Away here;
    const SeenValues::Pause pause;
    const AutocastOff uncast;            // what a function is made of is traced as it stands
    const FloatEnvironment environment;  // constants are computed there, and kept for everyone
    if (!compiler_function) {
        KILN_CHECK(compiler_module, internal, "no compiler is registered");
        Object module = checked(in_python([] { return PyImport_Import(compiler_module); }));
        compiler_function = checked(PyObject_GetAttrString(module.get(), "compile")).release();
    }
    Object name = checked(PyUnicode_FromString(request));
    auto call = [&] {
        return PyObject_CallFunctionObjArgs(compiler_function, name.get(), args.get(), nullptr);
    };
    PyObject* answer = in_python(call);
    if (!answer && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        // Ctrl-C must not tear a call into halves: the answer is made all the same, the interrupt comes after
        // it.
        PyErr_Clear();
        answer = in_python(call);
        if (answer) PyErr_SetInterrupt();
    }
    return checked(answer);
}

PyObject* handle_of(Fn& fn) {
    if (!fn.handle.object) {
        Object made = ask("function", "(OO)", static_cast<PyObject*>(fn.op->record),
                          static_cast<PyObject*>(fn.structure.object));
        set_handle(fn, made.get());
    }
    return static_cast<PyObject*>(fn.handle.object);
}

std::span<const uint8_t> bytes_of(PyObject* object) {
    char* bytes;
    Py_ssize_t count;
    checked_ok(PyBytes_AsStringAndSize(object, &bytes, &count));
    return {reinterpret_cast<uint8_t*>(bytes), size_t(count)};
}

namespace compiler {

void classify(const Call& call) {
    answer_to("classify", request_of(call), [&](Answer& answer) {
        Fn& fn = *call.fn;
        const auto arrays = int64_t(call.operands.size());
        FnClass cls = class_from(answer);
        fn.outputs = uint8_t(answer.integer(0, 256));
        if (answer.integer(0, 2)) {
            fn.index_input = int8_t(answer.integer(0, arrays));
            fn.indexed_input = int8_t(answer.integer(0, arrays));
            fn.index_dim = int8_t(answer.integer(-128, 128));
            fn.index_negative = answer.integer(0, 2) != 0;
            fn.index_ignore = int8_t(answer.integer(-1, arrays));
            fn.index_error = answer.text();
            fn.index_error_kind = answer.integer(0, 2) ? ErrorKind::index : ErrorKind::runtime;
        }
        fn.gives_along = int8_t(answer.integer(-128, 128));
        fn.updates = answer.integer(0, 2) != 0;
        return fn.cls = cls;
    });
}

std::unique_ptr<PointwiseEntry> pointwise(const Call& call, int ndim, std::span<const uint8_t> layouts,
                                          std::span<const DType> out_dtypes) {
    Object operands = describe_operands(call.operands, true);
    Object classes = checked(PyTuple_New(Py_ssize_t(layouts.size())));
    for (size_t i = 0; i < layouts.size(); ++i)
        PyTuple_SET_ITEM(classes.get(), i, checked(PyLong_FromLong(layouts[i])).release());
    Object outs = checked(PyTuple_New(Py_ssize_t(out_dtypes.size())));
    for (size_t i = 0; i < out_dtypes.size(); ++i)
        PyTuple_SET_ITEM(outs.get(), i, checked(PyUnicode_FromString(name(out_dtypes[i]))).release());
    Object args = checked(
        Py_BuildValue("(OOiOO)", handle_of(*call.fn), operands.get(), ndim, classes.get(), outs.get()));
    return answer_to("pointwise", args, [&](Answer& answer) {
        auto made = std::make_unique<PointwiseEntry>();
        made->kernel = read_kernels(answer).at(0);
        made->outputs = answer.list([&] { return answer.dtype(); });
        const auto results = answer.list([&] { return answer.dtype(); });
        for (size_t k = 0; k < out_dtypes.size() && k < results.size(); ++k)
            expect_castable(*call.fn, results[k], out_dtypes[k]);
        return made;
    });
}

std::unique_ptr<Program> program(const Call& call, ProgramFor what) {
    Object operands = describe_operands(call.operands);
    Object args = checked(Py_BuildValue("(OOi)", handle_of(*call.fn), operands.get(), int(what)));
    auto made = answer_to("program", args,
                          [&](Answer& answer) { return read_program(answer, call.operands.size()); });
    made->name = call.fn->name;
    return made;
}

std::unique_ptr<Saves> saves(const Call& call) {
    return answer_to("saves", request_of(call, call.fn->cls == FnClass::pointwise), [&](Answer& answer) {
        auto result = std::make_unique<Saves>();
        auto sets = [&] { return answer.list([&] { return answer.set(); }); };
        result->hidden = uint32_t(answer.integer(0, 1 << 24));
        result->inputs = sets();
        result->outputs = sets();
        result->hiddens = sets();
        result->differentiable = answer.set();
        return result;
    });
}

// A bit for each member, as the interpreter's integer; null with its error set.
PyObject* mask(const BitSet& set) {
    if (set.rest().empty()) return PyLong_FromUnsignedLongLong(set.first());
    std::string digits;
    for (size_t i = (set.end() + 3) / 4 * 4; i > 0; i -= 4)
        digits += "0123456789abcdef"[set.has(i - 4) | set.has(i - 3) << 1 | set.has(i - 2) << 2 |
                                     set.has(i - 1) << 3];
    return PyLong_FromString(digits.c_str(), nullptr, 16);
}

Fn* derivative(Fn& forward, std::span<const Operand> operands, const Asked& asked) {
    Object described = describe_operands(operands, forward.cls == FnClass::pointwise);
    Object args =
        checked(Py_BuildValue("(OONNiNiN)", handle_of(forward), described.get(), mask(asked.needed),
                              mask(asked.defined), int(asked.redo), mask(asked.factored), asked.onto,
                              asked.shared ? mask(*asked.shared) : PyLong_FromLong(-1)));
    Fn* fn = new_fn(nullptr, forward.name + " backward");
    set_handle(*fn, ask("derivative function", args).get());
    answer_to("derivative", args, [&](Answer& answer) {
        FnClass cls = class_from(answer);
        fn->sources.clear();
        fn->targets.clear();
        fn->products.clear();
        for (int64_t count = answer.integer(0, 1 << 24); count > 0; --count) {
            auto kind = Source::Kind(answer.integer(0, Source::sum + 1));
            fn->sources.push_back({kind, uint32_t(answer.integer(0, 1 << 24))});
        }
        const auto of = answer.slots(0, int64_t(operands.size()));
        const auto roles = answer.slots(0, Target::rows + 1);
        const auto passes = answer.slots(-1, int64_t(fn->sources.size()));
        KILN_CHECK(of.size() == roles.size() && of.size() == passes.size(), internal,
                   "answer: lists of different lengths");
        for (size_t k = 0; k < of.size(); ++k)
            fn->targets.push_back({Target::Role(roles[k]), uint32_t(of[k]), passes[k]});
        const auto operand = [&] { return uint32_t(answer.integer(0, int64_t(operands.size()))); };
        fn->products = answer.list([&] {
            const uint32_t of = operand();
            const int64_t count = answer.integer(0, 1ll << 32);
            return Product{of, count, answer.list([&] {
                               const uint32_t i = operand();
                               return std::pair(i, uint8_t(answer.integer(0, 256)));
                           })};
        });
        fn->scattered = answer.set();
        fn->updates = answer.integer(0, 2) != 0;
        fn->hidden_rows.reset();
        if (answer.integer(0, 2)) fn->hidden_rows = answer.set();
        return fn->cls = cls;
    });
    fn->outputs =
        uint32_t(std::ranges::count_if(fn->targets, [](const Target& target) { return target.pass < 0; }));
    return fn;
}

// value := 0 (none) | 1 integer (a truth) | 2 integer | 3 integer (a double's bits) | 4 text | 5 list (a
// tuple)
Object structure_from(Answer& answer, int depth = 0) {
    KILN_CHECK(depth < 16, internal, "answer: nested too deeply");
    switch (answer.integer(0, 6)) {
    case 0: return Object::borrow(Py_None);
    case 1: return Object::borrow(answer.integer() ? Py_True : Py_False);
    case 2: return checked(PyLong_FromLongLong(answer.integer()));
    case 3: return checked(PyFloat_FromDouble(std::bit_cast<double>(answer.integer())));
    case 4: return checked(PyUnicode_FromString(answer.text().c_str()));
    default: break;
    }
    auto items = answer.list([&] { return structure_from(answer, depth + 1); });
    Object tuple = checked(PyTuple_New(Py_ssize_t(items.size())));
    for (size_t i = 0; i < items.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, items[i].release());
    return tuple;
}

const Recipe& recipe_for(const Call& call) {
    static auto* table = new Table<Recipe>();
    Key key;
    key.push(call.fn->id);
    for (const Operand& operand : call.operands) describe(operand, key);
    if (const Recipe* known = table->find(key)) return *known;
    auto recipe = answer_to("recipe", request_of(call), [&](Answer& answer) {
        auto result = std::make_unique<Recipe>();
        result->inputs = uint32_t(call.operands.size());
        result->environment = uint32_t(answer.integer(0, 1 << 20));
        result->exprs = read_exprs(answer, result->environment);
        const auto slots = int64_t(result->environment + result->exprs.size());
        int64_t values = result->inputs;
        OpList& list = result->list;
        for (int64_t count = answer.integer(0, 1 << 20); count > 0; --count) {
            Object op = ask("op", "(s)", answer.text().c_str());
            Object structure = structure_from(answer);
            const auto numbers = answer.slots(0, slots), kinds = answer.slots(0, 4);
            const auto args = answer.slots(-int64_t(std::min(numbers.size(), kinds.size())), values);
            const auto results = uint32_t(answer.integer(1, 1 << 20));
            values += results;
            list.ops.push_back({.fn = &fn_of(op.get(), structure.get()),
                                .first_arg = uint32_t(list.args.size()),
                                .args = uint32_t(args.size()),
                                .outs = results});
            for (int32_t arg : args) {
                ListedArg& listed = list.args.emplace_back();
                if (arg >= 0) {
                    listed.cls = ArgClass::whole;
                    listed.value = arg;
                } else {
                    listed.dtype = dtype_of(Kind(kinds[size_t(-1 - arg)]));
                    listed.slot = uint32_t(numbers[size_t(-1 - arg)]);
                }
            }
        }
        result->outputs = answer.slots(-1, values);
        return result;
    });
    return *table->insert(key, std::move(recipe));
}

void load(Kernel& kernel) {
    Object code = ask("kernel", "(y#)", kernel.key.data(), Py_ssize_t(kernel.key.size()));
    give_code(kernel, bytes_of(code.get()));
}

void identify(Fn& fn) { handle_of(fn); }

void explain(const Call& call) {
    Object sizes = checked(PyTuple_New(Py_ssize_t(call.operands.size())));
    for (size_t i = 0; i < call.operands.size(); ++i) {
        const Tensor* x = call.operands[i].tensor;
        PyTuple_SET_ITEM(sizes.get(), i,
                         checked(x ? Py_BuildValue("(sN)", name(x->dtype), dims_object(x->sizes))
                                   : number_object(call.operands[i].number))
                             .release());
    }
    ask("explain", "(OO)", handle_of(*call.fn), sizes.get());
    raise(ErrorKind::runtime, concat(call.fn->name, ": the sizes of its arguments do not fit"));
}

std::string view_error(const Tensor& view, const char* what) {
    const Node* node = view.node.get();
    const char* ways[] = {"recorded", "unrecorded", "inference", "one_of_several", "of_user"};
    Object text = ask("view error", "(zIss)", node ? node->fn->name.c_str() : nullptr, view.output,
                      ways[int(view.made)], what);
    return text_of(text.get());
}

void settle() {
    if (compiler_function) ask("settle", "()");
}

void log(bool warning, const std::string& text) { ask("log", "(is)", int(warning), text.c_str()); }

bool forgive(const Error& error, std::string* text) {
    if (error.kind != ErrorKind::python) {
        *text = error.message;
        return true;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Object owned[] = {Object::steal(type), Object::steal(value), Object::steal(traceback)};
    Object described = Object::steal(PyObject_Str(value));
    *text = concat(reinterpret_cast<PyTypeObject*>(type)->tp_name, ": ",
                   described ? text_of(described.get()) : "no words for it");
    PyErr_Clear();
    return true;
}

}  // namespace compiler

namespace {

PyObject* set_compiler(PyObject*, PyObject* module) {
    Py_XSETREF(compiler_module, Py_NewRef(module));
    Py_CLEAR(compiler_function);
    Py_RETURN_NONE;
}

// give_kernel(key, object), kernel_known(key)
PyObject* give_kernel(PyObject*, PyObject* args) {
    return guarded([&]() -> PyObject* {
        PyObject *key, *object;
        if (!PyArg_ParseTuple(args, "SS:give_kernel", &key, &object)) return nullptr;
        auto name = bytes_of(key);
        give_code(kernel_of({name.begin(), name.end()}), bytes_of(object));
        Py_RETURN_NONE;
    });
}
PyObject* kernel_known(PyObject*, PyObject* key) {
    return guarded([&]() -> PyObject* {
        auto name = bytes_of(key);
        return PyBool_FromLong(kernel_of({name.begin(), name.end()}).function != nullptr);
    });
}

// header_of_entry(key, content), read_entry(directory, key)
PyObject* header_of_entry(PyObject*, PyObject* args) {
    return guarded([&]() -> PyObject* {
        const char *key, *content;
        Py_ssize_t width, length;
        if (!PyArg_ParseTuple(args, "y#y#:header_of_entry", &key, &width, &content, &length)) return nullptr;
        const std::string header = kiln::header_of_entry({key, size_t(width)}, {content, size_t(length)});
        return PyBytes_FromStringAndSize(header.data(), Py_ssize_t(header.size()));
    });
}
PyObject* read_entry(PyObject*, PyObject* args) {
    return guarded([&]() -> PyObject* {
        int directory;
        const char* key;
        Py_ssize_t width;
        if (!PyArg_ParseTuple(args, "iy#:read_entry", &directory, &key, &width)) return nullptr;
        const std::optional<std::string> entry = kiln::read_entry(directory, {key, size_t(width)});
        if (!entry) Py_RETURN_NONE;
        return PyBytes_FromStringAndSize(entry->data() + entry_header,
                                         Py_ssize_t(entry->size() - entry_header));
    });
}

PyMethodDef functions[] = {
    {"header_of_entry", header_of_entry, METH_VARARGS, "What stands before an entry's content on disk."},
    {"read_entry", read_entry, METH_VARARGS, "The content of an entry on disk, or None."},
    {"give_kernel", give_kernel, METH_VARARGS, "Gives the kernel of a key its code."},
    {"kernel_known", kernel_known, METH_O, "Whether the kernel of a key has its code."},
    {"set_compiler", set_compiler, METH_O, "Names the module whose `compile` the core calls up to."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_compiler(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
