// What the files of the binding share. They alone know Python.h.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <span>
#include <string>
#include <utility>

#include "autograd/autograd.h"
#include "base/check.h"
#include "call/busy.h"
#include "call/dispatch.h"
#include "call/op.h"
#include "call/tensor.h"
#include "call/trace.h"
#include "program/program.h"
#include "record/record.h"

namespace kiln {

// An owning reference to a Python object.
class Object {
public:
    Object() = default;
    static Object steal(PyObject* object) {
        Object result;
        result.object_ = object;
        return result;
    }
    static Object borrow(PyObject* object) { return steal(Py_XNewRef(object)); }
    Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Object& operator=(Object other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    Object(const Object& other) : object_(Py_XNewRef(other.object_)) {}
    ~Object() { Py_XDECREF(object_); }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

private:
    PyObject* object_ = nullptr;
};

// A new reference that must not be null; null means a Python exception is set.
inline Object checked(PyObject* object) {
    if (!object) throw Error(ErrorKind::python, "");
    return Object::steal(object);
}
inline void checked_ok(int result) {
    if (result < 0) throw Error(ErrorKind::python, "");
}

// A str as the core has text: in UTF-8, with what that cannot hold (half of a surrogate pair, as in the name
// of a file that is not UTF-8) as Python escapes it, `\udcff`.
inline std::string text_of(PyObject* text) {
    Object bytes = checked(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
    return {PyBytes_AS_STRING(bytes.get()), size_t(PyBytes_GET_SIZE(bytes.get()))};
}

// Sets the Python exception an error stands for.
void set_python_error(const Error& error);
void set_unknown_error(const std::exception& error);

// Where a thread stays that came back to the interpreter after its end.
[[noreturn]] void stay();

// What a call into Python gives. The interpreter ends a thread that comes back too late by unwinding its
// stack: without the lock nothing above may be unwound, so such a thread stays here. C functions throw
// nothing else.
template <class Call>
auto in_python(Call&& call) {
    try {
        return call();
    } catch (...) { stay(); }
}

// Runs `body`, turning errors into Python exceptions and a null (or -1) result.
template <class Body>
auto guarded(Body&& body) noexcept -> decltype(body()) {
    const CallEnd end;
    try {
        return body();
    } catch (const Error& error) { set_python_error(error); } catch (const std::exception& error) {
        set_unknown_error(error);
    } catch (...) { stay(); }
    if constexpr (std::is_pointer_v<decltype(body())>)
        return nullptr;
    else
        return static_cast<decltype(body())>(-1);
}

// A body that may throw as a function that Python calls; as a method table has it, whatever its arguments
// are; as a type's slot.
template <auto body>
struct Guarded;
template <class Result, class... Args, Result (*body)(Args...)>
struct Guarded<body> {
    static Result call(Args... args) noexcept {
        return guarded([&]() -> Result { return body(args...); });
    }
};
template <auto body>
constexpr auto guard = &Guarded<body>::call;
template <auto body>
PyCFunction method() {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(guard<body>));
}
template <auto body>
void* slot() {
    return reinterpret_cast<void*>(guard<body>);
}

struct TensorObject {
    PyObject_HEAD Tensor* tensor;  // owned
    PyObject* dict;
    PyObject* weakrefs;
    bool tracked;  // by Python's collector of cycles
};

extern PyTypeObject* tensor_type;
extern PyTypeObject* dtype_type;
extern PyTypeObject* op_type;
extern PyTypeObject* size_type;

// The Python object of a tensor; the same object as long as it lives. A null tensor is None.
PyObject* wrap(const TensorRef& tensor);
PyObject* wrap_results(const Results& results);
Object tuple_of(std::span<const TensorRef> tensors);
bool of_numbers(std::span<const Operand> operands);  // whether none is a tensor
void fit_out(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);
void expect_copy(Tensor& source, const TensorRef& target);
void refuse_history(const Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out);
Results call_of_program(Fn& fn, std::span<const Operand> operands, std::span<const TensorRef> out = {});
inline bool is_tensor(PyObject* object) {
    return Py_TYPE(object) == tensor_type || PyObject_TypeCheck(object, tensor_type);
}
// Of a tensor object, as long as no other Python code runs: that may put another one under it (`x.data = y`).
inline Tensor& tensor_of(PyObject* object) { return *reinterpret_cast<TensorObject*>(object)->tensor; }
// Whether the program has given a tensor attributes.
inline bool has_attributes(PyObject* tensor) {
    PyObject* const dict = reinterpret_cast<TensorObject*>(tensor)->dict;
    return dict && PyDict_GET_SIZE(dict);
}
using Held = SmallVector<TensorRef, 4>;  // what a call keeps of its operands meanwhile
inline Tensor* hold(PyObject* tensor, Held& held) { return held.emplace_back(&tensor_of(tensor)).get(); }
// Tells the collector of cycles about a tensor object: from when it has attributes, hooks or foreign memory.
// A result of an op has none, and costs the collector nothing.
void track(PyObject* tensor);
// Raises TypeError unless the object is a tensor.
Tensor& expect_tensor(PyObject* object, const char* what);

// The object whose buffer a storage is, or null.
PyObject* exporter_of(const Storage& storage);  // borrowed

PyObject* dtype_object(DType dtype);     // borrowed
DType dtype_from(PyObject* object);      // a dtype object, a name, or Python's bool, int, float
const char* buffer_format(DType dtype);  // its code in the struct module; bfloat16 has none
PyObject* dims_object(Dims dims);
PyObject* size_object(Dims dims);  // a kiln.Size, which is a tuple
Dims dims_from(PyObject* object, const char* what);
// Whether `object` is a Python number (bool, int, float, or something that says it is one).
bool number_from(PyObject* object, Number* number);
// What stands in for a number while a function is traced (set_stand_in): objects of this type, of which only
// `number_from` sees the value.
extern PyObject* stand_in_type;
PyObject* number_object(const Number& number);

// Nodes of the graph as Python objects: one object each, as long as it lives.
struct Edge;
struct SourceLine;
PyObject* wrap_node(const Edge& edge);  // None for an edge to nowhere
bool is_node(PyObject* object);
Edge edge_of_node(PyObject* node);
const char* kind_name(Source::Kind kind);  // "input", "output" or "hidden": where a node keeps something
// What removes a hook, which `add` registers and gives the number of.
PyObject* hook_handle(FunctionRef<uint64_t()> add);
// For the collector of cycles: what hooks and metadata hold.
int visit_extras(const Extras& extras, visitproc visit, void* arg);
void clear_extras(Extras& extras);

Fn& fn_of(PyObject* op, PyObject* structure);  // the function of an Op object at this structure

// A pointwise function's result written into a tensor object, which is returned.
PyObject* write_into(Fn& fn, std::span<const Operand> operands, PyObject* tensor);
// Whether an object stands for tensors, so that a call of it is traced (see set_symbolic_types).
bool is_symbolic(PyObject* object);
// Classes whose objects take over the calls of public functions that they are given to (`kiln.fx.Proxy`):
// null as long as there are none, which is all that a call asks.
extern PyObject* stand_ins;
bool is_stand_in(PyObject* object);
// What a call gives if it was taken over, else null. `method`: the tensor's operator that was called, or
// null.
Object taken_over(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names,
                  const char* method = nullptr);
// A value of a structure argument as Python's own: what stands for an int (a NumPy integer, an enum's member)
// or a float as that number, in lists and tuples too.
Object plain(PyObject* value);
// __get__ of callables that are methods where a class has them, as functions are.
PyObject* bind_to_instance(PyObject* self, PyObject* instance, PyObject* owner);
bool is_no_flag(PyObject* value);  // true or false, but meant as something else: a text, a list, a float
// Automatic mixed precision: whether a call of an Op or Function object is made with other arguments, which
// is asked of Python once for each object.
enum class Casts : uint8_t { unknown, no, yes };
bool ask_casts(PyObject* callable, Casts& known);
inline bool autocasts(PyObject* callable, Casts& known) {
    return autocast_used.load(std::memory_order_relaxed) && known != Casts::no && autocast().on &&
           (known == Casts::yes || ask_casts(callable, known));
}
// The call with cast arguments; nothing in it is cast again.
PyObject* call_cast(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);

// What a vectorcall was given, as a tuple and a dict.
std::pair<Object, Object> python_arguments(PyObject* const* args, Py_ssize_t count, PyObject* names);
// The error that is set, in terms of a call that failed (kiln/table/mistakes.py): null is returned. Or the
// result of the call that arguments in an older order mean.
PyObject* describe_error(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);
// Values that are about to be read, or written from outside: pending work is done first.
inline void ready(Tensor& tensor) {
    note_value_read(tensor);
    if (tensor.storage) settle(*tensor.storage);
}
// What is told of each value that the program asks for (kiln/capture/whole.py), by a call that may raise.
inline PyObject* told_of_reads = nullptr;
inline void ready_to_read(Tensor& tensor) {
    if (told_of_reads) [[unlikely]]
        checked(in_python([] { return PyObject_CallNoArgs(Object::borrow(told_of_reads).get()); }));
    ready(tensor);
}
// Values whose memory others get to know, on loan or for good.
inline void ready_for_others(Tensor& tensor) {
    note_value_read(tensor);
    settle(*tensor.storage, true);
    if (is_part(*tensor.storage)) leave_whole(*tensor.storage);
}

// The state of the default generator: seed and position give every number.
struct RandomState {
    uint64_t seed = 0;
    int64_t position = 0;
};
inline RandomState random_state;

std::span<const PyType_Slot> operator_slots();  // of Tensor
// Adds methods and properties to Tensor; -1 with an exception set.
int add_to_tensor(std::span<PyMethodDef> methods, std::span<PyGetSetDef> properties);

// Calls up: what Python answers to a request of the core (kiln/capture/service.py).
Object ask(const char* request, Object args);
template <class... Args>
Object ask(const char* request, const char* format, Args... args) {
    return ask(request, checked(Py_BuildValue(format, args...)));
}
PyObject* handle_of(Fn& fn);  // borrowed: what requests call a function
std::span<const uint8_t> bytes_of(PyObject* object);

struct SavedHooks;
// Sets this thread's hooks on saved tensors; false, with an exception, where they are refused.
bool set_saved_hooks(SavedHooks hooks);

// Reserves random numbers of kiln's own generator: (seed, first position).
std::pair<int64_t, int64_t> reserve_random(int64_t count);

// Makes a type and adds it to the module under its name; null with an exception set.
PyTypeObject* add_type(PyObject* module, PyType_Spec& spec);

// Each adds its types and functions to the module.
int add_dtypes(PyObject* module);
int add_tensor(PyObject* module);
int add_tensor_data(PyObject* module);
int add_dlpack(PyObject* module);
int add_shared(PyObject* module);
int add_ops(PyObject* module);
int add_arguments(PyObject* module);
int add_functions(PyObject* module);
int add_modes(PyObject* module);
int add_turns(PyObject* module);
int add_autocast(PyObject* module);
int add_core_ops(PyObject* module);
int add_operators(PyObject* module);
int add_nodes(PyObject* module);
int add_autograd(PyObject* module);
int add_callbacks(PyObject* module);
int add_compiler(PyObject* module);
int add_regions(PyObject* module);
int add_traces(PyObject* module);
int add_cells(PyObject* module);
int add_guards(PyObject* module);
int add_batching(PyObject* module);

}  // namespace kiln
