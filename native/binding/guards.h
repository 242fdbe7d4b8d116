// What a function may have read besides its arguments, and whether it is as it was.
#pragma once

#include "binding/bind.h"

namespace kiln {

// The Python object that holds what is looked at: `_core.Guards(list)` of (container, entries, whole),
// entries being tuples (key, held) or (key,), for a dict, list, set, closure's cell or class.
extern PyTypeObject* guards_type;

// Whether all is as it was: the same objects, or equal numbers and texts.
bool hold(PyObject* guards);

// The same object, or an equal number or text.
bool same_object(PyObject* a, PyObject* b);

}  // namespace kiln
