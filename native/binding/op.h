// Op objects, and the arguments of a call of one.
#pragma once

#include <vector>

#include "binding/bind.h"

namespace kiln {

struct Param {
    PyObject* name;
    char kind;  // T L O V N S Z, see kiln/table/record.py
    PyObject* default_value;
};
extern PyObject* required;  // the default of a parameter that has none

struct OpObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Op* op;
    std::vector<Param>* params;
    PyObject* record;
    PyObject* functions;  // structure tuple -> capsule of its Fn
    Fn* plain;            // the Fn of the empty structure
    Fn* last;             // the Fn of the last call that had a structure
    bool operands_only;   // pointwise, without structure: every parameter is an operand
    PyObject* general;    // of a form: what is called when parameters are missing, None or named
    bool in_place;        // of a form: the result is written into the first argument, which is returned
    Casts casts;
};
inline OpObject& op_of(PyObject* object) { return *reinterpret_cast<OpObject*>(object); }

Fn& first_plain_fn(OpObject& self);
inline Fn& plain_fn(OpObject& self) { return self.plain ? *self.plain : first_plain_fn(self); }
// Of a pointwise Op object of two parameters, else null.
inline Fn* plain_binary(PyObject* function) {
    if (Py_TYPE(function) != op_type) return nullptr;
    OpObject& self = op_of(function);
    return self.op->kind == OpKind::pointwise && self.params->size() == 2 ? &plain_fn(self) : nullptr;
}

// The arguments of one call: bound to the op's parameters, then taken apart into operands, which are data,
// and structure, which is part of the function.
class Arguments {
public:
    static constexpr Py_ssize_t most = 24;  // parameters

    explicit Arguments(OpObject& self) : self_(self), pointwise_(self.op->kind == OpKind::pointwise) {}
    void bind(PyObject* const* args, size_t count, PyObject* names);
    // False if an argument is symbolic: then the call is traced, not run.
    bool collect();
    Fn& fn();  // of the structure

    Operands operands;
    std::vector<TensorRef> out;

private:
    void bind_out(PyObject* value);
    void bind_keyword(PyObject* name, PyObject* value);
    bool collect_one(const Param& param, PyObject* value);
    bool collect_operand(const Param& param, PyObject* value);
    bool collect_list(const Param& param, PyObject* value);
    bool collect_sizes(const Param& param, PyObject* value);
    bool collect_view_dims(const Param& param, PyObject* value);
    bool read_sizes(const Param& param, PyObject* value, Dims* sizes);
    void add_number(const Number& number);
    bool is_structure_of(const Fn& fn) const;
    [[noreturn]] void wrong_argument(const Param& param, PyObject* value, const char* expected) const;

    OpObject& self_;
    const bool pointwise_;
    PyObject* values_[most] = {};  // by parameter, borrowed
    Object more_;                  // a tuple: sizes given one by one
    bool symbolic_out_ = false;
    SmallVector<Object, 8> structure_;
    Object list_;  // of tensors, as it was
    Held held_;
};

}  // namespace kiln
