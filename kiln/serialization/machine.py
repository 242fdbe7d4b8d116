"""A reader of pickles that runs nothing: it knows the opcodes that data needs, and the names in words.py.

A pickle is a program of a stack machine. This one has its stack, its marks and its memo, and of the opcodes
that call something (REDUCE, NEWOBJ, BUILD) what is left is making tensors, dicts and the like, and calling
what the program allowed by `add_safe_globals`. Nothing takes more memory than the file is long: sizes are
looked at before anything is read, and a memo is a dict, not a list as long as its largest number.
"""

from __future__ import annotations

import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from kiln._core import Tensor
from kiln.ops.creation.data import set_attributes
from kiln.serialization.safe import allowed, asked_for
from kiln.serialization.source import FEW_ALIKE, MAX_ALIKE, Damaged, Source
from kiln.serialization.words import (
    FUNCTIONS,
    StorageType,
    check_keys,
    checked_state,
    meaning,
    must,
    need,
    put_on,
)

NEW = "Can only create new object for nn.Parameter or classes allowlisted via `add_safe_globals` but got {}"
BUILT = (
    "Can only build Tensor, Parameter, OrderedDict or types allowlisted via `add_safe_globals`, but got {}"
)
FILLED = "Can only set items of dict, collections.OrderedDict, collections.Counter, but got {}"
BLOCKED = ("sys", "os", "posix", "nt")  # whatever a program allows
MAX_LINE = 1000  # bytes of a module's or a name's line
MAX_INTEGER = 1 << 16  # bytes of an integer
CHUNK = 1 << 16
SIZED = (str, bytes, bytearray, list, tuple, dict, set, OrderedDict, Counter)

WORDS = set(map(id, FUNCTIONS.values()))

Step = Callable[["Machine"], None]
STEPS: list[Step | None] = [None] * 256


class Window:
    """The bytes of a source from one place to another, in order, as a file that is only read."""

    def __init__(self, source: Source, at: int, end: int) -> None:
        self.source, self.at, self.end = source, at, end
        self._held, self._next = b"", 0

    @property
    def place(self) -> int:
        """Where in the source the next byte is."""
        return self.at - len(self._held) + self._next

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        stop = self._next + size
        if stop > len(self._held):
            self._more(size)
            stop = size
        found = self._held[self._next : stop]
        self._next = stop
        return found

    def _more(self, size: int) -> None:
        rest = self._held[self._next :]
        need(size - len(rest) <= self.end - self.at, "{} more bytes of a pickle, got fewer", size)
        fresh = min(max(size - len(rest), CHUNK), self.end - self.at)
        self._held, self._next = rest + bytes(self.source.part(self.at, fresh)), 0
        self.at += fresh

    def read(self, size: int = -1) -> bytes:
        """As a file's: fewer bytes where there are no more."""
        left = self.end - self.place
        return self.take(left if size < 0 else min(size, left))

    def readline(self) -> bytes:
        """As a file's."""
        found = bytearray()
        while (byte := self.read(1)) not in (b"\n", b""):
            found += byte
        return bytes(found) + byte

    def line(self) -> str:
        """A line of names, without its end."""
        found = bytearray()
        while (byte := self.take(1)) != b"\n":
            found += byte
            need(len(found) <= MAX_LINE, f"names of at most {MAX_LINE} bytes")
        return found.decode("utf-8")


class Mark:
    """What stands on the stack where a collection begins."""


MARK = Mark()


