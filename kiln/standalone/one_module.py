"""The texts of kernels as one LLVM module, for targets whose linker takes one object.

Each kernel's functions and tables get names of their own; parts that several kernels share are there once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kiln.codegen.target import Target
from kiln.passes.launch import Kernel

_NAME = re.compile(r"@([\w.]+)")
_DEFINED = re.compile(r"^(?:define [^@]*|)@([\w.]+)(?: = |\()", re.MULTILINE)
_HEAD = re.compile(r"^(?:target |attributes |declare |!0 ).*\n?", re.MULTILINE)
_DECLARED = re.compile(r"^declare .*@([\w.]+)\(.*$", re.MULTILINE)


def one_module(driver: str, kernels: Iterable[tuple[str, Kernel]], target: Target) -> str:
    """The module of a driver and the kernels it calls, by their symbols."""
    shared: dict[str, dict[str, str]] = {}  # by the text of a part: its names
    declared: dict[str, str] = {}
    bodies: list[str] = []

    def take(text: str, names: dict[str, str]) -> None:
        for match in _DECLARED.finditer(text):
            if match[1].startswith("llvm."):
                declared[match[1]] = match[0]
        text = _HEAD.sub("", text)
        text = _NAME.sub(lambda m: f"@{names.get(m[1], m[1])}", text)
        bodies.append(text.replace("define void @", "define internal void @"))

    for symbol, kernel in kernels:
        names: dict[str, str] = {}
        own: list[str] = []
        for part in kernel.parts(target):
            text = part.text()
            defined = _DEFINED.findall(text)
            if part.shared and not any(not n.startswith("llvm.") for n in _DECLARED.findall(text)):
                if text not in shared:
                    shared[text] = {n: f"{symbol}.{n}" for n in defined}
                    take(text, shared[text])
                names.update(shared[text])
            else:
                names.update({n: symbol if n == "kernel" else f"{symbol}.{n}" for n in defined})
                own.append(text)
        for text in own:
            take(text, names)
    kept = [line for line in driver.splitlines() if not line.startswith("declare hidden void @")]
    for match in _DECLARED.finditer("\n".join(kept)):
        declared.pop(match[1], None)
    return "\n".join([*kept, *bodies, *declared.values(), "!0 = !{i32 1}", ""])
