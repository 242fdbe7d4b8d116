"""LLVM, in the library that llvmlite ships: text to an object, a handful of C functions.

    context -> parse -> verify -> emit -> bytes

llvmlite's Python is left out: importing it takes 50 ms, loading the library alone 10, and its lock would
keep two threads from compiling at once. The functions are those of one version of llvmlite (`LLVMLITE`);
pyproject.toml asks for it, and any other is refused with a sentence, not called.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import Any

from kiln.codegen.target import Target

LLVMLITE = b"0.50."
# What takes time and makes no kernel faster: loop strength reduction (40 %), block preparation
# and scheduling (13 %). Set for the whole library.
OPTIONS = (b"-disable-lsr", b"-disable-cgp", b"-enable-misched=false")

_library: Any = None
_every_target = False


def folder() -> str | None:
    """Where llvmlite lies, found without importing it; None if it is not installed."""
    found = PathFinder.find_spec("llvmlite", sys.path)
    return None if found is None or found.origin is None else os.path.dirname(found.origin)


def identity() -> bytes:
    """What tells one build of LLVM from another: llvmlite's version file and the library's size."""
    place = folder()
    if place is None:
        return b"none"
    path = _library_path(place)
    size = os.stat(path).st_size if os.path.exists(path) else 0
    return _version(place) + str(size).encode()


def version_file(place: str) -> str:
    """The file that states llvmlite's version."""
    return os.path.join(place, "_version.py")


def _version(place: str) -> bytes:
    with open(version_file(place), "rb") as file:
        return file.read()


def _library_path(place: str) -> str:
    return os.path.join(place, "binding", "libllvmlite.so")


class Machine:
    """A target machine; one thread uses it at a time, and its modules live no longer than a call.

    `quick`: it makes code of a quarter of the time, for what is not hot.
    """

    def __init__(self, target: Target, quick: bool = False) -> None:
        import ctypes

        self._ctypes, self._lib = ctypes, load(target)
        triple, error = target.triple.encode(), self._error()
        found = self._lib.LLVMPY_GetTargetFromTriple(triple, ctypes.byref(error))
        if not found:
            raise self._failure(error)
        settings = (int(not quick), target.relocation.encode(), b"small", 0, 0, b"")
        cpu, features = target.cpu.encode(), target.features.encode()
        self._machine = self._lib.LLVMPY_CreateTargetMachine(found, triple, cpu, features, *settings)
        if not self._machine:
            raise RuntimeError(f"LLVM: no target machine for {target.name}")

    def object(self, text: str) -> bytes:
        """The object of a module's text; RuntimeError if LLVM refuses it."""
        lib = self._lib
        context = lib.LLVMPY_ContextCreate()
        try:
            module = self._parsed(context, text)
            try:
                return self._emitted(module)
            finally:
                lib.LLVMPY_DisposeModule(module)
        finally:
            lib.LLVMPY_ContextDispose(context)

    def _parsed(self, context: int, text: str) -> int:
        """The verified module of a text."""
        lib, by, error = self._lib, self._ctypes.byref, self._error()
        module: int = lib.LLVMPY_ParseAssembly(context, text.encode(), by(error))
        if not module:
            raise self._failure(error)
        refused = self._error()
        if lib.LLVMPY_VerifyModule(module, by(refused)):
            lib.LLVMPY_DisposeModule(module)
            raise self._failure(refused)
        lib.LLVMPY_DisposeString(refused)
        return module

    def _emitted(self, module: int) -> bytes:
        lib, error = self._lib, self._error()
        buffer = lib.LLVMPY_TargetMachineEmitToMemory(self._machine, module, 1, self._ctypes.byref(error))
        if not buffer:
            raise self._failure(error)
        try:
            start, size = lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer)
            return self._ctypes.string_at(start, size)
        finally:
            lib.LLVMPY_DisposeMemoryBuffer(buffer)

    def _error(self) -> Any:
        return self._ctypes.c_char_p(None)

    def _failure(self, error: Any) -> RuntimeError:
        """The exception for LLVM's message, which is freed."""
        text = (error.value or b"no reason given").decode("utf-8", "replace")
        self._lib.LLVMPY_DisposeString(error)
        return RuntimeError(f"LLVM: {text}")


def load(target: Target) -> Any:
    """The library, ready for `target`. Other machines' passes stay unknown as long as they are not asked for:
    LLVM walks the list of all it knows once for every pass it runs.
    """
    global _library, _every_target
    if _library is None:
        library = _open()
        library.LLVMPY_InitializeNativeTarget()
        library.LLVMPY_InitializeNativeAsmPrinter()
        for option in OPTIONS:
            library.LLVMPY_SetCommandLine(b"kiln", option)
        _library = library
    if not _every_target and target.triple.split("-")[0] != os.uname().machine:
        for what in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters"):
            getattr(_library, f"LLVMPY_InitializeAll{what}")()
        _every_target = True
    return _library


def _open() -> Any:
    """The library with its functions declared; ImportError where llvmlite is missing or another version."""
    import ctypes

    place = folder()
    if place is None:
        raise ImportError("kiln: llvmlite is not installed, and a kernel must be made that no cache holds")
    if b"'" + LLVMLITE not in _version(place):
        raise ImportError(f"kiln: needs llvmlite {LLVMLITE.decode()}*, and {place} is another version")
    library = ctypes.CDLL(_library_path(place))
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    out = ctypes.POINTER(ctypes.c_char_p)
    functions: dict[str, tuple[Any, list[Any]]] = {
        "InitializeNativeTarget": (None, []),
        "InitializeNativeAsmPrinter": (None, []),
        "InitializeAllTargetInfos": (None, []),
        "InitializeAllTargets": (None, []),
        "InitializeAllTargetMCs": (None, []),
        "InitializeAllAsmPrinters": (None, []),
        "SetCommandLine": (None, [text, text]),
        "GetTargetFromTriple": (handle, [text, out]),
        "CreateTargetMachine": (
            handle,
            [handle, text, text, text, number, text, text, number, number, text],
        ),
        "ContextCreate": (handle, []),
        "ContextDispose": (None, [handle]),
        "ParseAssembly": (handle, [handle, text, out]),
        "VerifyModule": (ctypes.c_bool, [handle, out]),
        "TargetMachineEmitToMemory": (handle, [handle, handle, number, out]),
        "GetBufferStart": (handle, [handle]),
        "GetBufferSize": (ctypes.c_size_t, [handle]),
        "DisposeMemoryBuffer": (None, [handle]),
        "DisposeModule": (None, [handle]),
        "DisposeString": (None, [text]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"LLVMPY_{name}")
        function.restype, function.argtypes = result, arguments
    return library
