"""What a library is called with: its C header, and a program in C and one in Python that call it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kiln.graph.size import Dim, Size, slots_named, symbol, terms
from kiln.passes.plan import ITEMSIZE
from kiln.standalone.driver import Driver
from kiln.version import __version__

C_TYPES = {
    "bool": "uint8_t", "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t",
    "int64": "int64_t", "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float",
    "float64": "double",
}  # fmt: skip
FIRST_SIZE = 4  # of a size without a declared bound, in the examples


class Array(NamedTuple):
    """An array of a call: its name, dtype and lengths, numbers or what they are computed of."""

    name: str
    dtype: str
    shape: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} [{', '.join(self.shape)}], {C_TYPES[self.dtype]}"

    @property
    def fixed(self) -> bool:
        """Whether every length is a number."""
        return all(n.isdigit() for n in self.shape)


def _expression(n: Dim, names: Mapping[int, str]) -> str:
    """A size in the names of those that are stated: what they are computed of, for who computes it."""
    parts = []
    for monomial, many in terms(n):
        factors = [
            names[a.slot]
            if a.slot >= 0
            else f"(({_expression(a.numerator, names)}) // ({_expression(a.denominator, names)}))"
            for a in monomial
        ]
        parts.append(" * ".join(([str(many)] if many != 1 or not factors else []) + factors))
    return " + ".join(parts)


def _named(driver: Driver, name: str, dtype: str, shape: Sequence[object], first: int = -1) -> Array:
    """An array; `first`: the slot of an input's first size."""
    found = driver.found
    names = {s.slot: s.name for s in driver.stated}
    declared = {dim.slot for dim in found.dims.values() if dim.symbol == symbol(dim.slot)}
    derived = {dim.slot for dim in found.dims.values()} - declared

    def told(n: object) -> str:
        if not isinstance(n, Size):
            return str(n)
        if not derived.isdisjoint(slots_named(n)):  # 2*m: the caller states that, not m
            return _expression(n, names)
        text = found.size_text(n)
        for slot in sorted(names, reverse=True):
            text = (
                text.replace(f"s{slot}", names[slot])
                if not text.isidentifier() or text == f"s{slot}"
                else text
            )
        return text

    if first >= 0:
        shape = [symbol(first + d) if first + d in derived else n for d, n in enumerate(shape)]
    return Array(name, dtype, tuple(map(told, shape)))


def inputs_of(driver: Driver) -> list[Array]:
    """The arrays that a caller gives."""
    found, count = driver.found, len(driver.found.inputs)
    made = []
    for k in driver.given:
        own = found.inputs[k].name if k < count else found.state[k - count].name
        value = driver.graph.inputs[k]
        shape = found.inputs[k].shape if k < count else value.shape
        made.append(_named(driver, own, value.dtype, shape, found.firsts[k] if k < count else -1))
    return made


def outputs_of(driver: Driver) -> list[Array]:
    """The arrays that a caller gets."""
    found = driver.found
    names = list(found.outputs)
    for kind, which in found.mutated:
        own = found.inputs[which].name if kind == "input" else found.state[which].name
        names.append(f"{own} afterwards")
    values = driver.graph.outputs[: driver.results]
    return [_named(driver, name, v.dtype, v.shape) for name, v in zip(names, values)]


def _size_lines(driver: Driver) -> Iterator[str]:
    at = 0
    for at, own in enumerate(driver.stated, 1):
        least, most = driver.bounds[own.slot]
        yield f"sizes[{at - 1}]  {own.name}, from {least} to {most}"
    for number in driver.numbers:
        yield f"sizes[{at}]  the {number} of random numbers"
        at += 1


def c_header(driver: Driver, file: str) -> str:
    """The header of what lies in a file."""
    name = driver.name
    guard = f"{name.upper()}_H"
    about = [f"inputs[{k}]  {array}" for k, array in enumerate(inputs_of(driver))]
    if driver.beside:
        about.append(f"inputs[{len(about)}]  the content of {name}.safetensors, mapped or read into memory")
    about += _size_lines(driver)
    about += [f"outputs[{k}]  {array}" for k, array in enumerate(outputs_of(driver))]
    listed = "\n".join(f" *     {in_comment(line)}" for line in about)
    codes = "\n".join(f" *     {k}  {in_comment(m)}" for k, m in enumerate(driver.messages))
    return f"""/* {file}, made by kiln {__version__} for {driver.target.name}.
 *
 * Arrays are contiguous, the last dim innermost, and aligned as their elements are. bool is a byte, 0 or 1;
 * float16 and bfloat16 are their 16 bits.
 *
{listed}
 *
 * Codes:
{codes}
 *
 * Nothing is kept between calls, so that several threads may call at once, each with a workspace of its own.
 * A run needs up to 512 KiB of stack.
 */
#ifndef {guard}
#define {guard}
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* Threads of the caller. `run` calls body(task, begin, end, thread) on ranges that together are 0 to units,
 * from any of its threads, and returns when all are done: each but the last is a multiple of `grain` units,
 * and `thread`, from 0 to count - 1, is no other range's at the same time. */
typedef void (*{name}_body)(void *task, int64_t begin, int64_t end, int32_t thread);
typedef struct {{
    int32_t count;
    void *context;
    void (*run)(void *context, {name}_body body, void *task, int64_t units, int64_t grain);
}} {name}_threads;

/* Bytes of workspace that a run needs with so many threads (1: without), or minus a code. */
int64_t {name}_workspace(const int64_t *sizes, int32_t threads);

/* Computes the outputs: 0, or a code; a wrong size is found before anything is written. `threads`: NULL, or
 * what runs parts of large kernels, with a workspace for its count. */
int32_t {name}_run(const void *const *inputs, const int64_t *sizes, void *const *outputs, void *workspace,
                   const {name}_threads *threads);

/* The lengths of an output's dims; 0, or a code. */
int32_t {name}_shape(int32_t output, const int64_t *sizes, int64_t *shape);

/* A code in words. */
const char *{name}_message(int32_t code);

#ifdef __cplusplus
}}
#endif
#endif
"""


