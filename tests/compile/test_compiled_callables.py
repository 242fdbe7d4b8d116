"""What Python asks of functions, asked of compiled ones: kinds, signatures, attributes, copies, pickles,
binding; and callable objects, whose state is one with that of the compiled object.
"""

from __future__ import annotations

import abc
import asyncio
import copy
import functools
import gc
import inspect
import pickle
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import kiln


def plain(x: Any, *, n: int = 2) -> Any:
    """Doubles."""
    return x * n


def generator(x: Any) -> Any:
    """Yields."""
    yield x * 2


async def coroutine(x: Any) -> Any:
    """Returns later."""
    return x * 2


async def agenerator(x: Any) -> Any:
    """Yields later."""
    yield x * 2


class Owner:
    """Methods of every kind."""

    def __init__(self) -> None:
        self.k = 2

    def plain(self, x: Any) -> Any:
        """Scales."""
        return x * self.k

    def generator(self, x: Any) -> Any:
        yield x * self.k

    async def coroutine(self, x: Any) -> Any:
        return x * self.k

    async def agenerator(self, x: Any) -> Any:
        yield x * self.k

    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 2


ONE = Owner()
FUNCTIONS = [plain, generator, coroutine, agenerator]
METHODS = [ONE.plain, ONE.generator, ONE.coroutine, ONE.agenerator, Owner.static, ONE.of_class]
PARTIALS = [functools.partial(f, 3) for f in (*FUNCTIONS, *METHODS)]
CALLABLES: list[Callable[..., Any]] = [*FUNCTIONS, *METHODS, *PARTIALS, kiln.sin, len, Owner]
# a compiled function is an object that can be called, as a partial is: not of these types
NOT_OF_TYPE = {"isfunction", "ismethod", "isroutine", "isbuiltin", "isclass", "ismethoddescriptor"}
ASKED = [ask for name, ask in vars(inspect).items() if name.startswith("is") and inspect.isfunction(ask)]


