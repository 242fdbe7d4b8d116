"""The texts of kernels as one LLVM module, for targets whose linker takes one object.

Each kernel's functions and tables get names of their own; parts that several kernels share are there once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kiln.codegen.target import Target
from kiln.passes.launch import Kernel

_NAME = re.compile(r"@([\w.]+)")
_DEFINED = re.compile(r"^(?:define [^@]*|)@([\w.]+)(?: = |\()", re.MULTILINE)
_DEFINES = re.compile(r"^define (?:hidden )?(void @.*?)(?: section \"[^\"]*\")? {", re.MULTILINE)
_ONE = re.compile(r"^(?:define .*?^}$|@[\w.]+ = [^\n]*)", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"^(?:target |attributes |declare |!0 ).*\n?", re.MULTILINE)
# Up to 999 elements on: a load may hold the offset if it never wraps; nothing lies at the first addresses.
_NEAR = re.compile(r"getelementptr (\w+, ptr %\w+, i64 \d{1,3})$", re.MULTILINE)
_DECLARED = re.compile(r"^declare .*@([\w.]+)\(.*$", re.MULTILINE)


def one_module(driver: str, kernels: Iterable[tuple[str, Kernel]], target: Target) -> str:
    """The module of a driver and the kernels it calls, by their symbols."""
    known: dict[tuple[str, ...], dict[str, str]] = {}  # by the text of a part and its callees: its names
    declared: dict[str, str] = {}
    bodies: list[str] = []

    def take(text: str, names: dict[str, str]) -> None:
        for match in _DECLARED.finditer(text):
            if match[1].startswith("llvm."):
                declared[match[1]] = match[0]
        text = _NEAR.sub(r"getelementptr nuw \1", _HEAD.sub("", text))
        text = _NAME.sub(lambda m: f"@{names.get(m[1], m[1])}", text)
        bodies.extend(_ONE.findall(_DEFINES.sub(r"define internal \1 {", text)))

    for symbol, kernel in kernels:
        names: dict[str, str] = {}
        left = [part.text() for part in kernel.parts(target)]
        while left:
            ready = [text for text in left if names.keys() >= {*_called(text)}]
            for text in ready or left:  # of those that call each other, each is one of its own
                called = {name: names.get(name, f"{symbol}.{name}") for name in _called(text)}
                defined = _DEFINED.findall(text)
                key = text, *called.values(), symbol if "kernel" in defined else ""
                if key not in known:
                    known[key] = {n: symbol if n == "kernel" else f"{symbol}.{n}" for n in defined}
                    take(text, called | known[key])
                names.update(known[key])
            left = [text for text in left if text not in ready] if ready else []
    kept = [line for line in driver.splitlines() if not line.startswith("declare hidden void @")]
    for match in _DECLARED.finditer("\n".join(kept)):
        declared.pop(match[1], None)
    used = _used("\n".join(kept), bodies)
    return "\n".join([*kept, *used, *declared.values(), "!0 = !{i32 1}", ""])


def _used(driver: str, bodies: Sequence[str]) -> list[str]:
    """The functions and constants that the driver needs."""
    owner = {name: body for body in bodies for name in _DEFINED.findall(body)[:1]}
    found: dict[str, None] = {}
    left = [driver]
    while left:
        for name in _NAME.findall(left.pop()):
            body = owner.get(name)
            if body is not None and body not in found:
                found[body] = None
                left.append(body)
    return [body for body in bodies if body in found]


def _called(text: str) -> list[str]:
    """The functions of other parts that a part calls."""
    return [name for name in _DECLARED.findall(text) if not name.startswith("llvm.")]
