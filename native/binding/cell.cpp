// Calls of pure functions (kiln/capture/pure/cell.py) that look like one that is known: found here, and run
// as one op without a step of Python.
//
//     Cell        the variants of a function, the one used last in front
//     Variant     how a call looks (Token), what must be as it was (guards.h), the op and its operands
//
// What is not found is asked of Python, which adds a variant.
#include "binding/bind.h"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "binding/guards.h"
#include "binding/op.h"
#include "call/look.h"
#include "call/value_checks.h"

namespace kiln {
namespace {

constexpr uint64_t every = 256;  // one call of so many is checked
constexpr size_t most_variants = 16;

// One thing met on the way through the arguments.
struct Token {
    enum Kind : uint8_t { array, thing, integer, real, list, tuple, dict } kind;  // numbers: of any value
    Object type;                                                                  // of a tensor
    Object object;  // the same, or an equal number or text; of a dict its keys, a tuple
    DType dtype = DType::float32;
    bool requires_grad = false, contiguous = true;
    int same = -1;      // of a tensor: the earlier leaf it is
    size_t count = 0;   // of a container: its items; of a tensor: its dims
    uint64_t ones = 0;  // which sizes are 1
    Dims strides;       // unless contiguous
};

struct FixedSize {
    int leaf, dim;
    int64_t size;
};

// An operand: an argument's tensor, one that was met, a copy of one that is written, a seed, a position so
// far behind the first, an argument's number, a number.
struct Part {
    enum Kind : uint8_t { leaf, met, copied, seed, position, argument, number } kind;
    int64_t which = 0;
    Number value;
    Dims sizes;  // of one that was met: it may be given other memory
    DType dtype = DType::float32;
    bool requires_grad = false;
    Object tensor;  // met; of a leaf: the only one it may be, as it is met too
};

// Values that an op inside would refuse.
struct Check {
    Fn* fn;
    std::vector<Part> parts;
};

struct Variant {
    Modes modes;
    DType default_dtype;
    std::vector<Token> tokens;
    Object guards, outside;  // of objects; of globals and closures
    std::vector<FixedSize> sizes;
    std::vector<Part> parts;
    std::vector<Check> checks;
    int64_t random = 0;  // numbers drawn
    Fn* fn = nullptr;
    bool one = false;             // the result is a tensor, not a tuple
    Object op, give;              // give(results, leaves): what is returned, where it is not the results
    std::vector<Object> written;  // buffers that get the last results
    uint64_t calls = 0;
};

// Tensors of a call, borrowed, and those of its numbers that are no part of how it looks.
struct Leaves : SmallVector<PyObject*, 8> {
    SmallVector<Number, 4> numbers;
};

int leaf_of(const Leaves& leaves, PyObject* x) {
    for (size_t k = 0; k < leaves.size(); ++k)
        if (leaves[k] == x) return int(k);
    return -1;
}

// Writes down how an argument looks; false for what is known to Python alone. `flowing`: which of the numbers
// may be others in the next call.
bool note(PyObject* x, std::vector<Token>& tokens, Leaves& leaves, PyObject* flowing, long& numbers) {
    Token& token = tokens.emplace_back();
    if (is_tensor(x)) {
        const Tensor& tensor = tensor_of(x);
        token.kind = Token::array;
        token.same = leaf_of(leaves, x);
        if (token.same >= 0) return true;
        leaves.push_back(x);
        token.type = Object::borrow(reinterpret_cast<PyObject*>(Py_TYPE(x)));
        token.dtype = tensor.dtype;
        token.requires_grad = tensor.requires_grad();
        token.contiguous = tensor.contiguous;
        token.count = tensor.sizes.size();
        token.ones = ones_of(tensor.sizes);
        if (!tensor.contiguous) token.strides = tensor.strides;
        return true;
    }
    if (PyTuple_CheckExact(x) || PyList_CheckExact(x)) {
        token.kind = PyTuple_CheckExact(x) ? Token::tuple : Token::list;
        const size_t count = token.count = size_t(PySequence_Fast_GET_SIZE(x));
        for (size_t i = 0; i < count; ++i)
            if (!note(PySequence_Fast_GET_ITEM(x, Py_ssize_t(i)), tokens, leaves, flowing, numbers))
                return false;
        return true;
    }
    if (PyDict_CheckExact(x)) {
        token.kind = Token::dict;
        token.count = size_t(PyDict_GET_SIZE(x));
        token.object = checked(PySequence_Tuple(x));
        Py_ssize_t at = 0;
        PyObject *key, *value;
        while (PyDict_Next(x, &at, &key, &value))
            if (!note(value, tokens, leaves, flowing, numbers)) return false;
        return true;
    }
    token.kind = Token::thing;
    token.object = Object::borrow(x);
    if (PyLong_CheckExact(x) || PyFloat_CheckExact(x)) {
        const Object at = checked(PyLong_FromLong(numbers++));
        const int is_one = PySet_Contains(flowing, at.get());
        if (is_one < 0) throw Error(ErrorKind::python, "");
        if (is_one) token.kind = PyLong_CheckExact(x) ? Token::integer : Token::real;
    }
    return !PyTuple_Check(x) && !PyList_Check(x) && !PyDict_Check(x);
}

bool fits_tensor(const Token& token, PyObject* x, Leaves& leaves) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(x)) != token.type.get())
        return token.same >= 0 && size_t(token.same) < leaves.size() && leaves[size_t(token.same)] == x;
    const int same = leaf_of(leaves, x);
    if (same != token.same) return false;
    if (same >= 0) return true;
    const Tensor& tensor = tensor_of(x);
    if (tensor.dtype != token.dtype || tensor.sizes.size() != token.count ||
        tensor.requires_grad() != token.requires_grad || tensor.contiguous != token.contiguous ||
        ones_of(tensor.sizes) != token.ones || has_attributes(x) ||  // (which Python looks at)
        (!token.contiguous && !(tensor.strides == token.strides)))
        return false;
    leaves.push_back(x);
    return true;
}