def id_of(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"partial-{id_of(function.func)}"
    return str(getattr(function, "__qualname__", function))


def raised(act: Callable[[], Any]) -> Any:
    """The result, or the error's type."""
    try:
        return act()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("function", CALLABLES, ids=id_of)
def test_inspect_sees_the_function(function: Any) -> None:
    """Every question of `inspect` but of the type; the signature, the hints, the names and the text."""
    compiled = kiln.compile(function)
    for ask in ASKED:
        if ask.__name__ not in NOT_OF_TYPE:
            assert raised(lambda ask=ask: ask(compiled)) == raised(lambda ask=ask: ask(function)), (
                ask.__name__
            )
    assert asyncio.iscoroutinefunction(compiled) == asyncio.iscoroutinefunction(function)
    assert raised(lambda: inspect.signature(compiled)) == raised(lambda: inspect.signature(function))
    assert raised(lambda: inspect.getsource(compiled)) == raised(
        lambda: inspect.getsource(inspect.unwrap(function))
    )
    assert inspect.getdoc(compiled) == inspect.getdoc(function)
    assert inspect.unwrap(compiled) is inspect.unwrap(function) and callable(compiled)
    if not isinstance(function, functools.partial):
        names = (
            "__name__",
            "__qualname__",
            "__module__",
            "__annotations__",
            "__code__",
            "__defaults__",
            "__self__",
        )
        for name in names:
            assert raised(lambda n=name: getattr(compiled, n)) == raised(
                lambda n=name: getattr(function, n)
            ), name
    if hasattr(function, "__annotations__"):
        assert raised(lambda: typing.get_type_hints(compiled)) == raised(
            lambda: typing.get_type_hints(function)
        )
    assert set(dir(function)) <= {*dir(compiled), "__call__"}


def test_attributes_are_the_functions() -> None:
    """Read, written and deleted on either side, seen on the other; what `wraps` copies too."""

    def counting(x: Any) -> Any:
        counting.calls += 1  # type: ignore[attr-defined]
        return x

    counting.calls = 0  # type: ignore[attr-defined]
    compiled = kiln.compile(counting)
    compiled(1), compiled(1)
    assert compiled.calls == 2
    compiled.calls = 10
    compiled.mark = "here"
    compiled(1)
    assert counting.calls == 11 and vars(compiled) is vars(counting)  # type: ignore[attr-defined]

    @functools.wraps(compiled)
    def around(x: Any) -> Any:
        return compiled(x)

    assert (around.__name__, vars(around)) == (
        "counting",
        {"calls": 11, "mark": "here", "__wrapped__": compiled},
    )
    del compiled.mark
    assert not hasattr(counting, "mark")
    with pytest.raises(AttributeError, match="'function' object has no attribute 'no'"):
        compiled.no  # noqa: B018
    with pytest.raises(AttributeError):
        kiln.compile(len).mark = 1
    partial = kiln.compile(functools.partial(plain, n=5))
    partial.mark = 1
    assert (partial.func, partial.keywords, partial.__wrapped__.mark, partial(2)) == (plain, {"n": 5}, 1, 10)
    assert weakref.ref(compiled)() is compiled and {compiled: 1}[compiled] == 1


@kiln.compile
def decorated(x: Any) -> Any:
    return x + 1


@kiln.compile
async def later(x: Any) -> Any:
    return x + 1


@kiln.compile
@functools.lru_cache
def kept(x: Any) -> Any:
    return x + 1


class Holder:
    """Compiled in a class's body, over and under other decorators."""

    step = 3
    act = kiln.compile(functools.partial(plain, n=7))  # no method, as the partial is none
    bound = kiln.compile(ONE.plain)
    native = kiln.compile(len)

    @kiln.compile
    def method(self, x: Any) -> Any:
        return x * self.step

    @kiln.compile
    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @staticmethod
    @kiln.compile
    def static_too(x: Any) -> Any:
        return x * 2

    @kiln.compile
    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.step

    @classmethod
    @kiln.compile(wait=True)
    def of_class_too(cls, x: Any) -> Any:
        return x * cls.step

    @property
    @kiln.compile
    def double(self) -> int:
        return 2 * self.step

    @functools.cached_property
    @kiln.compile
    def triple(self) -> int:
        return 3 * self.step

    @kiln.compile
    @functools.lru_cache  # noqa: B019
    def kept(self, x: Any) -> Any:
        return x * self.step


def test_binding_in_a_class() -> None:
    holder = Holder()
    assert holder.method(2) == Holder.method(holder, 2) == holder.of_class(2) == holder.of_class_too(2) == 6
    assert Holder.of_class(2) == Holder.of_class_too(2) == holder.kept(2) == 6
    assert (
        holder.static(2)
        == Holder.static(2)
        == holder.static_too(2)
        == holder.bound(2)
        == Holder.bound(2)
        == 4
    )
    assert (holder.double, holder.triple, holder.act(2), holder.native("ab")) == (6, 9, 14, 2)
    assert inspect.ismethod(holder.method) and str(inspect.signature(holder.method)) == "(x: 'Any') -> 'Any'"
    for name in ("static", "static_too", "of_class", "of_class_too", "method"):
        found = getattr(holder, name)
        found(kiln.ones(2))
        assert "recording 1" in kiln.compiler.explain(found), name


def test_copies_and_pickles_are_those_of_the_function() -> None:
    """A function is its own copy and goes by its name; a method takes its instance along."""
    for function in (decorated, later, kept, Holder.method, Holder.static):
        assert copy.copy(function) is copy.deepcopy(function) is function
        assert pickle.loads(pickle.dumps(function)) is function
    by_parts = pickle.loads(pickle.dumps(kiln.compile(plain, wait=True)))
    assert by_parts.__wrapped__ is plain and by_parts(kiln.ones(1)).tolist() == [2.0]
    assert by_parts.stats()["runs"] == 1
    one = Owner()
    for made in (copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))):
        method, partial = made(kiln.compile(one.plain)), made(kiln.compile(functools.partial(one.plain, 5)))
        method.__self__.k, partial.func.__self__.k = 7, 9
        assert (method(1), partial(), one.k) == (7, 45, 2)
    holder = copy.deepcopy(Holder())
    holder.step = 5
    assert holder.method(2) == 10

    def local(x: Any) -> Any:
        return x

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(kiln.compile(local))


