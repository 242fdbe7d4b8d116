"""`kiln.compile(fn, pure=True)`: a call is one op.

    call -> how it looks -> a variant that fits, its places as they were -> its op on the call's tensors
                         -> none: the Python runs, op by op into steps (trace.py) -> a variant

A variant fits a call of the same structure, dtypes, ranks, sizes of 1, sizes that became numbers, Python
numbers that Python reads (numbers.py), modes, and `requires_grad` of each tensor, as long as the parameters
and modules it met and what else it may have read are as they were (guards.py). Its first calls, and one of
every 256 after, run the Python too and compare. Buffers of modules that it writes are results of its op, and
written when that has run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from kiln import _core
from kiln.capture.compile import Compiled
from kiln.capture.explain import Explanation, in_words
from kiln.capture.pure.call import Call, Unlike, look_at, sample
from kiln.capture.pure.errors import PurityError
from kiln.capture.pure.guards import ways_to
from kiln.capture.pure.numbers import flowing, letters_of, same_number
from kiln.capture.pure.surroundings import Watch
from kiln.capture.pure.trace import Tracer
from kiln.capture.pure.variant import Variant, flat, given_by, shape_of
from kiln.errors import describe, message, shorten
from kiln.table.arguments import followed

_FIRST, _EVERY = 2, 256  # calls of a variant that are checked
_MOST = 64  # variants of a function; the one used longest ago makes room
_OFTEN = 48  # ways written down before it is asked whether they come back


class _Untold(RuntimeError):
    """A run that is compared by the hash of its calls alone came to what has none."""


class _Nobody:
    """Follows a run whose hash alone is wanted."""

    def asked(self, tensor: Any, what: str, frame: Any = None) -> None:
        """What tensors are asked for is answered as it was when the way was written down."""

    def asked_mode(self, what: str, answer: Any) -> Any:
        """What is switched on is what it was then."""
        return answer

    def applied(self, cls: Any, args: tuple[Any, ...]) -> Any:
        """A call of an autograd.Function, which is more than calls of ops."""
        raise _Untold(f"calls {cls.__name__}")


_UNTOLD = _Nobody()


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

    def explain(self) -> Explanation:
        """In plain words: each way it went, of how many ops it is made, how often it was called."""
        return in_words(self._cell.explain())


class _Cell:
    """The variants of one function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.variants: OrderedDict[Any, list[Variant]] = OrderedDict()
        self.slow_calls = self.checks = self.forgotten = self.traced = self.plain_calls = 0
        self.fast = _core.Cell(self._slow)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fast(*args, **kwargs)

    def _slow(self, due: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call the core does not know, or (`due`) one to be checked; None: one whose error is told."""
        if due is None:
            return self.function(*args, **kwargs)
        try:
            key, call = look_at(args, kwargs)
        except Unlike:
            return self.function(*args, **kwargs)
        symbolic = call.symbolic()
        variant = self._find(key, call)
        if variant is None:
            if self._is_changing():
                self.plain_calls += 1
                return self.function(*args, **kwargs)
            variant = self._trace(key, call.samples() if symbolic else call)
        if variant.refused:
            self.plain_calls += 1
            return self.function(*args, **kwargs)
        variant.calls += 1
        self.slow_calls += 1
        if symbolic:
            return self.function(*args, **kwargs) if variant.by_call else self._run(variant, call)
        changed = not variant.outside.hold()
        due = due or changed or variant.calls <= _FIRST or variant.calls % _EVERY == 0 or _core.checking()
        if due and not _core.recording():
            made = self._check(variant, call)
            variant.outside.renew()
            return made
        if changed:
            return self.function(*args, **kwargs)
        self._teach(variant, call)
        try:
            return self._run(variant, call)
        except Exception:
            self.function(*args, **kwargs)  # raises it on its line, in the words of its op
            raise

    def _is_changing(self) -> bool:
        """Whether ways that are written down hardly come back: then calls run as Python has them."""
        return self.traced > _OFTEN + 4 * (self._count() + self.plain_calls).bit_length()

    def _teach(self, variant: Variant, call: Call) -> None:
        """Gives the core what it needs to run such calls alone."""
        if variant.op is None or variant.taught > 2 or variant.conditions or variant.records:
            return  # (conditions, and gradients in other modes, are known to Python alone)
        variant.taught += 1
        give = None if variant.plain else variant.give
        one = variant.plain and variant.tree is None
        op, structure, random = variant.op.handle, variant.op.structure, variant.random
        self.fast.add(
            call.args, call.kwargs, variant.guards, variant.outside, variant.sizes, variant.parts(), random,
            op, structure, one, give, variant.checks, variant.pins, set(variant.flowing), variant.written,
        )  # fmt: skip

    def _find(self, key: Any, call: Call) -> Variant | None:
        found = self.variants.get(key)
        if found is None:
            return None
        self.variants.move_to_end(key)
        for variant in found:
            if all(call.leaves[k].shape[d] == n for k, d, n in variant.sizes):
                if variant.alike(call):
                    return variant
        return None

    # -- running ----------------------------------------------------------------------------------------

    def _run(self, variant: Variant, call: Call) -> Any:
        if variant.records and not _core.grad_enabled():
            with _core.ModeSwitch(True, False):  # results without history are detached
                return self._run(variant, call)
        leaves = call.leaves
        symbolic = call.symbolic()
        if not symbolic:
            variant.check(leaves)
        results: Any = ()
        numbers: list[Any] = []
        seed, start = _core.next_random(variant.random) if variant.random else (0, 0)
        for kind, which in variant.numbers:
            if kind == "argument":
                numbers.append(call.numbers[variant.flowing[which]])
            else:
                numbers.append(seed if kind == "seed" else start + which)
        if variant.op is not None:
            own = {id(x): x for x in variant.written}
            tensors = [leaves[x] if isinstance(x, int) else x for x in variant.all_operands()]
            with _core.ModeSwitch(False):
                tensors = [x.clone() if id(x) in own else x for x in tensors]
            if symbolic:
                made = variant.op.handle(tensors, *numbers)
                results = made if isinstance(made, tuple) else (made,)
            else:
                results = _core.call_op(variant.op.handle, variant.op.structure, (*tensors, *numbers))
        count = len(results) - len(variant.written)
        with _core.ModeSwitch(False):
            for buffer, value in zip(variant.written, results[count:]):
                buffer.copy_(value)
        return variant.give(results[:count], leaves)

    # -- tracing and checking ---------------------------------------------------------------------------

    def _follow(
        self, tracer: Tracer | None, abstract: bool, call: Call, numbers: tuple[Any, ...] = ()
    ) -> Any:
        """What the function returns, and a hash of its calls, told to `tracer`. Casts that autocast keeps
        are kept within the call, so that each is an op of it.
        """
        given = (*call.leaves, *numbers)

        def run() -> Any:
            with followed(_UNTOLD if tracer is None else tracer):
                return _core.trace(tracer, abstract, self.function, call.args, call.kwargs, given)

        if _core.modes()[2] is None:
            return run()
        kept = _core.cast_cache()
        before = dict(kept)
        kept.clear()
        try:
            return run()
        finally:
            kept.clear()
            kept.update(before)

    def _trace(self, key: Any, call: Call) -> Variant:
        self.traced += 1
        leaves = call.leaves

        def refuse(what: str, line: str) -> NoReturn:
            tracer.failure = PurityError(f"{self.name}: {line or 'it'} {what}, so it is not pure")
            raise tracer.failure

        def is_buffer(x: Any) -> bool:
            if any(x is own for own in watch.buffers_met()):
                return True
            way = ways_to([self.function, *call.objects()], [x]).get(id(x))
            owned = way[0].container.get("_buffers") if way and isinstance(way[0].container, dict) else None
            return isinstance(owned, dict) and any(x is own for own in owned.values())

        tracer = Tracer(self.name, leaves, is_buffer)
        watch = Watch(refuse)
        watch.note((*call.args, *call.kwargs.values()))
        state = _core.random_state()
        try:
            with watch:
                returned, _ = self._follow(tracer, True, call)
            if tracer.failure is not None:  # caught by the program
                raise tracer.failure
            tracer.expect_modes(tracer.modes)
            watch.refuse_changes()
            others, flows = self._flowing(tracer, returned, call, state)
            variant = Variant(self.name, tracer, leaves, returned)
        except BaseException:
            if tracer.failure is not None:
                raise tracer.failure from None
            raise
        finally:
            _core.set_random_state(*state)
        variant.flowing, variant.flows = others, flows
        variant.fixed = [(k, x) for k, x in enumerate(call.numbers) if k not in others]
        variant.watch([self.function, *call.objects()], watch, leaves)
        self._remember(key, variant)
        return variant

    def _flowing(self, tracer: Tracer, returned: Any, call: Call, state: Any) -> Any:
        """(the numbers of the call that only ops see, where), which become numbers of the operation."""
        if not call.numbers:
            return (), {}

        def outcome(tracer: Tracer, returned: Any) -> Any:
            outputs: list[Any] = []
            return shape_of(flat(returned, outputs)), given_by(tracer, outputs)

        def run(other: Call) -> Any:
            _core.set_random_state(*state)
            again = Tracer(self.name, other.leaves)
            returned, _ = self._follow(again, True, other)
            if again.failure is not None:
                raise again.failure
            return again, outcome(again, returned)

        try:
            first = outcome(tracer, returned)
        except TypeError:  # what is returned is refused
            return (), {}
        after = _core.random_state()
        others, places = flowing(call, tracer, first, run)
        _core.set_random_state(*after)
        flows = {at: others.index(k) for at, k in places.items()}
        tracer.lift(flows, letters_of([call.numbers[k] for k in others]))
        return others, flows

    def _remember(self, key: Any, variant: Variant) -> None:
        found = self.variants.setdefault(key, [])
        found.insert(0, variant)
        while len(found) > (_MOST if variant.fixed else 8):
            found.pop()
            self.forgotten += 1
        while len(self.variants) > 1 and sum(map(len, self.variants.values())) > 2 * _MOST:
            self.forgotten += len(self.variants.popitem(last=False)[1])

    def _check(self, variant: Variant, call: Call) -> Any:
        """The call as Python has it and by the op, compared."""
        self.checks += 1
        if _core.is_batching() and variant.calls > _FIRST and not _core.checking():
            self._check_steps(variant, call)
            return self._run(variant, call)
        state = _core.random_state()
        before = [x.clone() for x in variant.written]
        numbers = tuple([call.numbers[k] for k in variant.flowing])
        returned, seen = None, None
        if variant.seen is not None:  # a run that is alike costs little to tell
            with suppress(_Untold):
                returned, seen = self._follow(None, False, call, numbers)
        if seen is None or seen != variant.seen:
            _core.set_random_state(*state)
            _put_back(variant, before)
            tracer = Tracer(self.name, call.leaves)
            returned, seen = self._follow(tracer, False, call, numbers)
            self._compare(variant, tracer, returned, call)
            variant.seen = None if variant.random else seen
        after = _core.random_state()
        _core.set_random_state(*state)
        expected: list[Any] = []
        found: list[Any] = []
        if shape_of(flat(returned, expected)) != variant.shape:
            raise self._differs(variant, f"{describe(returned)} of another structure as its result", "", "")
        expected += [x.clone() for x in variant.written]
        _put_back(variant, before)
        try:
            made = self._run(variant, call)
        except NotImplementedError:
            variant.refused = True
            _put_back(variant, expected[len(expected) - len(variant.written) :])
            return returned
        finally:
            _core.set_random_state(*after)
        flat(made, found)
        for k, (a, b) in enumerate(zip(expected, [*found, *variant.written])):
            if not _core.same_bytes(a, b) and not same_bits(a, b):
                raise self._differs(variant, f"result {k} by the op with other values than by Python", "", "")
        variant.checked_at = self._count()
        return made

    def _check_steps(self, variant: Variant, call: Call) -> None:
        """What Python does in this call, compared: on tensors without values, as those of its own wait."""
        made = [x if k in variant.pins else sample(x, x.requires_grad) for k, x in enumerate(call.leaves)]
        call = call.instead(made)
        numbers = tuple([call.numbers[k] for k in variant.flowing])
        state = _core.random_state()
        try:
            returned, seen = None, None
            if variant.seen is not None:
                with suppress(RuntimeError):  # it reads a value
                    returned, seen = self._follow(None, True, call, numbers)
            if seen is None or seen != variant.seen or shape_of(flat(returned, [])) != variant.shape:
                tracer = Tracer(self.name, made)
                returned, _ = self._follow(tracer, True, call, numbers)
                if tracer.failure is not None:  # caught by the program
                    raise tracer.failure
                self._compare(variant, tracer, returned, call)
        finally:
            _core.set_random_state(*state)
        variant.checked_at = self._count()

    def _compare(self, variant: Variant, tracer: Tracer, returned: Any, call: Call) -> None:
        numbers = [call.numbers[k] for k in variant.flowing]
        flows = {at: k for at, k in variant.flows.items() if _is_given(tracer, at, numbers[k])}
        tracer.lift(flows, letters_of(numbers))
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
        if given_by(tracer, outputs) != variant.gives:
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
        if self.plain_calls:
            why = "no op was made of them, or what they go by keeps changing"
            lines.append(f"  {self.plain_calls} more ran as Python has them: {why}")
        for found in self.variants.values():
            for v in found:
                more = f" and {len(v.flowing)} numbers" if v.flowing else ""
                if v.refused:
                    lines.append(f"  {len(v.steps.steps)} ops: not one op, so they run one by one")
                    continue
                lines.append(f"  {len(v.steps.steps)} ops on {len(v.operands)} tensors{more}")
        return "\n".join(lines)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same, bit for bit, NaNs of any kind alike."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _put_back(variant: Variant, before: list[Any]) -> None:
    """The buffers that it writes, as they were."""
    with _core.ModeSwitch(False):
        for buffer, value in zip(variant.written, before):
            buffer.copy_(value)


def _is_given(tracer: Tracer, at: tuple[int, int], number: Any) -> bool:
    """Whether a run gave a step the call's own number."""
    step, i = at
    if step >= len(tracer.steps) or i >= len(tracer.steps[step].args):
        return False
    kind, x = tracer.steps[step].args[i]
    return kind == "number" and same_number(x, number)