// Whether an argument looks as written down from `at` on, which moves on; its tensors are added to `leaves`.
bool fits(PyObject* x, const std::vector<Token>& tokens, size_t& at, Leaves& leaves) {
    if (at >= tokens.size()) return false;
    const Token& token = tokens[at++];
    switch (token.kind) {
    case Token::array: return fits_tensor(token, x, leaves);
    case Token::thing: return same_object(token.object.get(), x);
    case Token::integer: {
        if (!PyLong_CheckExact(x)) return false;
        int overflow = 0;
        leaves.numbers.push_back(Number::of(int64_t(PyLong_AsLongLongAndOverflow(x, &overflow))));
        return !overflow;
    }
    case Token::real:
        if (!PyFloat_CheckExact(x)) return false;
        leaves.numbers.push_back(Number::of(PyFloat_AS_DOUBLE(x)));
        return true;
    case Token::tuple:
    case Token::list:
        if (!(token.kind == Token::tuple ? PyTuple_CheckExact(x) : PyList_CheckExact(x)) ||
            size_t(PySequence_Fast_GET_SIZE(x)) != token.count)
            return false;
        for (size_t i = 0; i < token.count; ++i)
            if (!fits(PySequence_Fast_GET_ITEM(x, Py_ssize_t(i)), tokens, at, leaves)) return false;
        return true;
    case Token::dict: {
        if (!PyDict_CheckExact(x) || size_t(PyDict_GET_SIZE(x)) != token.count) return false;
        Py_ssize_t position = 0, k = 0;
        PyObject *key, *value;
        while (PyDict_Next(x, &position, &key, &value))
            if (!same_object(PyTuple_GET_ITEM(token.object.get(), k++), key) ||
                !fits(value, tokens, at, leaves))
                return false;
        return true;
    }
    }
    return false;
}

// Whether a tensor that was met looks as it did, and is not given as another argument than it was.
bool looks_alike(const Part& part, const Leaves& leaves) {
    if (part.kind == Part::leaf) return !part.tensor || leaves[size_t(part.which)] == part.tensor.get();
    if (part.kind != Part::met && part.kind != Part::copied) return true;
    const Tensor& x = tensor_of(part.tensor.get());
    for (PyObject* leaf : leaves)
        if (leaf == part.tensor.get() ||
            (part.kind == Part::copied && tensor_of(leaf).storage.get() == x.storage.get()))
            return false;
    return x.dtype == part.dtype && x.requires_grad() == part.requires_grad && x.sizes == part.sizes;
}

bool same_modes(const Variant& variant) {
    const Modes now = modes();
    return now.grad == variant.modes.grad && now.inference == variant.modes.inference &&
           now.autocast.on == variant.modes.autocast.on &&
           (!now.autocast.on || (now.autocast.dtype == variant.modes.autocast.dtype &&
                                 now.autocast.cache == variant.modes.autocast.cache)) &&
           default_dtype() == variant.default_dtype;
}

using Variants = std::vector<std::shared_ptr<Variant>>;

struct CellObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject* slow;  // slow(check, args, kwargs); check None: an error is to be told
    Variants* variants;
    unsigned long long calls;
};
CellObject& cell_of(PyObject* object) { return *reinterpret_cast<CellObject*>(object); }