def test_compiled_again() -> None:
    twice = kiln.compile(kiln.compile(plain), wait=True)
    assert twice.__wrapped__ is plain and twice(kiln.ones(1)).tolist() == [2.0]
    assert twice.stats()["runs"] == 1 and kiln.compiler.stats(twice) == twice.stats()


SEEN: list[type] = []
ENDED: list[int] = []


class Registry(abc.ABCMeta):
    """A metaclass that keeps account of its classes, and wants an argument."""

    def __new__(cls, name: str, bases: Any, space: Any, *, key: str) -> Any:
        made = super().__new__(cls, name, bases, space)
        SEEN.append(made)
        return made

    def __init__(cls, name: str, bases: Any, space: Any, *, key: str) -> None:
        super().__init__(name, bases, space)


class Step(metaclass=Registry, key="step"):
    """Slots and a dict, made-up attributes, an end of its own."""

    __slots__ = ("__dict__", "__weakref__", "rate")

    def __init__(self, rate: float) -> None:
        self.rate, self.stats, self.log = rate, [1], []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("final")

    def __call__(self, x: Any) -> Any:
        self.log.append(self)
        return x * self.rate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("made_"):
            return name, self.rate
        raise AttributeError(name)

    def __len__(self) -> int:
        return len(self.log)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.rate = 0.0

    def __del__(self) -> None:
        ENDED.append(id(self))


def test_callable_objects() -> None:
    """An object whose class has all that a class can have: one state, nothing made or ended unasked."""
    step, classes = Step(2.0), list(SEEN)
    compiled = kiln.compile(step)
    assert SEEN == classes and isinstance(compiled, Step) and compiled.__class__ is Step
    assert compiled(3) == 6 and len(compiled) == 1 and step.log[0] is step
    compiled.rate = 5.0
    assert step(1) == compiled(1) == 5 and compiled.made_up == ("made_up", 5.0)
    compiled.fresh, step.other = 1, 2
    assert (step.fresh, compiled.other, compiled.stats) == (1, 2, [1])
    copied = copy.deepcopy(compiled)
    copied.rate = 7.0
    assert (copied(1), compiled(1), copied == copied, copied == compiled) == (7.0, 5.0, True, False)
    with compiled as entered:
        assert entered is compiled
    assert step.rate == 0.0 and type(compiled)(3.0).__class__ is Step
    compiled(kiln.ones(2))
    assert kiln.compiler.stats(compiled)["programs"] == 1
    del compiled, entered
    ENDED.clear()
    gc.collect()
    assert id(step) not in ENDED
    ended = id(step)
    del step, copied
    gc.collect()
    assert ENDED.count(ended) == 1


def test_compiled_classes_do_not_stay() -> None:
    """The class made for a compiled object goes with it and its class."""

    def make() -> Any:
        class Local:
            def __call__(self, x: Any) -> Any:
                return x

        return weakref.ref(type(kiln.compile(Local()))), weakref.ref(Local)

    refs = make()
    gc.collect()
    gc.collect()  # the first one takes it out of what is kept by class
    assert [ref() for ref in refs] == [None, None]


def test_what_cannot_be_called() -> None:
    for thing in (5, "text", property(plain)):
        with pytest.raises(TypeError, match="compile: expected a callable, got"):
            kiln.compile(thing)
