"""`kiln.compile(fn, pure=True)`: a call is one op.

    call -> how it looks -> a variant that fits, its places as they were -> its op on the call's tensors
                         -> none: the Python runs, op by op into steps (trace.py) -> a variant

A variant fits a call of the same structure, dtypes, ranks, sizes of 1, sizes that became numbers, Python
numbers, modes, and `requires_grad` of each tensor, as long as the parameters and modules it met are where
they were. Its first calls, and one of every 256 after, run the Python too and compare.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kiln import _core, ops
from kiln.capture.compile import Compiled
from kiln.capture.pure.errors import PurityError
from kiln.capture.pure.surroundings import Watch
from kiln.capture.pure.trace import Tracer
from kiln.capture.pure.variant import Variant, flat, shape_of
from kiln.errors import describe, message, shorten
from kiln.graph.graph import Value

_FIRST, _EVERY = 2, 256  # calls of a variant that are checked
_MOST = 64  # variants of a function; the one used longest ago makes room


class Unlike(Exception):
    """A call that no cell takes: it runs as Python has it."""


class Pure(Compiled):
    """A callable whose calls are one op each; see `compile`."""

    def __init__(
        self, function: Callable[..., Any], wait: bool, name: str | None = None, region: Any = None
    ) -> None:
        super().__init__(function, wait, name, region)
        if self._suspended:
            came = "a generator or coroutine"
            raise TypeError(message("compile", "a function that returns", came, "leave pure=True out"))
        self._cell = _Cell(function, self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._cell.fast(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    def _beside(self, function: Callable[..., Any]) -> Compiled:
        return type(self)(function, self._wait, self._name)

    def __repr__(self) -> str:
        return f"<pure {self._function!r}>"

    def stats(self) -> dict[str, Any]:
        """Counts: ways it went that are known, calls, how many of them were checked, ways forgotten."""
        return self._cell.stats()

    def explain(self) -> str:
        """In plain words: each way it went, of how many ops it is made, how often it was called."""
        return self._cell.explain()


class _Cell:
    """The variants of one function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.variants: OrderedDict[Any, list[Variant]] = OrderedDict()
        self.slow_calls = self.checks = self.forgotten = 0
        self.fast = _core.Cell(self._slow)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fast(*args, **kwargs)

    def _slow(self, due: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call the core does not know, or (`due`) one to be checked; None: one whose error is told."""
        leaves: list[Any] = []
        if due is None:
            return self.function(*args, **kwargs)
        try:
            key = self._key(args, kwargs, leaves)
        except Unlike:
            return self.function(*args, **kwargs)
        variant = self._find(key, leaves)
        if variant is None:
            variant = self._trace(key, args, kwargs, leaves)
        variant.calls += 1
        self.slow_calls += 1
        due = due or variant.calls <= _FIRST or variant.calls % _EVERY == 0 or _core.checking()
        if due and not _core.recording() and not _symbolic(leaves):
            return self._check(variant, args, kwargs, leaves)
        if not _symbolic(leaves):
            self._teach(variant, args, kwargs)
        try:
            return self._run(variant, leaves)
        except Exception:
            self.function(*args, **kwargs)  # raises it on its line, in the words of its op
            raise

    def _teach(self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Gives the core what it needs to run such calls alone."""
        if variant.op is None or variant.taught > 2:
            return
        variant.taught += 1
        give = None if variant.plain else variant.give
        guards = [tuple(guard) for guard in variant.guards]
        one = variant.plain and variant.tree is None
        op, structure, random = variant.op.handle, variant.op.structure, variant.random
        sizes, parts, checks, pins = variant.sizes, variant.parts(), variant.checks, variant.pins
        self.fast.add(args, kwargs, guards, sizes, parts, random, op, structure, one, give, checks, pins)

    # -- how a call looks -------------------------------------------------------------------------------

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        grad, inference, autocast = _core.modes()
        if autocast is not None:
            raise Unlike  # casts that are kept belong to no op
        parts: list[Any] = [grad, inference, _core.default_dtype_name()]
        _look(args, parts, leaves)
        if kwargs:
            for name in kwargs:
                parts.append(name)
                _look(kwargs[name], parts, leaves)
        return tuple(parts)

    def _find(self, key: Any, leaves: list[Any]) -> Variant | None:
        found = self.variants.get(key)
        if found is None:
            return None
        self.variants.move_to_end(key)
        for variant in found:
            if all(leaves[k].shape[d] == n for k, d, n in variant.sizes):
                if variant.alike(leaves):
                    return variant
        return None

    # -- running ----------------------------------------------------------------------------------------

    def _run(self, variant: Variant, leaves: list[Any]) -> Any:
        if not _symbolic(leaves):
            variant.check(leaves)
        results: Any = ()
        numbers: list[int] = []
        if variant.random:
            seed, start = _core.next_random(variant.random)
            numbers = [seed if kind == "seed" else start + delta for kind, delta in variant.numbers]
        if variant.op is not None:
            tensors = [leaves[x] if isinstance(x, int) else x for x in variant.all_operands()]
            if _symbolic(leaves):
                made = variant.op.handle(tensors, *numbers)
                results = made if isinstance(made, tuple) else (made,)
            else:
                results = _core.call_op(variant.op.handle, variant.op.structure, (*tensors, *numbers))
        return variant.give(results, leaves)

    # -- tracing and checking ---------------------------------------------------------------------------

    def _trace(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Variant:
        if _symbolic(leaves):
            args, kwargs, leaves = _samples(args, kwargs, leaves)
        tracer = Tracer(self.name, leaves)

        def refuse(what: str, line: str) -> None:
            tracer.failure = PurityError(f"{self.name}: {line or 'it'} {what}, so it is not pure")
            raise tracer.failure

        watch = Watch(refuse)
        watch.note((*args, *kwargs.values()))
        state = _core.random_state()
        try:
            with watch:
                returned, _ = _core.trace(tracer, True, self.function, args, kwargs, tuple(leaves))
            if tracer.failure is not None:  # caught by the program
                raise tracer.failure
            watch.refuse_changes()
            variant = Variant(self.name, tracer, leaves, returned)
        except BaseException:
            if tracer.failure is not None:
                raise tracer.failure from None
            raise
        finally:
            _core.set_random_state(*state)
        variant.watch([self.function, *_objects(args, kwargs)], watch, leaves)
        self._remember(key, variant)
        return variant

    def _remember(self, key: Any, variant: Variant) -> None:
        found = self.variants.setdefault(key, [])
        found.insert(0, variant)
        while len(found) > 8:
            found.pop()
            self.forgotten += 1
        while len(self.variants) > _MOST:
            self.variants.popitem(last=False)
            self.forgotten += 1

    def _check(
        self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """The call as Python has it and by the op, compared."""
        self.checks += 1
        if _core.is_batching() and variant.calls > _FIRST and not _core.checking():
            self._check_steps(variant, args, kwargs, leaves)
            return self._run(variant, leaves)
        state = _core.random_state()
        returned, seen = None, None
        if variant.seen is not None:  # a run that is alike costs little to tell
            returned, seen = _core.trace(None, False, self.function, args, kwargs, tuple(leaves))
        if seen is None or seen != variant.seen:
            _core.set_random_state(*state)
            tracer = Tracer(self.name, leaves)
            returned, seen = _core.trace(tracer, False, self.function, args, kwargs, tuple(leaves))
            self._compare(variant, tracer, returned)
            variant.seen = None if variant.random else seen
        after = _core.random_state()
        _core.set_random_state(*state)
        made = self._run(variant, leaves)
        _core.set_random_state(*after)
        expected: list[Any] = []
        found: list[Any] = []
        if shape_of(flat(returned, expected)) != variant.shape:
            raise self._differs(variant, f"{describe(returned)} of another structure as its result", "", "")
        flat(made, found)
        for k, (a, b) in enumerate(zip(expected, found)):
            if not _core.same_bytes(a, b) and not same_bits(a, b):
                raise self._differs(variant, f"result {k} by the op with other values than by Python", "", "")
        variant.checked_at = self._count()
        return made

    def _check_steps(
        self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> None:
        """What Python does in this call, compared: on tensors without values, as those of its own wait."""
        made = [x if k in variant.pins else _sample(x, x.requires_grad) for k, x in enumerate(leaves)]
        args, kwargs = _given_instead(args, kwargs, leaves, made)
        state = _core.random_state()
        try:
            returned, seen = None, None
            if variant.seen is not None:
                with suppress(RuntimeError):  # it reads a value
                    returned, seen = _core.trace(None, True, self.function, args, kwargs, tuple(made))
            if seen is None or seen != variant.seen or shape_of(flat(returned, [])) != variant.shape:
                tracer = Tracer(self.name, made)
                returned, _ = _core.trace(tracer, True, self.function, args, kwargs, tuple(made))
                if tracer.failure is not None:  # caught by the program
                    raise tracer.failure
                self._compare(variant, tracer, returned)
        finally:
            _core.set_random_state(*state)
        variant.checked_at = self._count()

    def _compare(self, variant: Variant, tracer: Tracer, returned: Any) -> None:
        now = [(s.what(), s.told()) for s in tracer.steps]
        for k, (a, b) in enumerate(zip(variant.what, now)):
            if a[0] != b[0]:
                other = " of other tensors" if a[1] == b[1] else ""
                what = f"{b[1]} instead of {a[1]}{other}"
                raise self._differs(variant, what, variant.lines[k], tracer.lines[k])
        if len(now) != len(variant.what):
            longer = tracer.lines if len(now) > len(variant.what) else variant.lines
            line = longer[min(len(now), len(variant.what))]
            raise self._differs(variant, f"{len(now)} ops instead of {len(variant.what)}", "", line)
        self._compare_operands(variant, tracer)
        outputs: list[Any] = []
        if shape_of(flat(returned, outputs)) != variant.shape:
            raise self._differs(variant, f"{describe(returned)} of another structure as its result", "", "")
        if [tracer.value(y) for y in outputs] != variant.gives:
            raise self._differs(variant, "results of other steps", "", "")

    def _compare_operands(self, variant: Variant, tracer: Tracer) -> None:
        for x, own in zip(tracer.operands, variant.operands):
            if isinstance(own, int) or x is own:
                continue
            if not same_bits(x, own):
                raise self._differs(variant, f"another tensor, {describe(x)}, from outside", "", "")

    def _differs(self, variant: Variant, what: str, was: str, now: str) -> PurityError:
        since = f"since call {variant.checked_at + 1}" if variant.checked_at else "since the first call"
        lines = f" at {now}" if now else ""
        before = f" (before at {was})" if was and was != now else ""
        self.variants.clear()
        self.fast.forget()
        return PurityError(
            f"{self.name}: call {self._count()} gave {what}{lines}{before}; it may have gone on {since} that "
            "looks so: what it does depends on more than its arguments, parameters and buffers"
        )

    # -- what is told of it -----------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """See `Pure.stats`."""
        variants = sum(map(len, self.variants.values()))
        counts = {"calls": self._count(), "checks": self.checks, "forgotten": self.forgotten}
        return {"variants": variants, **counts}

    def _count(self) -> int:
        return self.slow_calls + int(self.fast.calls)

    def explain(self) -> str:
        """See `Pure.explain`."""
        checked = f"{self.checks} were checked by running the Python"
        lines = [f"{self.name}: pure; {self._count()} calls, of which {checked}"]
        for found in self.variants.values():
            for v in found:
                lines.append(f"  {len(v.steps.steps)} ops on {len(v.operands)} tensors")
        return "\n".join(lines)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same, bit for bit, NaNs of any kind alike."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _look(value: Any, parts: list[Any], leaves: list[Any]) -> None:
    """Adds how a value looks to `parts`, its tensors to `leaves`."""
    kind = type(value)
    if issubclass(kind, _core.Tensor):
        for k, other in enumerate(leaves):
            if other is value:
                parts.append(k)
                return
        _, _, sizes, strides = _core.place(value)
        whole = value.is_contiguous()
        ones = tuple([n == 1 for n in sizes])
        parts.append((kind, value.dtype, value.requires_grad, ones, None if whole else strides))
        leaves.append(value)
    elif kind is tuple or kind is list or hasattr(value, "_fields"):
        parts.append((kind, len(value)))
        for item in value:
            _look(item, parts, leaves)
    elif kind is dict:
        parts.append((kind, tuple(value)))
        for item in value.values():
            _look(item, parts, leaves)
    elif kind in (int, float, bool, str, bytes, type(None), _core.dtype):
        parts.append((kind, repr(value) if kind is float else value))
    elif _is_symbolic(value):
        if not hasattr(value, "whole"):
            raise Unlike
        parts.append((_core.Tensor, value.dtype, False, tuple([n == 1 for n in value.shape]), None))
        leaves.append(value)
    else:
        parts.append(_Same(value))


class _Same:
    """An object that a call is given, known by being the same."""

    __slots__ = ("thing",)

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _is_symbolic(value: Any) -> bool:
    """Whether it stands for a tensor: one of a batch, or a value of a graph."""
    return not issubclass(type(value), _core.Tensor) and isinstance(value, (_core.Tensor, Value))


def _symbolic(leaves: list[Any]) -> bool:
    return any(not issubclass(type(x), _core.Tensor) for x in leaves)


def _samples(args: Any, kwargs: Any, leaves: list[Any]) -> Any:
    """The arguments with a tensor for each sample of a batch."""
    made = [x if issubclass(type(x), _core.Tensor) else _sample(x) for x in leaves]
    return *_given_instead(args, kwargs, leaves, made), made


def _given_instead(args: Any, kwargs: Any, leaves: list[Any], instead: list[Any]) -> Any:
    """The arguments with other tensors."""
    made = {id(x): own for x, own in zip(leaves, instead)}

    def of(value: Any) -> Any:
        if id(value) in made:
            return made[id(value)]
        if type(value) in (tuple, list):
            return type(value)(map(of, value))
        if hasattr(value, "_fields"):
            return type(value)._make(map(of, value))
        return {k: of(v) for k, v in value.items()} if type(value) is dict else value

    return of(args), of(kwargs)


def _sample(x: Any, requires_grad: bool = False) -> Any:
    return ops.empty(tuple(x.shape), dtype=x.dtype, requires_grad=requires_grad)


def _objects(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What a call is given besides tensors: what holds parameters of its own."""
    plain = (_core.Tensor, list, tuple, dict)
    return [x for x in (*args, *kwargs.values()) if not isinstance(x, plain)]