bool matches(const Variant& variant, PyObject* const* args, size_t count, PyObject* names, Leaves& leaves) {
    const size_t given = count + (names ? size_t(PyTuple_GET_SIZE(names)) : 0);
    size_t at = 0;
    for (size_t i = 0; i < given; ++i) {
        if (i >= count) {  // a name comes before what is given for it
            if (at >= variant.tokens.size() ||
                !same_object(variant.tokens[at++].object.get(), PyTuple_GET_ITEM(names, i - count)))
                return false;
        }
        if (!fits(args[i], variant.tokens, at, leaves)) return false;
    }
    if (at != variant.tokens.size() || !same_modes(variant)) return false;
    for (const FixedSize& fixed : variant.sizes)
        if (tensor_of(leaves[size_t(fixed.leaf)]).sizes[size_t(fixed.dim)] != fixed.size) return false;
    const auto alike = [&](const Part& part) { return looks_alike(part, leaves); };
    return std::all_of(variant.parts.begin(), variant.parts.end(), alike) && hold(variant.guards.get()) &&
           hold(variant.outside.get());
}

// The buffers that the function writes get what it has written.
void write_buffers(const Variant& variant, std::span<const TensorRef> values) {
    if (values.empty()) return;
    const GradMode off(false);
    for (size_t k = 0; k < values.size(); ++k) {
        Operand value;
        value.tensor = values[k].get();
        Py_DECREF(write_into(*core_fns().copy, {&value, 1}, variant.written[k].get()));
    }
}

PyObject* run(Variant& variant, const Leaves& leaves) {
    Held held;
    SmallVector<TensorRef, 4> copies;
    std::pair<int64_t, int64_t> drawn;
    const auto operands_of = [&](const std::vector<Part>& parts) {
        Operands operands;
        for (const Part& part : parts) {
            Operand& operand = operands.emplace_back();
            switch (part.kind) {
            case Part::leaf: operand.tensor = hold(leaves[size_t(part.which)], held); break;
            case Part::met: operand.tensor = hold(part.tensor.get(), held); break;
            case Part::copied: {
                const GradMode off(false);
                copies.push_back(copy_of(tensor_of(part.tensor.get())));
                operand.tensor = copies.back().get();
                break;
            }
            case Part::seed: operand.number = Number::of(drawn.first); break;
            case Part::position: operand.number = Number::of(drawn.second + part.which); break;
            case Part::argument: operand.number = leaves.numbers[size_t(part.which)]; break;
            case Part::number: operand.number = part.value; break;
            }
        }
        return operands;
    };
    for (const Check& check : variant.checks) check_values(*check.fn, operands_of(check.parts));
    if (variant.random) drawn = reserve_random(variant.random);
    const Results results = call(*variant.fn, operands_of(variant.parts));
    KILN_CHECK(results.size() >= variant.written.size(), internal, "Cell: fewer results than buffers");
    const size_t given_back = results.size() - variant.written.size();
    write_buffers(variant, {results.data() + given_back, variant.written.size()});
    if (variant.one) return wrap(results[0]);
    Object made = tuple_of({results.data(), given_back});
    if (!variant.give) return made.release();
    Object given = checked(PyList_New(Py_ssize_t(leaves.size())));
    for (size_t k = 0; k < leaves.size(); ++k)
        PyList_SET_ITEM(given.get(), Py_ssize_t(k), Py_NewRef(leaves[k]));
    return in_python(
        [&] { return PyObject_CallFunctionObjArgs(variant.give.get(), made.get(), given.get(), nullptr); });
}

PyObject* call_slow(CellObject& self, bool check, PyObject* const* args, size_t count, PyObject* names) {
    const auto [positional, keywords] = python_arguments(args, Py_ssize_t(count), names);
    const Object slow = Object::borrow(self.slow);
    return in_python([&] {
        return PyObject_CallFunctionObjArgs(slow.get(), check ? Py_True : Py_False, positional.get(),
                                            keywords.get(), nullptr);
    });
}

// An error of the op, which is set, as the Python has it, on its line.
PyObject* tell_error(CellObject& self, PyObject* const* args, size_t count, PyObject* names) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const auto [positional, keywords] = python_arguments(args, Py_ssize_t(count), names);
    const Object slow = Object::borrow(self.slow);
    Object given = Object::steal(in_python([&] {
        return PyObject_CallFunctionObjArgs(slow.get(), Py_None, positional.get(), keywords.get(), nullptr);
    }));
    if (!given) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return nullptr;
    }
    PyErr_Restore(type, value, traceback);
    return nullptr;
}

PyObject* cell_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* names) {
    return guarded([&]() -> PyObject* {
        CellObject& self = cell_of(object);
        const size_t count = size_t(PyVectorcall_NARGS(flags));
        Variants& variants = *self.variants;
        bool check = false;
        for (size_t k = 0; k < variants.size(); ++k) {
            Leaves leaves;
            if (!matches(*variants[k], args, count, names, leaves)) continue;
            const std::shared_ptr<Variant> variant = variants[k];
            if (k) std::rotate(variants.begin(), variants.begin() + long(k), variants.begin() + long(k) + 1);
            check = ++variant->calls % every == 0 || check_mode;
            if (check) break;
            ++self.calls;
            PyObject* const made = guarded([&] { return run(*variant, leaves); });
            if (made || !PyErr_ExceptionMatches(PyExc_Exception)) return made;
            return tell_error(self, args, count, names);
        }
        return call_slow(self, check, args, count, names);
    });
}

PyObject* cell_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* slow;
    if (!PyArg_ParseTuple(args, "O:Cell", &slow)) return nullptr;
    PyObject* object = type->tp_alloc(type, 0);
    if (!object) return nullptr;
    CellObject& self = cell_of(object);
    self.vectorcall = cell_call;
    self.slow = Py_NewRef(slow);
    self.variants = new Variants();
    return object;
}

int cell_traverse(PyObject* object, visitproc visit, void* arg) {
    CellObject& self = cell_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self.slow);
    if (!self.variants) return 0;
    for (const auto& variant : *self.variants) {
        if (variant.use_count() > 1) continue;  // a call runs by it
        Py_VISIT(variant->give.get());
        for (const Token& token : variant->tokens) Py_VISIT(token.object.get());
        Py_VISIT(variant->guards.get());
        Py_VISIT(variant->outside.get());
        for (const Part& part : variant->parts) Py_VISIT(part.tensor.get());
        for (const Object& buffer : variant->written) Py_VISIT(buffer.get());
    }
    return 0;
}
int cell_clear(PyObject* object) {
    CellObject& self = cell_of(object);
    Py_CLEAR(self.slow);
    if (self.variants) { const Variants gone = std::exchange(*self.variants, {}); }
    return 0;
}
void cell_dealloc(PyObject* object) {
    PyObject_GC_UnTrack(object);
    cell_clear(object);
    delete cell_of(object).variants;
    PyTypeObject* type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

std::vector<Part> parts_from(PyObject* list, PyObject* pins = nullptr) {
    std::vector<Part> parts;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
        const char* kind;
        PyObject* what;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "sO", &kind, &what))
            throw Error(ErrorKind::python, "");
        Part& part = parts.emplace_back();
        const std::string_view name = kind;
        part.kind = name == "leaf"       ? Part::leaf
                    : name == "met"      ? Part::met
                    : name == "copied"   ? Part::copied
                    : name == "seed"     ? Part::seed
                    : name == "number"   ? Part::number
                    : name == "argument" ? Part::argument
                                         : Part::position;
        if (part.kind == Part::met || part.kind == Part::copied) {
            KILN_CHECK(is_tensor(what), type, "Cell: expected a Tensor");
            const Tensor& x = tensor_of(what);
            part.tensor = Object::borrow(what);
            part.sizes = x.sizes, part.dtype = x.dtype, part.requires_grad = x.requires_grad();
        } else if (part.kind == Part::number) {
            KILN_CHECK(number_from(what, &part.value), type, "Cell: expected a number");
        } else {
            part.which = PyLong_AsLongLong(what);
        }
        if (PyErr_Occurred()) throw Error(ErrorKind::python, "");
        if (part.kind == Part::leaf && pins)
            part.tensor = Object::borrow(PyDict_GetItemWithError(pins, what));
    }
    return parts;
}

// Whether all parts are of a call with these tensors, which looks like that.
bool are_of(const std::vector<Part>& parts, const std::vector<Token>& tokens, size_t leaves) {
    const auto numbers = size_t(std::ranges::count_if(
        tokens, [](const Token& x) { return x.kind == Token::integer || x.kind == Token::real; }));
    return std::ranges::all_of(parts, [&](const Part& part) {
        if (part.kind != Part::leaf && part.kind != Part::argument) return true;
        return part.which >= 0 && size_t(part.which) < (part.kind == Part::leaf ? leaves : numbers);
    });
}