class Machine:
    """Runs one pickle; `persistent` gives the object for what the pickle calls an object outside of it."""

    def __init__(self, window: Window, persistent: Callable[[Any], Any], encoding: str = "utf-8") -> None:
        self.window, self.persistent, self.encoding = window, persistent, encoding
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.protocol = 0
        self.marks = 0
        self.budget = 4096 + 8 * (window.end - window.at)  # of items that functions are given, to copy
        self.hashes: dict[int, tuple[Any, Counter[int]]] = {}  # of keys, by the id of the dict they are in

    def run(self) -> Any:
        """The object of the pickle."""
        take = self.window.take
        while True:
            code = take(1)[0]
            if code == 0x2E:  # STOP
                break
            step = STEPS[code]
            need(step is not None, "an opcode that data needs, got Unsupported operand {}", code)
            try:
                step(self)  # type: ignore[misc]
            except UnicodeDecodeError as error:
                raise Damaged(
                    f"expected text in {self.encoding}, got a wrong byte at {error.start}"
                ) from None
        need(len(self.stack) == 1 and self.stack[0] is not MARK, "one object at the end of the pickle")
        return self.stack[0]

    def pop(self) -> Any:
        """What is on top of the stack."""
        need(bool(self.stack) and self.stack[-1] is not MARK, "an object on the stack")
        return self.stack.pop()

    def top(self) -> Any:
        """What is on top of the stack, which stays."""
        need(bool(self.stack) and self.stack[-1] is not MARK, "an object on the stack")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        """What was put on the stack since the last mark, which goes."""
        need(self.marks > 0, "a mark on the stack")
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
        found = self.stack[at + 1 :]
        del self.stack[at:]
        self.marks -= 1
        return found

    def set_items(self, items: list[Any]) -> None:
        """The dict on top gets keys and values, one after the other."""
        into = self.top()
        must(type(into) in (dict, OrderedDict, Counter) or _is_users(type(into)), FILLED, type(into))
        need(len(items) % 2 == 0, "a value for every key")
        self.check(into, items[::2])
        for key, value in zip(items[::2], items[1::2]):
            into[key] = value

    def check(self, into: Any, keys: list[Any]) -> None:
        """Keys that a dict or set may get, beside those that it has."""
        check_keys(keys)
        chosen = [key for key in keys if not isinstance(key, str)]  # a text's hash cannot be foreseen
        if not chosen or len(into) + len(keys) <= MAX_ALIKE:
            return
        if id(into) not in self.hashes:
            self.hashes[id(into)] = into, Counter(map(hash, into))
        alike = self.hashes[id(into)][1]
        for key in chosen:
            alike[hash(key)] += 1
            need(alike[hash(key)] <= MAX_ALIKE, FEW_ALIKE)

    def find(self, module: str, name: str) -> Any:
        """What a pickle means by a name: a word of data, or what the program allowed."""
        if self.protocol <= 2:
            module, name = NAME_MAPPING.get((module, name), (module, name))
            module = IMPORT_MAPPING.get(module, module)
        full = f"{module}.{name}"[:200]
        if module.partition(".")[0] in BLOCKED:
            raise Damaged(f"Trying to load unsupported GLOBAL {full} whose module {module} is blocked.")
        found = asked_for(module, name)
        if found is None:
            found = meaning(f"{module}.{name}")
        if found is None:
            raise Damaged(
                f"Unsupported global: GLOBAL {full} was not an allowed global by default. Please use "
                f"`kiln.serialization.add_safe_globals([{full}])` or the "
                f"`kiln.serialization.safe_globals([{full}])` context manager to allowlist this global if "
                "you trust this class/function"
            )
        return found

    def spend(self, copied: Any) -> None:
        """Counts the items of what is copied, also in tuples: a few bytes name a large dict again."""
        waiting = [copied]
        while waiting:
            part = waiting.pop()
            if type(part) in SIZED:
                self.budget -= len(part)
                need(self.budget >= 0, "collections that are not copied over and over")
                if type(part) is tuple:
                    waiting.extend(part)

    def call(self, function: Any, args: Any) -> Any:
        """A word of data called, or what the program allowed."""
        need(isinstance(args, tuple), "arguments, got {}", args)
        if id(function) in WORDS:
            self.spend(args)
            try:
                return function(*args)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise Damaged(f"expected fit arguments of {function.__name__}, got {error!s:.200}") from None
        must(_is_users(function), "Trying to call reduce for unrecognized function {}", function)
        return function(*args)

    def make(self, kind: Any, args: Any, kwargs: Any = None) -> Any:
        """An object of a class that the program allowed, as NEWOBJ makes it."""
        need(isinstance(args, tuple), "arguments, got {}", args)
        must(isinstance(kind, type) and _is_users(kind), NEW, kind)
        return kind.__new__(kind, *args, **(kwargs or {}))

    def build(self, state: Any) -> None:
        """The object on top gets its attributes."""
        into = self.top()
        self.spend(state)
        if type(into) in (OrderedDict, Counter):
            named = checked_state(state)
            need(not isinstance(named, tuple), "attributes by name, got {}", state)
            into.__dict__.update(named or {})
        elif isinstance(into, Tensor):
            put_on(into, state)
        elif hasattr(type(into), "__setstate__") and _is_users(type(into)):
            into.__setstate__(state)
        else:
            must(_is_users(type(into)), BUILT, type(into))
            set_attributes(into, checked_state(state))


