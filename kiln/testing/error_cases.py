"""Calls for the scan of errors: functions with arguments of every wrong kind, layers and optimizers too.

    call := where it is found below kiln (and below PyTorch), and what makes its arguments anew

They are those of mode_cases.py, calls with values drawn from a pool of what does not belong there (seeded by
the name, so that a call is found again), and layers and optimizers, constructed and called with each argument
replaced in turn.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import kiln
from kiln.table import registry
from kiln.table.mistakes import _parameters
from kiln.testing import mode_cases
from kiln.testing.error_classes import ALONE, CHANGES, CLASSES, LAYERS, SPACES
from kiln.testing.mode_cases import FORMS, Arguments
from kiln.testing.op_cases import tensors

# what does not belong there, made anew for each call
POOL: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "'text'": lambda: "text",
    "1.5": lambda: 1.5,
    "-1": lambda: -1,
    "99": lambda: 99,
    "True": lambda: True,
    "[]": lambda: [],
    "(0, 0)": lambda: (0, 0),
    "[1, None]": lambda: [1, None],
    "object": object,
    "{}": lambda: {},
    "a function": lambda: len,
    "float32": lambda: kiln.ones(2, 3),
    "float16": lambda: kiln.ones(2, 3).half(),
    "int64": lambda: kiln.arange(2),
    "bool": lambda: kiln.ones((), dtype=kiln.bool),
    "a list of tensors": lambda: [kiln.ones(2), kiln.ones(3)],
    "NumPy": lambda: np.ones((2, 3), np.float32),
    "a generator": lambda: iter([1, 2]),
    "bytes": lambda: b"bytes",
    "1j": lambda: 1j,
}  # fmt: skip
RANDOM = 12  # calls drawn for each function

# Changing what runs after them, writing files, or ending only when somebody else does something.
LEFT_OUT = {"save", "load", "set_default_dtype", "set_default_device", "set_default_tensor_type",
            "set_printoptions", "set_num_threads", "set_anomaly_enabled", "set_grad_enabled", "profile",

            "compile", "Tensor.data_ptr", "empty_cache", "memory_stats",
            "reset_peak_memory_stats", "set_autocast_cpu_dtype", "set_autocast_dtype",
            "set_autocast_gpu_dtype", "set_autocast_enabled", "set_autocast_cpu_enabled",
            "set_autocast_cache_enabled"}  # fmt: skip


class ErrorCall(NamedTuple):
    """One call: what is called, by its path below a library; the arguments, with kiln's tensors in them."""

    label: str
    path: str
    make: Callable[[], Arguments]
    first: Arguments | None = None  # of a class: it is constructed with these, then called

    @property
    def name(self) -> str:
        """What a message about it must contain."""
        return self.path.rpartition(".")[2].strip("_")


# ---- functions ----


def path_of(name: str) -> str:
    """Where a name of the table is found below kiln."""
    if name in registry.LAYERS:
        return f"nn.functional.{name}"  # of PyTorch's own, some are of other arguments
    if name in registry.FUNCTIONS:
        return name
    return f"Tensor.{name}" if name in registry.METHODS else f"nn.functional.{name}"


def function_names() -> list[str]:
    """The table's functions, methods and layers."""
    return mode_cases.names()


def other_names() -> list[str]:
    """Functions and methods besides the table's, by path."""
    mode_cases.names()
    spaces = {
        "": kiln,
        "Tensor.": kiln.Tensor,
        "nn.functional.": kiln.nn.functional,
        "nn.init.": kiln.nn.init,
    }
    found = [
        prefix + name
        for prefix, space in spaces.items()
        for name in dir(space)
        if name[0] != "_" and name not in registry.FUNCTIONS and name not in registry.METHODS
        if name not in registry.LAYERS and _is_ours(getattr(space, name, None), prefix)
    ]
    taken = {*found, *ALONE.split(), *CLASSES, *(f"nn.{name}" for name in LAYERS)}
    return sorted({*found, *ALONE.split(), *_of_spaces(taken)} - LEFT_OUT - {*CLASSES})


def _of_spaces(taken: set[str]) -> Iterator[str]:
    """The paths of what other modules define, of each object once and none of those at `taken` paths."""
    objects = [*map(kiln_object, taken), *registry.FUNCTIONS.values(), *registry.LAYERS.values()]
    seen = {id(found) for found in objects}
    for space in SPACES.split():
        module = import_module(f"kiln.{space}")
        home = "kiln." if hasattr(module, "__all__") else module.__name__
        for name in getattr(module, "__all__", dir(module)):
            found, path = getattr(module, name), f"{space}.{name}"
            own = str(getattr(found, "__module__", "")).startswith(home)
            if name[0] == "_" or not (own and callable(found)) or id(found) in seen:
                continue
            seen.add(id(found))
            if not re.match(CHANGES, path):
                yield path


def _is_ours(value: Any, prefix: str) -> bool:
    if prefix == "Tensor.":
        return callable(value)
    home = "kiln.nn" if prefix else "kiln"
    own = str(getattr(value, "__module__", "")).startswith(home)
    return own and callable(value) and not isinstance(value, type)