// (args, kwargs, guards, outside, sizes, parts, random, op, structure, one, give, checks, pins, flowing,
// written): whether calls like this are known.
PyObject* cell_add(PyObject* object, PyObject* args) {
    PyObject *positional, *keywords, *guards, *outside, *sizes, *parts, *op, *structure, *give, *checks;
    PyObject *pins, *flowing, *written;
    long long random;
    int one;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!LO!O!pOO!O!O!O!:add", &PyTuple_Type, &positional, &PyDict_Type,
                          &keywords, guards_type, &guards, guards_type, &outside, &PyList_Type, &sizes,
                          &PyList_Type, &parts, &random, op_type, &op, &PyTuple_Type, &structure, &one, &give,
                          &PyList_Type, &checks, &PyDict_Type, &pins, &PySet_Type, &flowing, &PyList_Type,
                          &written))
        return nullptr;
    auto variant = std::make_shared<Variant>();
    variant->modes = modes();
    variant->default_dtype = default_dtype();
    Leaves leaves;
    long numbers = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positional); ++i)
        if (!note(PyTuple_GET_ITEM(positional, i), variant->tokens, leaves, flowing, numbers))
            Py_RETURN_FALSE;
    Py_ssize_t at = 0;
    PyObject *name, *value;
    while (PyDict_Next(keywords, &at, &name, &value)) {
        Token& token = variant->tokens.emplace_back();
        token.kind = Token::thing;
        token.object = Object::borrow(name);
        if (!note(value, variant->tokens, leaves, flowing, numbers)) Py_RETURN_FALSE;
    }
    variant->guards = Object::borrow(guards);
    variant->outside = Object::borrow(outside);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(written); ++i) {
        KILN_CHECK(is_tensor(PyList_GET_ITEM(written, i)), type, "Cell: expected a Tensor");
        variant->written.push_back(Object::borrow(PyList_GET_ITEM(written, i)));
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sizes); ++i) {
        FixedSize fixed;
        long long size;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(sizes, i), "iiL", &fixed.leaf, &fixed.dim, &size))
            return nullptr;
        fixed.size = size;
        KILN_CHECK(fixed.leaf >= 0 && size_t(fixed.leaf) < leaves.size() && fixed.dim >= 0 &&
                       fixed.dim < tensor_of(leaves[size_t(fixed.leaf)]).ndim(),
                   value, "Cell: a size of a tensor that the call has not");
        variant->sizes.push_back(fixed);
    }
    variant->parts = parts_from(parts, pins);
    bool known = are_of(variant->parts, variant->tokens, leaves.size());
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(checks); ++i) {
        PyObject *checked_op, *its_structure, *its_parts;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(checks, i), "O!O!O!", op_type, &checked_op, &PyTuple_Type,
                              &its_structure, &PyList_Type, &its_parts))
            return nullptr;
        variant->checks.push_back({&fn_of(checked_op, its_structure), parts_from(its_parts)});
        known = known && are_of(variant->checks.back().parts, variant->tokens, leaves.size());
    }
    KILN_CHECK(known, value, "Cell: a part that the call has not");
    variant->random = random;
    variant->op = Object::borrow(op);
    variant->fn = &fn_of(op, structure);
    variant->one = one;
    if (give != Py_None) variant->give = Object::borrow(give);
    Variants& variants = *cell_of(object).variants;
    variants.insert(variants.begin(), std::move(variant));
    if (variants.size() > most_variants) variants.pop_back();
    Py_RETURN_TRUE;
}

PyObject* cell_forget(PyObject* object, PyObject*) {
    const Variants gone = std::exchange(*cell_of(object).variants, {});
    Py_RETURN_NONE;
}

PyMethodDef cell_methods[] = {
    {"add", guard<cell_add>, METH_VARARGS,
     "add(args, kwargs, guards, outside, sizes, parts, random, op, structure, one, give, checks, pins, "
     "flowing, written): calls like this, while the guards hold and with any numbers at `flowing`, run `op` "
     "on `parts`; its last results go into `written`. False if that cannot be told here."},
    {"forget", cell_forget, METH_NOARGS, "Forgets all calls."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef cell_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CellObject, vectorcall), READONLY, nullptr},
    {"calls", T_ULONGLONG, offsetof(CellObject, calls), READONLY, "How many calls ran here."},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot cell_slots[] = {
    {Py_tp_new, slot<cell_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(cell_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(cell_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(cell_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, cell_methods},
    {Py_tp_members, cell_members},
    {0, nullptr},
};
PyType_Spec cell_spec = {"kiln._core.Cell", sizeof(CellObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC, cell_slots};

}  // namespace

int add_cells(PyObject* module) { return add_type(module, cell_spec) ? 0 : -1; }

}  // namespace kiln
