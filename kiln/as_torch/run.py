"""Runs a program as Python would, with kiln under the name `torch`.

The program has `__main__`, sys.argv and sys.path[0] as of `python program.py`; what it raises is shown with
its own frames, and the process ends as Python's does: by the code of SystemExit, 1 after an error, by the
signal after Ctrl-C. After the program, names of PyTorch that it asked for and kiln has not are told on
stderr.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from kiln.errors import is_own, shorten


class Program(NamedTuple):
    """What will be run: code, and what `__main__` knows of itself."""

    code: CodeType
    names: dict[str, Any]


def script(path: str, args: list[str]) -> Program:
    """A file with a program, a folder or archive with `__main__.py`; sys.argv and sys.path[0] are its own."""
    sys.argv[:] = [path, *args]
    if type(pkgutil.get_importer(path)).__name__ not in ("NoneType", "NullImporter"):  # a folder, an archive
        _put_first(path)
        details: Any = runpy._get_main_module_details()  # type: ignore[attr-defined]
        return _of_module(*details)
    try:
        with io.open_code(os.path.abspath(path)) as file:
            text = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable} -m kiln: can't open file {path!r}: {reason}", file=sys.stderr)
        raise SystemExit(2) from None
    file_name = os.path.abspath(path)
    _put_first(os.path.dirname(os.path.realpath(path)))
    names: dict[str, Any] = {"__file__": file_name, "__cached__": None, "__package__": None, "__spec__": None}
    names["__loader__"] = SourceFileLoader("__main__", file_name)
    return Program(compile(text, file_name, "exec", dont_inherit=True), names)


def module(name: str, args: list[str]) -> Program:
    """What `python -m name` runs: a module, or the `__main__` of a package."""
    sys.argv[:] = ["-m", *args]
    try:
        details: Any = runpy._get_module_details(name)  # type: ignore[attr-defined]
    except ImportError as error:
        print(f"{sys.executable} -m kiln: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    program = _of_module(*details)
    sys.argv[0] = program.names["__file__"]
    return program


def text(program: str, args: list[str], option: str = "-c") -> Program:
    """What `python -c text` runs, or `python -` of what it reads."""
    sys.argv[:] = [option, *args]
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = ""
    names = {"__package__": None, "__spec__": None, "__loader__": None}
    file_name = "<string>" if option == "-c" else "<stdin>"
    return Program(compile(program, file_name, "exec", dont_inherit=True), names)


def _of_module(name: str, spec: Any, code: CodeType) -> Program:
    names = {"__file__": spec.origin, "__cached__": spec.cached, "__package__": spec.parent}
    return Program(code, {**names, "__spec__": spec, "__loader__": spec.loader})


def _put_first(folder: str) -> None:
    """The folder in the place of the one that `python -m` looks into, where it does."""
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = folder


def run(program: Program) -> None:
    """Runs it as `__main__`; what it raises is raised, and shown with the program's own frames."""
    main = ModuleType("__main__")
    vars(main).update(program.names, __builtins__=builtins)
    sys.modules["__main__"] = main
    try:
        exec(program.code, vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        show_own(error)
        raise


def show_own(error: BaseException) -> None:
    """Who shows this error at the end of the process leaves out the frames around the program."""
    shown = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is error:
            value.__traceback__ = _inner(trace)
            shorten(value)
        shown(kind, value, value.__traceback__)

    sys.excepthook = excepthook


def _inner(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without what is outside of the program: everything up to kiln's outer frames."""
    seen = False
    while trace is not None and (is_own(trace.tb_frame) or not seen):
        seen = seen or is_own(trace.tb_frame)
        trace = trace.tb_next
    return trace
