"""The objects of kernels for one library: each kernel's functions get names of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kiln.codegen.compile import objects_for, unbundled
from kiln.codegen.target import Target
from kiln.passes.launch import Kernel
from kiln.standalone.elf_object import ALLOC, LOCAL, UNDEFINED, ObjectFile, Symbol, read_object


def linked(kernels: Iterable[tuple[str, Kernel]], target: Target) -> list[ObjectFile]:
    """The objects of kernels, compiled or from the cache: `kernel` is called by the kernel's symbol, and its
    other functions behind that. An object that several kernels have, and that calls the same functions in
    each, is there once.
    """
    found: list[ObjectFile] = []
    known: dict[tuple[Any, ...], dict[str, str]] = {}  # by content and callees: its names
    listed = [*kernels]
    objects = objects_for([(kernel.text(), partial(kernel.parts, target)) for _, kernel in listed], target)
    for (symbol, _), object in zip(listed, objects):
        names: dict[str, str] = {}
        left = [(data, read_object(data)) for data in unbundled(object)]
        while left:
            ready = [one for one in left if names.keys() >= {*callees(one[1])}]
            for data, read in ready or left:  # of those that call each other, each is one of its own
                called = tuple(names.get(name, f"{symbol}.{name}") for name in callees(read))
                key = data, called, symbol if "kernel" in defined(read) else ""
                if key not in known:
                    known[key] = {n: symbol if n == "kernel" else f"{symbol}.{n}" for n in defined(read)}
                    found.append(renamed(read, dict(zip(callees(read), called)) | known[key]))
                names.update(known[key])
            left = [one for one in left if one not in ready] if ready else []
    return found


def defined(read: ObjectFile) -> list[str]:
    """The functions that an object has for others."""
    return [s.name for s in read.symbols if s.section != UNDEFINED and s.binding != LOCAL]


def callees(read: ObjectFile) -> list[str]:
    """The functions of others that it calls."""
    return [s.name for s in read.symbols if s.section == UNDEFINED and s.name]


def renamed(read: ObjectFile, names: dict[str, str]) -> ObjectFile:
    """An object whose symbols have other names."""
    symbols = [s if s.binding == LOCAL else s._replace(name=names.get(s.name, s.name)) for s in read.symbols]
    return read._replace(symbols=symbols)


def reached(objects: Sequence[ObjectFile], roots: Sequence[str]) -> list[ObjectFile]:
    """The objects without the sections that nothing needs: those of `roots`, and what they name, stay."""
    where = {
        symbol.name: (o, symbol.section)
        for o, read in enumerate(objects)
        for symbol in read.symbols
        if symbol.section != UNDEFINED and symbol.binding != LOCAL
    }
    changes: dict[tuple[int, int], list[Symbol]] = {}
    for o, read in enumerate(objects):
        for r in read.relocations:
            changes.setdefault((o, r.section), []).append(read.symbols[r.symbol])
    left = [where[root] for root in roots]
    found = {*left}
    while left:
        o, n = left.pop()
        for symbol in changes.get((o, n), ()):
            place = (o, symbol.section) if symbol.binding == LOCAL else where.get(symbol.name)
            if place is not None and place not in found:
                found.add(place)
                left.append(place)
    return [
        _without(read, {n for n in range(len(read.sections)) if (o, n) not in found})
        for o, read in enumerate(objects)
    ]


def _without(read: ObjectFile, left_out: set[int]) -> ObjectFile:
    """An object whose sections of these numbers are no part of a library."""
    sections = [
        s._replace(flags=s.flags & ~ALLOC) if n in left_out else s for n, s in enumerate(read.sections)
    ]
    relocations = [r for r in read.relocations if r.section not in left_out]
    return read._replace(sections=sections, relocations=relocations)