def in_comment(text: str) -> str:
    """A text that ends no comment."""
    return text.replace("*/", "* /").replace("\n", " ")


def _example_sizes(driver: Driver) -> list[int]:
    """A value for each stated integer."""
    sizes = []
    for own in driver.stated:
        least, most = driver.bounds[own.slot]
        sizes.append(min(max(FIRST_SIZE, least), most))
    return sizes + [0] * len(driver.numbers)


def c_example(driver: Driver, command: str) -> str:
    """A program that runs the library on zeros."""
    name, sizes = driver.name, _example_sizes(driver)
    inputs, outputs = inputs_of(driver), outputs_of(driver)
    stated = ", ".join(map(str, sizes)) or "0"
    symbols = {s.name: f"sizes[{j}]" for j, s in enumerate(driver.stated)}
    given = "".join(
        f"    inputs[{k}] = calloc({_product(a, symbols)}, {ITEMSIZE[a.dtype]}); /* {in_comment(str(a))} */\n"
        for k, a in enumerate(inputs)
    )
    if driver.beside:
        given += f'''    FILE *file = fopen("{name}.safetensors", "rb");
    if (!file || fseek(file, 0, SEEK_END)) return 1;
    long length = ftell(file);
    void *weights = malloc((size_t)length);
    rewind(file);
    if (fread(weights, 1, (size_t)length, file) != (size_t)length) return 1;
    inputs[{len(inputs)}] = weights;
'''
    ranks = max([len(a.shape) for a in outputs] + [1])
    results = "".join(
        f"    {name}_shape({k}, sizes, shape);\n    count = 1;\n"
        f"    for (int d = 0; d < {len(a.shape)}; ++d) count *= shape[d];\n"
        f"    outputs[{k}] = calloc(count ? count : 1, {ITEMSIZE[a.dtype]}); /* {in_comment(str(a))} */\n"
        for k, a in enumerate(outputs)
    )
    return f"""/* {command} */
#include "{name}.h"
#include <stdio.h>
#include <stdlib.h>

int main(void) {{
    int64_t sizes[] = {{{stated}}}, shape[{ranks}], count;
    const void *inputs[{len(inputs) + 1}];
    void *outputs[{max(len(outputs), 1)}];
    int64_t bytes = {name}_workspace(sizes, 1);
    if (bytes < 0) {{
        fprintf(stderr, "%s\\n", {name}_message((int32_t)-bytes));
        return 1;
    }}
    void *workspace = malloc((size_t)bytes);
{given}{results}    int32_t code = {name}_run(inputs, sizes, outputs, workspace, NULL);
    printf("{name}: %s\\n", {name}_message(code));
    return code != 0;
}}
"""


def _product(array: Array, symbols: dict[str, str]) -> str:
    """The number of an input's elements in C, at least 1."""
    if array.fixed:
        count = 1
        for n in array.shape:
            count *= int(n)
        return str(max(count, 1))
    return " * ".join(symbols.get(n, n) if not n.isdigit() else n for n in array.shape) + " + 1"


def python_example(driver: Driver) -> str:
    """The same in Python, without kiln."""
    name, sizes = driver.name, _example_sizes(driver)
    inputs, outputs = inputs_of(driver), outputs_of(driver)
    known = {s.name: str(n) for s, n in zip(driver.stated, sizes)}
    shapes = [f"({''.join(known.get(n, n) + ', ' for n in a.shape)})" for a in inputs]
    given = ", ".join(f'np.zeros({shape}, "{_numpy(a.dtype)}")' for shape, a in zip(shapes, inputs))
    if driver.beside:
        weights = f'np.fromfile(Path(__file__).with_name("{name}.safetensors"), "uint8")'
        given = ", ".join(filter(None, [given, weights]))
    ranks = ", ".join(str(len(a.shape)) for a in outputs)
    dtypes = ", ".join(f'"{_numpy(a.dtype)}"' for a in outputs)
    return f'''"""Runs lib{name}.so with NumPy's arrays."""

import ctypes
from pathlib import Path

import numpy as np

library = ctypes.CDLL(str(Path(__file__).with_name("lib{name}.so")))
library.{name}_workspace.restype = ctypes.c_int64
library.{name}_message.restype = ctypes.c_char_p


def pointers(arrays):
    return (ctypes.c_void_p * max(len(arrays), 1))(*(x.ctypes.data for x in arrays))


sizes = np.array([{", ".join(map(str, sizes)) or "0"}], "int64")
at = sizes.ctypes.data_as(ctypes.c_void_p)
inputs = [{given}]
outputs = []
for k, (rank, dtype) in enumerate(zip([{ranks}], [{dtypes}])):
    shape = np.zeros(rank, "int64")
    library.{name}_shape(k, at, shape.ctypes.data_as(ctypes.c_void_p))
    outputs.append(np.zeros(tuple(shape), dtype))
workspace = np.empty(library.{name}_workspace(at, 1), "uint8")
memory = workspace.ctypes.data_as(ctypes.c_void_p)
code = library.{name}_run(pointers(inputs), at, pointers(outputs), memory, None)
print("{name}:", library.{name}_message(code).decode(), *(x.shape for x in outputs))
'''


def _numpy(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype
