"""The objects of kernels for one library: each kernel's functions get names of their own."""

from __future__ import annotations

from collections.abc import Iterable

from kiln.codegen.compile import unbundled
from kiln.codegen.target import Target
from kiln.passes.launch import Kernel
from kiln.standalone.elf_object import LOCAL, UNDEFINED, ObjectFile, read_object


def linked(kernels: Iterable[tuple[str, Kernel]], target: Target) -> list[ObjectFile]:
    """The objects of kernels, compiled or from the cache: `kernel` is called by the kernel's symbol, and its
    other functions behind that. An object that several kernels have, and that calls none of the others, is
    there once.
    """
    shared: dict[bytes, tuple[str, dict[str, str]]] = {}
    found: list[ObjectFile] = []
    for symbol, kernel in kernels:
        own: list[ObjectFile] = []
        names: dict[str, str] = {}
        for data in unbundled(kernel.object(target)):
            read = read_object(data)
            defined = [s.name for s in read.symbols if s.section != UNDEFINED and s.binding != LOCAL]
            calls_others = any(s.section == UNDEFINED and s.name for s in read.symbols)
            if "kernel" in defined or calls_others:
                names.update({n: symbol if n == "kernel" else f"{symbol}.{n}" for n in defined})
                own.append(read)
                continue
            prefix, known = shared.setdefault(data, (f"{symbol}.", {}))
            if not known:
                known.update({n: f"{prefix}{n}" for n in defined})
                found.append(renamed(read, known))
            names.update(known)
        found += [renamed(read, names) for read in own]
    return found


def renamed(read: ObjectFile, names: dict[str, str]) -> ObjectFile:
    """An object whose symbols have other names."""
    symbols = [s if s.binding == LOCAL else s._replace(name=names.get(s.name, s.name)) for s in read.symbols]
    return read._replace(symbols=symbols)
