"""Who is told of each call of an op, while somebody watches, and where in a program the call stands.

    begin(watcher)  end(watcher)    watcher(number, name, handle, operands, forward, recorded)
    with Asked(ask)                 what ask(name, handle, operands, hidden) gives in the place of a call
    Places().here()                 the lines and the modules of the code that runs now
    Calls                           a watcher that keeps what profilers show of each call

The core asks at one place (`on_call` in native/call/dispatch.cpp): a branch when nobody watches. Views
launch no kernel and are not told; nor is what NumPy and SciPy compute. In backward a call says whose
derivative it is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import count
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Union

from kiln import _core
from kiln.errors import is_own

# number, name of the function, its handle, operands (tensors and numbers), number of the call whose
# derivative it is or 0, whether it is recorded for a program
Watcher = Callable[[int, str, Any, tuple[Any, ...], int, bool], None]

_watchers: list[Watcher] = []
_numbers = count(1)


def begin(watcher: Watcher) -> None:
    """From now on `watcher` is told of each call, before it is recorded or runs."""
    _watchers.append(watcher)
    _core.set_watcher(_tell)


def end(watcher: Watcher) -> None:
    """No longer."""
    _watchers.remove(watcher)
    _rest()


def _rest() -> None:
    if not _watchers and not _asked:
        _core.set_watcher(None)


# None: the call goes its way; tensors, its results: it does not run; a function that is called with them
Answer = Union[None, tuple[_core.Tensor, ...], Callable[[tuple[_core.Tensor, ...]], None]]
Ask = Callable[[str, Any, tuple[Any, ...], bool], Answer]
_asked: list[Asked] = []


class Asked:
    """`with` it, `ask(name, handle, operands, hidden)` says what becomes of each of this thread's calls but
    writes into tensors and derivatives; the innermost is asked, and for what it computes itself nobody.
    `hidden`: the results have more than the function gives, for its derivative.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask, self._thread, self._busy, self._since = ask, 0, False, 0

    def __enter__(self) -> None:
        self._thread, self._since = threading.get_ident(), next(_numbers)
        _asked.append(self)
        _core.set_watcher(_tell)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _asked.remove(self)
        _rest()

    def answer(self, name: str, handle: Any, operands: tuple[Any, ...], forward: int, hidden: bool) -> Answer:
        """What it says of a call; None while it is asked."""
        if forward > self._since or name.endswith(" backward"):  # a backward pass inside, not one around
            return None
        answer = self._alone(self._ask, name, handle, operands, hidden)
        return partial(self._alone, answer) if callable(answer) else answer

    def _alone(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._busy:
            return None
        self._busy = True
        try:
            return function(*args)
        finally:
            self._busy = False


def _tell(
    name: str, handle: Any, operands: tuple[Any, ...], forward: int, recorded: bool, hidden: int
) -> Any:
    """What the core is told of a call: its number, or the results, or who wants them besides."""
    answer: Answer = None
    if _asked and hidden >= 0:
        thread = threading.get_ident()
        mode = next((mode for mode in reversed(_asked) if mode._thread == thread), None)
        answer = None if mode is None else mode.answer(name, handle, operands, forward, bool(hidden))
        if isinstance(answer, tuple):
            return answer
    number = next(_numbers)
    for watcher in tuple(_watchers):
        watcher(number, name, handle, operands, forward, recorded)
    return number if answer is None else [number, answer]


class Line(NamedTuple):
    """A line of the user's program."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}({self.number}): {self.function}"


class Layer(NamedTuple):
    """A module whose forward runs: its name below the outermost ("" for that one), and its class."""

    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})" if self.name else self.kind


class Place(NamedTuple):
    """Where code runs: lines, the innermost first, kiln's own left out; modules, the outermost first."""

    lines: tuple[Line, ...] = ()
    modules: tuple[Layer, ...] = ()


def running() -> tuple[list[Line], list[Any]]:
    """The lines that run now, the innermost first, and the modules that are called, the outermost first."""
    lines: list[Line] = []
    modules: list[Any] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, kind = frame.f_code, _kind(frame)
        if kind is _Kind.MODULE:
            modules.append(frame.f_locals["self"])
        elif kind is _Kind.LINE:
            lines.append(Line(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return lines, modules[::-1]


class _Kind(Enum):
    """What a frame tells: nothing, as it is kiln's own; a module that is called; a line of the program."""

    OWN = 1
    MODULE = 2
    LINE = 3


def _kind(frame: FrameType) -> _Kind:
    code = frame.f_code
    if code is _module_call():
        return _Kind.MODULE
    return _Kind.OWN if is_own(frame) or code.co_filename.startswith("<frozen ") else _Kind.LINE


class Places:
    """Finds places; the same place is the same object. Holds the modules it has named."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], Place] = {}
        self._same: dict[Place, Place] = {}
        self._layers: dict[tuple[int, ...], tuple[Layer, ...]] = {}
        self._codes: dict[int, _Kind] = {}
        self._kept: list[Any] = []  # modules and codes, so that their ids stay theirs

    def here(self) -> Place:
        """The place of the code that called."""
        key: list[int] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            kind = self._codes.get(id(code)) or self._kind(frame)
            if kind is _Kind.LINE:
                key += (id(code), frame.f_lasti)
            elif kind is _Kind.MODULE:
                key.append(id(frame.f_locals["self"]))
            frame = frame.f_back
        found = self._found.get(tuple(key))
        if found is None:
            lines, modules = running()
            found = Place(tuple(lines), self.named(modules))
            found = self._found[tuple(key)] = self._same.setdefault(found, found)
        return found

    def _kind(self, frame: FrameType) -> _Kind:
        self._kept.append(frame.f_code)
        kind = self._codes[id(frame.f_code)] = _kind(frame)
        return kind

    def named(self, modules: Sequence[Any]) -> tuple[Layer, ...]:
        """The names of modules that are called inside each other, the outermost first."""
        ids = tuple(map(id, modules))
        found = self._layers.get(ids)
        if found is None:
            self._kept += modules
            found = self._layers[ids] = tuple(_names(modules))
        return found


def _module_call() -> CodeType | None:
    """The code of a module's call, whose frames say which modules are called; None before there are any."""
    modules = sys.modules.get("kiln.nn.module")
    return modules.Module.__call__.__code__ if modules else None


def _names(modules: Sequence[Any]) -> Iterable[Layer]:
    """A module is named as in the one around it, or else as in the outermost; a stranger to both by its
    class.
    """
    root: Any = None
    around: Any = None
    path = ""
    for module in modules:
        kind = type(module).__name__
        if root is None:
            root = module
        else:
            own = next((key for key, child in around._modules.items() if child is module), None)
            if own is not None:
                path = f"{path}.{own}" if path else own
            else:
                path = next((key for key, child in root.named_modules() if child is module), kind)
        around = module
        yield Layer(path, kind)


class Call(NamedTuple):
    """What is kept of a call: dtype and shape of each operand ("" and the value of a number), and where."""

    number: int
    name: str
    given: tuple[tuple[str, Any], ...]
    place: Place
    backward: bool
    recorded: bool
    thread: int
    flops: int


class Calls:
    """A watcher that keeps each call. `flops(handle, operands)` says what is counted of it."""

    def __init__(self, flops: Callable[[Any, tuple[Any, ...]], int] | None = None) -> None:
        self.of: dict[int, Call] = {}
        self._places = Places()
        self._dtypes: dict[Any, str] = {}
        self._same: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._flops = flops

    def __call__(
        self, number: int, name: str, handle: Any, operands: tuple[Any, ...], forward: int, recorded: bool
    ) -> None:
        place = self._places.here()
        derived = self.of.get(forward)
        if derived is not None:  # it is told where the call was whose derivative it is
            place = derived.place
        given = tuple(map(self._given, operands))
        given = self._same.setdefault(given, given)  # few objects: a profile may keep many calls
        self.of[number] = Call(
            number,
            name,
            given,
            place,
            forward > 0 or name.endswith(" backward"),
            recorded,
            threading.get_ident(),
            self._flops(handle, operands) if self._flops else 0,
        )

    def _given(self, x: Any) -> tuple[str, Any]:
        """dtype and shape; of a number its value, which no dtype has."""
        if not isinstance(x, _core.Tensor):
            return "", x
        dtype = self._dtypes.get(x.dtype)
        if dtype is None:
            dtype = self._dtypes[x.dtype] = str(x.dtype).rpartition(".")[2]
        return dtype, tuple(x.shape)

    def of_programs(self, firsts: Iterable[int]) -> dict[int, tuple[Call, ...]]:
        """The calls of recordings that ran as programs, by the number of the first of each."""
        starts = set(firsts)
        threads: dict[int, list[Call]] = {}
        found: dict[int, list[Call]] = {}
        for call in self.of.values():
            if call.recorded:
                if call.number in starts:
                    threads[call.thread] = found[call.number] = []
                threads.setdefault(call.thread, []).append(call)
        return {first: tuple(calls) for first, calls in found.items()}