def _is_users(what: Any) -> bool:
    """Whether the program allowed it."""
    return any(what is one for one in allowed().values())


# -- opcodes ------------------------------------------------------------------------------------------


def step(*codes: bytes) -> Callable[[Step], Step]:
    """Registers what an opcode does."""

    def register(function: Step) -> Step:
        for code in codes:
            STEPS[code[0]] = function
        return function

    return register


def _constant(code: bytes, make: Callable[[], Any]) -> None:
    step(code)(lambda m: m.stack.append(make()))


def _packed(code: bytes, layout: str) -> None:
    """A number of a fixed form."""
    form = struct.Struct(layout)
    step(code)(lambda m: m.stack.append(form.unpack(m.window.take(form.size))[0]))


_MADE: dict[bytes, Callable[[], Any]] = {
    b"N": lambda: None, b"\x88": lambda: True, b"\x89": lambda: False,
    b"]": list, b"}": dict, b")": tuple, b"\x8f": set,
}  # fmt: skip
for _code, _make in _MADE.items():
    _constant(_code, _make)
for _code, _layout in {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}.items():
    _packed(_code, _layout)


def _sized(code: bytes, width: int, make: Callable[[Machine, bytes], Any]) -> None:
    """An object of so many bytes, after their number."""

    def run(m: Machine) -> None:
        size = int.from_bytes(m.window.take(width), "little")
        m.stack.append(make(m, m.window.take(size)))

    step(code)(run)


