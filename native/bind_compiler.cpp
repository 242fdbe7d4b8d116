// The calls up: what the core has no function, program or kernel for is asked of one Python function.
#include "compiler.h"

#include "bind.h"

#include <chrono>
#include <thread>

namespace kiln {

namespace {

PyTypeObject* kernel_type = nullptr;
PyObject* compiler_module = nullptr;  // its name, imported at the first call
PyObject* compiler_function = nullptr;

struct KernelHolder {
    PyObject_HEAD KernelPtr* kernel;
};

PyObject* kernel_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* source;
    if (!PyArg_ParseTuple(args, "O:Kernel", &source)) return nullptr;
    PyObject* object = type->tp_alloc(type, 0);
    if (!object) return nullptr;
    auto kernel = std::make_shared<Kernel>();
    kernel->source = Opaque(source);
    reinterpret_cast<KernelHolder*>(object)->kernel = new KernelPtr(std::move(kernel));
    return object;
}
void kernel_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<KernelHolder*>(object)->kernel;
    type->tp_free(object);
    Py_DECREF(type);
}
const KernelPtr& kernel_of(PyObject* object) {
    KILN_CHECK(Py_TYPE(object) == kernel_type, internal, "compile: expected a Kernel");
    return *reinterpret_cast<KernelHolder*>(object)->kernel;
}
PyObject* kernel_launches(PyObject* self, void*) {
    return PyLong_FromUnsignedLongLong(kernel_of(self)->launches);
}
PyObject* kernel_loaded(PyObject* self, void*) {
    return PyBool_FromLong(kernel_of(self)->function != nullptr);
}
PyGetSetDef kernel_getset[] = {
    {"launches", kernel_launches, nullptr, "How often it ran.", nullptr},
    {"loaded", kernel_loaded, nullptr, "Whether its code is in memory.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot kernel_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(kernel_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(kernel_dealloc)},
    {Py_tp_getset, kernel_getset},
    {0, nullptr},
};
PyType_Spec kernel_spec = {"kiln._core.Kernel", sizeof(KernelHolder), 0, Py_TPFLAGS_DEFAULT, kernel_slots};

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

int64_t integer(PyObject* object) {
    long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw Error(ErrorKind::python, "");
    return value;
}

std::vector<int32_t> slots_from(PyObject* sequence) {
    Items items(sequence);
    std::vector<int32_t> result;
    for (Py_ssize_t i = 0; i < items.size(); ++i) result.push_back(int32_t(integer(items[i])));
    return result;
}

std::vector<uint64_t> masks_from(PyObject* sequence) {
    Items items(sequence);
    std::vector<uint64_t> result;
    for (Py_ssize_t i = 0; i < items.size(); ++i) result.push_back(uint64_t(integer(items[i])));
    return result;
}

std::vector<SizeExpr> exprs_from(PyObject* sequence) {
    Items items(sequence);
    std::vector<SizeExpr> result;
    for (Py_ssize_t i = 0; i < items.size(); ++i) {
        Items expr(items[i]);
        result.push_back({SizeExpr::Kind(integer(expr[0])), integer(expr[1]), integer(expr[2])});
    }
    return result;
}

Step step_from(PyObject* object) {
    Items fields(object);
    Step step;
    step.kernel = int32_t(integer(fields[0]));
    if (step.kernel < 0) {
        step.buffer = uint32_t(integer(fields[1]));
        return step;
    }
    step.units = int32_t(integer(fields[1]));
    step.grain = int32_t(integer(fields[2]));
    Items pointers(fields[3]);
    for (Py_ssize_t i = 0; i < pointers.size(); ++i) {
        Items p(pointers[i]);
        step.pointers.push_back({uint32_t(integer(p[0])), int32_t(integer(p[1])), uint32_t(integer(p[2]))});
    }
    step.args = slots_from(fields[4]);
    return step;
}

// (name, environment, exprs, checks, buffers, steps, outputs, kernels)
std::unique_ptr<Program> program_from(PyObject* object) {
    Items fields(object);
    auto program = std::make_unique<Program>();
    program->name = PyUnicode_AsUTF8(fields[0]);
    program->environment = uint32_t(integer(fields[1]));
    program->exprs = exprs_from(fields[2]);
    Items checks(fields[3]), buffers(fields[4]), steps(fields[5]), outputs(fields[6]), kernels(fields[7]);
    for (Py_ssize_t i = 0; i < checks.size(); ++i) {
        Items check(checks[i]);
        program->checks.push_back({int32_t(integer(check[0])), int32_t(integer(check[1]))});
    }
    for (Py_ssize_t i = 0; i < buffers.size(); ++i) {
        Items b(buffers[i]);
        program->buffers.push_back({Buffer::Kind(integer(b[0])), uint32_t(integer(b[1])),
                                    int32_t(integer(b[2])), uint32_t(integer(b[3]))});
    }
    for (Py_ssize_t i = 0; i < steps.size(); ++i) program->steps.push_back(step_from(steps[i]));
    for (Py_ssize_t i = 0; i < outputs.size(); ++i) {
        Items o(outputs[i]);
        program->outputs.push_back({uint32_t(integer(o[0])), dtype_from(o[1]), slots_from(o[2])});
    }
    for (Py_ssize_t i = 0; i < kernels.size(); ++i) program->kernels.push_back(kernel_of(kernels[i]));
    return program;
}

// ---- to Python values ----

// What a function may depend on: ("float32", (0, 1, ...) where a size is 1, stride classes or None), or the
// letter of a number.
Object describe_operand(const Operand& operand) {
    if (!operand.tensor) {
        Kind k = operand.number.kind;
        return checked(PyUnicode_FromString(k == Kind::float_ ? "f" : k == Kind::bool_ ? "b" : "i"));
    }
    const Tensor& x = *operand.tensor;
    Dims ones(x.sizes.size()), classes(x.sizes.size());
    for (size_t d = 0; d < x.sizes.size(); ++d) {
        ones[d] = x.sizes[d] == 1;
        classes[d] = int64_t(stride_class(x.strides[d]));
    }
    return checked(Py_BuildValue("(sNN)", name(x.dtype), dims_object(ones),
                                 x.contiguous ? Py_NewRef(Py_None) : dims_object(classes)));
}

Object describe_operands(std::span<const Operand> operands) {
    Object list = checked(PyTuple_New(Py_ssize_t(operands.size())));
    for (size_t i = 0; i < operands.size(); ++i)
        PyTuple_SET_ITEM(list.get(), i, describe_operand(operands[i]).release());
    return list;
}

Object ask(const char* request, Object args) {
    if (!compiler_function) {
        KILN_CHECK(compiler_module, internal, "no compiler is registered");
        Object module = checked(PyImport_Import(compiler_module));
        compiler_function = checked(PyObject_GetAttrString(module.get(), "compile")).release();
    }
    // A call up runs Python code of kiln's own: nothing of it is recorded or differentiated.
    Object name = checked(PyUnicode_FromString(request));
    PyObject* answer = PyObject_CallFunctionObjArgs(compiler_function, name.get(), args.get(), nullptr);
    if (!answer && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        // Ctrl-C must not tear a call into halves: the answer is made all the same, the interrupt comes after
        // it.
        PyErr_Clear();
        answer = PyObject_CallFunctionObjArgs(compiler_function, name.get(), args.get(), nullptr);
        if (answer) PyErr_SetInterrupt();
    }
    return checked(answer);
}

template <class... Args>
Object ask(const char* request, const char* format, Args... args) {
    return ask(request, checked(Py_BuildValue(format, args...)));
}

PyObject* handle_of(Fn& fn) {
    if (!fn.handle.object) {
        Object handle = ask("function", "(OO)", static_cast<PyObject*>(fn.op->record),
                            static_cast<PyObject*>(fn.structure.object));
        fn.handle = Opaque(handle.get());
    }
    return static_cast<PyObject*>(fn.handle.object);
}

FnClass class_from(PyObject* text) {
    std::string name = PyUnicode_AsUTF8(text);
    return name == "pointwise" ? FnClass::pointwise : name == "replay" ? FnClass::replay : FnClass::program;
}

struct RecipeEntry {
    std::unique_ptr<Recipe> recipe;
};

PyObject* recorded_args(std::span<const RecordedArg> args) {
    Object list = checked(PyTuple_New(Py_ssize_t(args.size())));
    for (size_t i = 0; i < args.size(); ++i) {
        const RecordedArg& a = args[i];
        const char* classes[] = {"number", "whole", "squeeze", "reshape", "expand", "strided"};
        PyObject* item =
            Py_BuildValue("(ssiiiKK)", classes[int(a.cls)], name(a.dtype), int(a.ndim), int(a.storage),
                          int(a.slot), (unsigned long long)a.ones, (unsigned long long)a.classes);
        if (!item) throw Error(ErrorKind::python, "");
        PyTuple_SET_ITEM(list.get(), i, item);
    }
    return list.release();
}

}  // namespace

namespace compiler {

void classify(const Call& call) {
    Fn& fn = *call.fn;
    Object operands = describe_operands(call.operands);
    Object answer = ask("classify", "(OO)", handle_of(fn), operands.get());
    Items fields(answer.get());
    fn.outputs = uint8_t(integer(fields[1]));
    if (fields[2] != Py_None) {
        Items check(fields[2]);
        fn.index_input = int8_t(integer(check[0]));
        fn.indexed_input = int8_t(integer(check[1]));
        fn.index_dim = int8_t(integer(check[2]));
        fn.index_negative = integer(check[3]) != 0;
        fn.index_ignore = int8_t(integer(check[4]));
        fn.index_error = PyUnicode_AsUTF8(check[5]);
        fn.index_error_kind = integer(check[6]) ? ErrorKind::index : ErrorKind::runtime;
    }
    fn.cls = class_from(fields[0]);
}

std::unique_ptr<PointwiseEntry> pointwise(const Call& call, int ndim, std::span<const uint8_t> layouts,
                                          std::span<const DType> out_dtypes) {
    Object operands = describe_operands(call.operands);
    Object classes = checked(PyTuple_New(Py_ssize_t(layouts.size())));
    for (size_t i = 0; i < layouts.size(); ++i)
        PyTuple_SET_ITEM(classes.get(), i, PyLong_FromLong(layouts[i]));
    Object outs = checked(PyTuple_New(Py_ssize_t(out_dtypes.size())));
    for (size_t i = 0; i < out_dtypes.size(); ++i)
        PyTuple_SET_ITEM(outs.get(), i, PyUnicode_FromString(name(out_dtypes[i])));
    Object answer =
        ask("pointwise", "(OOiOO)", handle_of(*call.fn), operands.get(), ndim, classes.get(), outs.get());
    Items fields(answer.get());
    auto entry = std::make_unique<PointwiseEntry>();
    entry->kernel = kernel_of(fields[0]);
    Items dtypes(fields[1]);
    for (Py_ssize_t i = 0; i < dtypes.size(); ++i) entry->outputs.push_back(dtype_from(dtypes[i]));
    call.fn->outputs = uint8_t(entry->outputs.size());
    return entry;
}

std::unique_ptr<Program> program(const Call& call, bool with_hidden) {
    Object operands = describe_operands(call.operands);
    Object answer = ask("program", "(OOi)", handle_of(*call.fn), operands.get(), int(with_hidden));
    return program_from(answer.get());
}

std::unique_ptr<Saves> saves(const Call& call) {
    Object operands = describe_operands(call.operands);
    Object answer = ask("saves", "(OO)", handle_of(*call.fn), operands.get());
    Items fields(answer.get());
    auto result = std::make_unique<Saves>();
    result->hidden = uint32_t(integer(fields[0]));
    result->inputs = masks_from(fields[1]);
    result->outputs = masks_from(fields[2]);
    result->hiddens = masks_from(fields[3]);
    Items differentiable(fields[4]);
    for (Py_ssize_t i = 0; i < differentiable.size(); ++i)
        result->differentiable |= uint64_t(differentiable[i] == Py_True) << i;
    return result;
}

Fn* derivative(Fn& forward, std::span<const Operand> operands, uint64_t needed, uint64_t defined, bool redo) {
    Object described = describe_operands(operands);
    Object answer = ask("derivative", "(OOKKi)", handle_of(forward), described.get(),
                        (unsigned long long)needed, (unsigned long long)defined, int(redo));
    Items fields(answer.get());
    Fn* fn = new_fn(nullptr, forward.name + " backward");
    fn->forward = &forward;
    fn->handle = Opaque(fields[0]);
    fn->cls = class_from(fields[1]);
    Items sources(fields[2]), targets(fields[3]);
    for (Py_ssize_t i = 0; i < sources.size(); ++i) {
        Items source(sources[i]);
        std::string kind = PyUnicode_AsUTF8(source[0]);
        Source::Kind k = kind == "grad"     ? Source::grad
                         : kind == "input"  ? Source::input
                         : kind == "output" ? Source::output
                         : kind == "hidden" ? Source::hidden
                         : kind == "shape"  ? Source::shape
                                            : Source::number;
        fn->sources.push_back({k, uint8_t(integer(source[1]))});
    }
    for (Py_ssize_t i = 0; i < targets.size(); ++i) fn->targets.push_back(uint8_t(integer(targets[i])));
    fn->outputs = uint8_t(fn->targets.size());
    return fn;
}

std::unique_ptr<Recipe> recipe(const Call& call) {
    Object operands = describe_operands(call.operands);
    Object answer = ask("recipe", "(OO)", handle_of(*call.fn), operands.get());
    Items fields(answer.get());
    auto result = std::make_unique<Recipe>();
    result->inputs = uint32_t(integer(fields[0]));
    result->environment = uint32_t(integer(fields[1]));
    result->exprs = exprs_from(fields[2]);
    Items steps(fields[3]);
    for (Py_ssize_t i = 0; i < steps.size(); ++i) {
        Items step(steps[i]);
        RecipeStep made{&fn_of(step[0], step[1]), slots_from(step[2]), slots_from(step[3]), {}};
        Items kinds(step[4]);
        for (Py_ssize_t k = 0; k < kinds.size(); ++k) made.number_kinds.push_back(uint8_t(integer(kinds[k])));
        result->steps.push_back(std::move(made));
    }
    result->outputs = slots_from(fields[4]);
    return result;
}

const Recipe* recipe_for(const Call& call) {
    static auto* table = new Table<RecipeEntry>();
    Key key;
    key.push(call.fn->id);
    for (const Operand& operand : call.operands) describe(operand, key);
    RecipeEntry* entry = table->find(key);
    if (!entry) {
        auto made = std::make_unique<RecipeEntry>();
        made->recipe = recipe(call);
        entry = table->insert(key, std::move(made));
    }
    return entry->recipe.get();
}

std::vector<uint8_t> kernel_code(Kernel& kernel) {
    Object answer = ask("kernel", "(O)", static_cast<PyObject*>(kernel.source.object));
    char* bytes;
    Py_ssize_t count;
    checked_ok(PyBytes_AsStringAndSize(answer.get(), &bytes, &count));
    return {reinterpret_cast<uint8_t*>(bytes), reinterpret_cast<uint8_t*>(bytes) + count};
}

void explain(const Call& call) {
    Object sizes = checked(PyTuple_New(Py_ssize_t(call.operands.size())));
    for (size_t i = 0; i < call.operands.size(); ++i) {
        const Tensor* x = call.operands[i].tensor;
        PyTuple_SET_ITEM(sizes.get(), i,
                         x ? Py_BuildValue("(sN)", name(x->dtype), dims_object(x->sizes))
                           : number_object(call.operands[i].number));
    }
    ask("explain", "(OO)", handle_of(*call.fn), sizes.get());
    raise(ErrorKind::runtime, concat(call.fn->name, ": the sizes of its arguments do not fit"));
}

std::unique_ptr<Program> region(const Recording& recording, const std::vector<bool>& live,
                                std::vector<int32_t>& outputs) {
    Object ops = checked(PyTuple_New(Py_ssize_t(recording.ops().size())));
    for (size_t i = 0; i < recording.ops().size(); ++i) {
        const RecordedOp& op = recording.ops()[i];
        PyObject* item = Py_BuildValue("(OiiNN)", handle_of(*op.fn), int(op.hidden), int(op.writes),
                                       recorded_args(recording.args().subspan(op.first_arg, op.args)),
                                       recorded_args(recording.outs().subspan(op.first_out, op.outs)));
        if (!item) throw Error(ErrorKind::python, "");
        PyTuple_SET_ITEM(ops.get(), i, item);
    }
    Object storages = checked(PyTuple_New(Py_ssize_t(recording.storages().size())));
    for (size_t i = 0; i < recording.storages().size(); ++i) {
        const RecordedStorage& s = recording.storages()[i];
        PyObject* item =
            Py_BuildValue("(siiiiiiK)", name(s.dtype), int(s.pending), int(s.written), int(live[i]),
                          int(s.flat), int(s.ndim), int(s.slot), (unsigned long long)s.ones);
        if (!item) throw Error(ErrorKind::python, "");
        PyTuple_SET_ITEM(storages.get(), i, item);
    }
    Object answer = ask("region", "(OOi)", ops.get(), storages.get(), int(recording.environment().size()));
    if (answer.get() == Py_None) return nullptr;
    Items fields(answer.get());
    outputs = slots_from(fields[1]);
    return program_from(fields[0]);
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
    const char* words = described ? PyUnicode_AsUTF8(described.get()) : nullptr;
    *text = concat(reinterpret_cast<PyTypeObject*>(type)->tp_name, ": ", words ? words : "no words for it");
    PyErr_Clear();
    return true;
}

void let_others_run() {
    Py_BEGIN_ALLOW_THREADS std::this_thread::sleep_for(std::chrono::microseconds(50));
    Py_END_ALLOW_THREADS
}

}  // namespace compiler

namespace {

PyObject* set_compiler(PyObject*, PyObject* module) {
    Py_XSETREF(compiler_module, Py_NewRef(module));
    Py_CLEAR(compiler_function);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"set_compiler", set_compiler, METH_O, "Names the module whose `compile` the core calls up to."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_compiler(PyObject* module) {
    kernel_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kernel_spec));
    if (!kernel_type || PyModule_AddObjectRef(module, "Kernel", reinterpret_cast<PyObject*>(kernel_type)) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace kiln