def function_calls(name: str, dtype: str, seed: int) -> Iterator[ErrorCall]:
    """The calls of a function of the table in a dtype."""
    path = path_of(name)
    for call in mode_cases.calls(name, dtype):
        written = call.function is registry.INPLACE.get(name) and not name.endswith("_")
        yield ErrorCall(call.label, f"Tensor.{name}_" if written else path, call.make)
    if dtype == "float32":
        yield from random_calls(path, seed)


def random_calls(path: str, seed: int, count: int = RANDOM) -> Iterator[ErrorCall]:
    """Calls with arguments of the pool, or with one or two of a sample's replaced."""
    for n in range(count):
        yield ErrorCall(f"{path} random {seed}:{n}", path, partial(_drawn, path, f"{seed} {path} {n}"))


def _drawn(path: str, seed: str) -> Arguments:
    draw = random.Random(seed)
    name = path.rpartition(".")[2] if path.startswith(("Tensor.", "nn.functional.")) else path
    args, kwargs = _sample(name, draw)
    if path.startswith("Tensor.") and not args:
        args = [kiln.ones(2, 3)]
    keep = 1 if path.startswith("Tensor.") else 0  # a method is of a tensor
    for _ in range(draw.choice((1, 1, 2))):
        value = POOL[draw.choice([*POOL])]()
        places: list[Any] = [*range(keep, len(args)), *kwargs, *_keywords(path), len(args)]
        place = draw.choice(places)
        if place == len(args):
            args.append(value)
        elif isinstance(place, int):
            args[place] = value
        else:
            kwargs[place] = value
    return Arguments(args, kwargs)


def _sample(name: str, draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """Right arguments where the table has some, or none."""
    entry = mode_cases.table().get(name.rstrip("_"))
    if entry is None or not draw.randrange(4):
        return [POOL[draw.choice([*POOL])]() for _ in range(draw.randrange(3))], {}
    drawn = "float32" if "float32" in entry.dtypes else entry.dtypes[0]
    case = tensors(kiln, draw.choice(entry.cases(drawn)), drawn)
    return list(case.args), dict(case.kwargs)


def _keywords(path: str) -> list[str]:
    try:
        return [name for name, _ in _parameters(kiln_object(path))]
    except AttributeError:
        return []


def kiln_object(path: str) -> Any:
    """What stands at a path of kiln's: of the table, what is called, not what forwards to it."""
    found: Any = kiln
    for part in path.split("."):
        found = getattr(found, part)
    return found


# ---- layers, optimizers and what else is no function of the table ----


def class_names() -> list[str]:
    """Layers, optimizers, distributions and the rest by path."""
    return [f"nn.{name}" for name in LAYERS] + [*CLASSES]


def class_calls(path: str) -> Iterator[ErrorCall]:
    """A class constructed, and its object called, with one argument replaced in each."""
    name = path.removeprefix("nn.")
    args, inputs = LAYERS[name] if name in LAYERS else (CLASSES[path], ())
    parameters = [*inspect.signature(kiln_object(path)).parameters]
    for value in POOL:
        for place in [*range(len(args)), *parameters[len(args) :]]:
            yield ErrorCall(f"{path}({place}: {value})", path, partial(_constructed, args, place, value))
    if not inputs:
        return
    yield ErrorCall(f"{path} called", path, partial(_inputs, inputs, 0, "", ""), Arguments(args, {}))
    for place in range(len(inputs) + 1):
        for form in FORMS if place < len(inputs) else ():
            yield ErrorCall(
                f"{path} called, {place}: {form}",
                path,
                partial(_inputs, inputs, place, form, ""),
                Arguments(args, {}),
            )
        for value in POOL:
            made = partial(_inputs, inputs, place, "", value)
            yield ErrorCall(f"{path} called, {place}: a {value}", path, made, Arguments(args, {}))


def _constructed(args: tuple[Any, ...], place: Any, value: str) -> Arguments:
    arguments = Arguments(args, {})
    where: Any = arguments.args if isinstance(place, int) else arguments.kwargs
    where[place] = POOL[value]()
    return arguments


def _inputs(shapes: tuple[Any, ...], place: int, form: str, value: str) -> Arguments:
    arguments = Arguments(map(_of_shape, shapes), {})
    if form:
        arguments.args[place] = FORMS[form](arguments.args[place])
    if value:
        arguments.args[place : place + 1] = [POOL[value]()]
    return arguments


def _of_shape(shape: tuple[Any, ...]) -> Any:
    if shape[0] == "long":
        return kiln.ones(*shape[1:], dtype=kiln.int64)
    return kiln.full(shape, 0.5)


# ---- all ----


def names() -> list[str]:
    """Everything that is called."""
    return [*function_names(), *other_names(), *class_names()]


def calls(name: str, dtype: str, seed: int) -> Iterator[ErrorCall]:
    """The calls of one name; those that draw their own dtypes with float32."""
    if name in class_names():
        return class_calls(name) if dtype == "float32" else iter(())
    if name in registry.FUNCTIONS or name in registry.METHODS or name in registry.LAYERS:
        return function_calls(name, dtype, seed)
    return random_calls(name, seed, 3 * RANDOM) if dtype == "float32" else iter(())