def _text(m: Machine, raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _old_text(m: Machine, raw: bytes) -> Any:
    return raw if m.encoding == "bytes" else raw.decode(m.encoding)


def _integer(m: Machine, raw: bytes) -> int:
    need(len(raw) <= MAX_INTEGER, f"integers of at most {MAX_INTEGER} bytes, got {{}}", len(raw))
    return int.from_bytes(raw, "little", signed=True)


for _code, _width, _of in (
    (b"\x8c", 1, _text), (b"X", 4, _text), (b"\x8d", 8, _text),
    (b"C", 1, lambda m, raw: raw), (b"B", 4, lambda m, raw: raw), (b"\x8e", 8, lambda m, raw: raw),
    (b"\x96", 8, lambda m, raw: bytearray(raw)),
    (b"U", 1, _old_text), (b"T", 4, _old_text),
    (b"\x8a", 1, _integer), (b"\x8b", 4, _integer),
):  # fmt: skip
    _sized(_code, _width, _of)


@step(b"\x80")
def _proto(m: Machine) -> None:
    m.protocol = m.window.take(1)[0]
    need(2 <= m.protocol <= 5, "a pickle of protocol 2 to 5, got {}", m.protocol)


@step(b"\x95")
def _frame(m: Machine) -> None:
    size = int.from_bytes(m.window.take(8), "little")
    need(size <= m.window.end - m.window.place, "a frame within the file, got one of {}", size)


@step(b"(")
def _mark(m: Machine) -> None:
    m.stack.append(MARK)
    m.marks += 1


@step(b"0")
def _pop(m: Machine) -> None:
    need(bool(m.stack), "an object on the stack")
    m.marks -= m.stack.pop() is MARK


@step(b"1")
def _pop_mark(m: Machine) -> None:
    m.since_mark()


@step(b"2")
def _dup(m: Machine) -> None:
    m.stack.append(m.top())


@step(b"q")
def _put(m: Machine) -> None:
    m.memo[m.window.take(1)[0]] = m.top()


@step(b"r")
def _long_put(m: Machine) -> None:
    m.memo[int.from_bytes(m.window.take(4), "little")] = m.top()


@step(b"\x94")
def _memoize(m: Machine) -> None:
    m.memo[len(m.memo)] = m.top()


def _get(m: Machine, index: int) -> None:
    need(index in m.memo, "an object that was met before, got number {}", index)
    m.stack.append(m.memo[index])


step(b"h")(lambda m: _get(m, m.window.take(1)[0]))
step(b"j")(lambda m: _get(m, int.from_bytes(m.window.take(4), "little")))


@step(b"t")
def _tuple(m: Machine) -> None:
    m.stack.append(tuple(m.since_mark()))


def _few(count: int) -> Step:
    def run(m: Machine) -> None:
        found = [m.pop() for _ in range(count)]
        m.stack.append(tuple(reversed(found)))

    return run


for _count, _code in enumerate((b"\x85", b"\x86", b"\x87"), 1):
    step(_code)(_few(_count))


@step(b"a")
def _append(m: Machine) -> None:
    _extend(m, [m.pop()])


@step(b"e")
def _appends(m: Machine) -> None:
    _extend(m, m.since_mark())


def _extend(m: Machine, items: list[Any]) -> None:
    into = m.top()
    must(isinstance(into, list), "Can only extend lists, but got {}", type(into))
    into.extend(items)


@step(b"s")
def _set_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.set_items([key, value])


@step(b"u")
def _set_items(m: Machine) -> None:
    m.set_items(m.since_mark())


@step(b"\x90")
def _add_items(m: Machine) -> None:
    items, into = m.since_mark(), m.top()
    need(type(into) is set, "a set, got {}", into)
    m.check(into, items)
    into.update(items)


@step(b"\x91")
def _frozen_set(m: Machine) -> None:
    items = m.since_mark()
    check_keys(items)
    m.stack.append(frozenset(items))


@step(b"c")
def _global(m: Machine) -> None:
    module = m.window.line()
    m.stack.append(m.find(module, m.window.line()))


@step(b"\x93")
def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    need(isinstance(name, str) and isinstance(module, str), "a module's name and a name")
    m.stack.append(m.find(module, name))


@step(b"R")
def _reduce(m: Machine) -> None:
    args, function = m.pop(), m.pop()
    m.stack.append(m.call(function, args))


@step(b"\x81")
def _new(m: Machine) -> None:
    args, kind = m.pop(), m.pop()
    m.stack.append(m.make(kind, args))


@step(b"\x92")
def _new_with_names(m: Machine) -> None:
    kwargs, args, kind = m.pop(), m.pop(), m.pop()
    named = type(kwargs) is dict and all(isinstance(name, str) for name in kwargs)
    need(named, "arguments by name, got {}", kwargs)
    m.stack.append(m.make(kind, args, kwargs))


@step(b"b")
def _build(m: Machine) -> None:
    m.build(m.pop())


@step(b"Q")
def _outside(m: Machine) -> None:
    m.stack.append(m.persistent(m.pop()))


def storage_named(what: Any) -> tuple[StorageType, str, str, int]:
    """The parts of a storage's name in a pickle: its kind, its key, its location, its length."""
    need(isinstance(what, tuple) and 5 <= len(what) <= 6 and what[0] == "storage", "a storage, got {}", what)
    _, kind, key, location, length, *view = what
    need(isinstance(key, str) and isinstance(location, str), "the key and place of a storage, got {}", what)
    need(type(length) is int and 0 <= length < 2**63, "the length of a storage, got {}", length)
    need(not view or view[0] is None, "a whole storage, got a part of another one")
    return kind, key, location, length
