// Traces as Python has them: a function is called, and a Python object is told of every call of an op.
#include "call/trace.h"

#include "binding/bind.h"
#include "binding/op.h"

#include <cstring>
#include <unordered_map>
#include <vector>

#include "autograd/autograd.h"
#include "base/hash.h"
#include "call/compiler.h"
#include "call/look.h"
#include "call/value_checks.h"

namespace kiln {
namespace {

// (tensors and numbers)
Object objects_of(std::span<const Operand> operands) {
    Object given = checked(PyTuple_New(Py_ssize_t(operands.size())));
    for (size_t i = 0; i < operands.size(); ++i) {
        const Operand& x = operands[i];
        PyTuple_SET_ITEM(given.get(), Py_ssize_t(i),
                         checked(x.tensor ? wrap(TensorRef(x.tensor)) : number_object(x.number)).release());
    }
    return given;
}

struct PythonTrace : CallTrace {
    PyObject* tracer;  // borrowed; None: nobody is told
    // Of all calls: which function, of which of the tensors seen so far, and which numbers.
    Hash128 hash;
    std::unordered_map<const Tensor*, uint64_t> numbers;
    std::vector<TensorRef> seen;    // so that addresses stay theirs
    std::vector<Number> arguments;  // numbers among the arguments: which one it is counts, not its value

    // A number's value, or which argument it is, and its kind.
    std::pair<uint64_t, uint64_t> told_of(const Number& number) const {
        for (size_t k = 0; k < arguments.size(); ++k)
            if (arguments[k].kind == number.kind && arguments[k].bits() == number.bits())
                return {k, uint64_t(number.kind) + 2000};
        return {uint64_t(number.bits()), uint64_t(number.kind) + 1000};
    }

    uint64_t number_of(Tensor* tensor) {
        const auto [found, added] = numbers.emplace(tensor, seen.size());
        if (added) seen.push_back(TensorRef(tensor));
        return found->second;
    }
    void mix(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
             const Results& results) {
        hash.mix(fn.id | uint64_t(grad_enabled()) << 32 | uint64_t(out.size()) << 33);
        for (const Operand& operand : operands) {
            if (operand.tensor) {
                hash.mix(number_of(operand.tensor));
                continue;
            }
            const auto [value, kind] = told_of(operand.number);
            hash.mix(value);
            hash.mix(kind);
        }
        for (const TensorRef& target : out) hash.mix(number_of(target.get()));
        for (const TensorRef& result : results) {
            hash.mix(number_of(result.get()) | uint64_t(result->dtype) << 32 | ones_of(result->sizes) << 40);
            hash.mix(uint64_t(result->ndim()));
        }
    }
};

// Mixes in which tensors are returned.
void mix_returned(PythonTrace& trace, PyObject* x) {
    if (is_tensor(x)) {
        trace.hash.mix(trace.number_of(&tensor_of(x)));
    } else if (PyTuple_Check(x) || PyList_Check(x)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(x); ++i)
            mix_returned(trace, PySequence_Fast_GET_ITEM(x, i));
    } else if (PyDict_Check(x)) {
        Py_ssize_t at = 0;
        PyObject *key, *value;
        while (PyDict_Next(x, &at, &key, &value)) mix_returned(trace, value);
    }
}

PyObject* tracer_of(CallTrace& trace) { return static_cast<PythonTrace&>(trace).tracer; }

void told(CallTrace& trace, Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out,
          const Results& results) {
    static_cast<PythonTrace&>(trace).mix(fn, operands, out, results);
    if (tracer_of(trace) == Py_None) return;
    trace.inside = true;  // what the tracer itself asks for is not the program's
    struct End {
        ~End() { trace.inside = false; }
        CallTrace& trace;
    } end{trace};
    const Object given = objects_of(operands), written = tuple_of(out),
                 made = tuple_of({results.data(), results.size()});
    if (!fn.op) {
        trace.inside = false;
        trace.refuse(trace, "calls a derivative");
    }
    PyObject* const structure = static_cast<PyObject*>(fn.structure.object);
    checked(in_python([&] {
        return PyObject_CallMethod(tracer_of(trace), "called", "OOOOOO", fn.op->record, structure,
                                   given.get(), written.get(), made.get(),
                                   grad_enabled() ? Py_True : Py_False);
    }));
}

void asked(CallTrace& trace, Tensor& tensor, const char* what) {
    if (tracer_of(trace) == Py_None) return;
    const Object object = checked(wrap(TensorRef(&tensor)));
    checked(
        in_python([&] { return PyObject_CallMethod(tracer_of(trace), "asked", "Os", object.get(), what); }));
}

void refuse(CallTrace& trace, const char* what) {
    if (tracer_of(trace) == Py_None) raise(ErrorKind::runtime, concat("a pure function ", what));
    checked(in_python([&] { return PyObject_CallMethod(tracer_of(trace), "refuse", "s", what); }));
    throw Error(ErrorKind::internal, "a trace's `refuse` returned");
}

// What the tracer says lies in the tensor's memory: a whole, in order. None: it is there.
bool read(CallTrace& trace, Tensor& tensor, bool for_others) {
    if (tracer_of(trace) == Py_None) refuse(trace, "reads a value");
    trace.inside = true;
    struct End {
        ~End() { trace.inside = false; }
        CallTrace& trace;
    } end{trace};
    const RecordingPaused paused;
    const Object object = checked(wrap(TensorRef(&tensor)));
    const Object found = checked(in_python(
        [&] { return PyObject_CallMethod(tracer_of(trace), "read", "Oi", object.get(), int(for_others)); }));
    if (found.get() == Py_None) return false;
    Storage& storage = *tensor.storage;
    const Tensor& whole = tensor_of(found.get());
    settle(*whole.storage);
    if (!storage.data) take_memory(storage, *allocate(storage.nbytes));
    std::memcpy(storage.data, whole.data(), std::min(storage.nbytes, whole.storage->nbytes));
    return true;
}

PyObject* trace(PyObject*, PyObject* args) {
    PyObject *tracer, *function, *positional, *keywords, *leaves;
    int abstract;
    if (!PyArg_ParseTuple(args, "OpOO!O!O!:trace", &tracer, &abstract, &function, &PyTuple_Type, &positional,
                          &PyDict_Type, &keywords, &PyTuple_Type, &leaves))
        return nullptr;
    PythonTrace own;
    own.told = told;
    own.asked = asked;
    own.refuse = refuse;
    own.read = read;
    own.abstract = abstract;
    own.tracer = tracer;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); ++i) {
        PyObject* const leaf = PyTuple_GET_ITEM(leaves, i);
        Number number;
        if (is_tensor(leaf))
            own.number_of(&tensor_of(leaf));
        else if (number_from(leaf, &number))
            own.arguments.push_back(number);
    }
    const Traced here(own);
    Object returned = checked(in_python([&] { return PyObject_Call(function, positional, keywords); }));
    mix_returned(own, returned.get());
    return Py_BuildValue("(N(KK))", returned.release(), (unsigned long long)own.hash.low,
                         (unsigned long long)own.hash.high);
}

// Whether two tensors hold the same bytes; false also where that is not told at once.
PyObject* same_bytes(PyObject*, PyObject* args) {
    PyObject *first, *second;
    if (!PyArg_ParseTuple(args, "O!O!:same_bytes", tensor_type, &first, tensor_type, &second)) return nullptr;
    const TensorRef a(&tensor_of(first)), b(&tensor_of(second));
    if (a->dtype != b->dtype || a->sizes != b->sizes || !a->contiguous || !b->contiguous) Py_RETURN_FALSE;
    settle(*a->storage);
    settle(*b->storage);
    const size_t bytes = size_t(a->numel) * itemsize(a->dtype);
    return PyBool_FromLong(!bytes || std::memcmp(a->data(), b->data(), bytes) == 0);
}

PyObject* place(PyObject*, PyObject* tensor) {
    if (!is_tensor(tensor)) return PyErr_Format(PyExc_TypeError, "place: expected a Tensor");
    const Tensor& x = tensor_of(tensor);
    return Py_BuildValue("(nLNN)", Py_ssize_t(x.storage.get()), (long long)x.offset, dims_object(x.sizes),
                         dims_object(x.strides));
}

// An op at a structure, and tensors and numbers.
template <class Then>
PyObject* with_operands(PyObject* args, Then then) {
    PyObject *op, *structure, *given;
    if (!PyArg_ParseTuple(args, "O!O!O!:operands", op_type, &op, &PyTuple_Type, &structure, &PyTuple_Type,
                          &given))
        return nullptr;
    Held held;
    Operands operands;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
        PyObject* const item = PyTuple_GET_ITEM(given, i);
        Operand& operand = operands.emplace_back();
        if (is_tensor(item))
            operand.tensor = hold(item, held);
        else
            KILN_CHECK(number_from(item, &operand.number), type, "expected tensors and numbers");
    }
    return then(fn_of(op, structure), operands);
}

PyObject* call_op(PyObject*, PyObject* args) {
    return with_operands(args, [](Fn& fn, const Operands& operands) {
        const Results results = call(fn, operands);
        return tuple_of({results.data(), results.size()}).release();
    });
}

PyObject* check_op(PyObject*, PyObject* args) {
    return with_operands(args, [](Fn& fn, const Operands& operands) -> PyObject* {
        if (fn.cls == FnClass::unknown) compiler::classify({&fn, operands});
        check_values(fn, operands);
        Py_RETURN_NONE;
    });
}

PyObject* tensor_has_attributes(PyObject*, PyObject* object) {
    return PyBool_FromLong(is_tensor(object) && has_attributes(object));
}

PyObject* set_stand_in(PyObject*, PyObject* type) {
    Py_XSETREF(stand_in_type, Py_NewRef(type));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"set_stand_in", set_stand_in, METH_O,
     "Sets the type of what stands in for numbers while a function is traced: ops take its `stands_in`."},
    {"call_op", guard<call_op>, METH_VARARGS, "call_op(op, structure, operands): the results, a tuple."},
    {"trace", guard<trace>, METH_VARARGS,
     "trace(tracer, abstract, function, args, kwargs, leaves): (what the function gives, a hash of the calls "
     "it made on the tensors and numbers `leaves` and others, and of which it gives); `tracer.called(op, "
     "structure, operands, out, results, grad)` is told of each op, `tracer.asked(tensor, what)` of what the "
     "program asks tensors for, and `tracer.refuse(what)` raises. Abstract: nothing runs, no value is read."},
    {"check_op", guard<check_op>, METH_VARARGS,
     "check_op(op, structure, operands): raises what the op would say of values it refuses."},
    {"same_bytes", guard<same_bytes>, METH_VARARGS,
     "Whether two contiguous tensors hold the same bytes; False where it is not so simple."},
    {"has_attributes", tensor_has_attributes, METH_O, "Whether the program has given a tensor attributes."},
    {"place", place, METH_O, "Where a tensor lies: (storage, offset, sizes, strides)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_traces(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
