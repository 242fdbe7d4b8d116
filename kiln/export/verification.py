"""A program beside the model it was made of: the same inputs, differences in units in the last place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from kiln import _core
from kiln.export.program import ExportedProgram
from kiln.graph.size import evaluate
from kiln.nn import Module
from kiln.ops.creation.data import from_numpy
from kiln.ops.creation.dtypes import finfo
from kiln.table.kinds import FLOATS
from kiln.tracing.dims import Range
from kiln.tracing.trees import build, flatten

Run = Callable[[dict[str, Any]], list[Any]]
_WIDE: dict[str, Any] = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}


class Case(NamedTuple):
    """One run: the sizes by name, the largest difference of any output, what went wrong if anything did."""

    sizes: dict[str, int]
    ulp: float
    problem: str


class Verification:
    """What a comparison found: `ExportedProgram.verify`, or `beside`."""

    def __init__(self, outputs: list[str], bounds: Mapping[str, float] | None = None) -> None:
        self.cases: list[Case] = []
        self.largest = dict.fromkeys(outputs, 0.0)  # ULP, by output
        self.bounds = dict.fromkeys(outputs, 0.0)  # what they may be, by output; 0: equal bits
        self.of_dtype = bounds or {}
        self.refused: list[tuple[dict[str, int], str]] = []  # declared sizes that the program does not take

    @property
    def equal(self) -> bool:
        """Whether every case ran, with equal bits; a declared size that is not taken has not run."""
        return bool(self.cases) and not self.refused and not any(c.ulp or c.problem for c in self.cases)

    @property
    def holds(self) -> bool:
        """Whether every case ran, and each output is within its bound."""
        ran = bool(self.cases) and not self.refused and not any(c.problem for c in self.cases)
        return ran and all(ulp <= self.bounds[name] for name, ulp in self.largest.items())

    def __repr__(self) -> str:
        found = "equal bits" if self.equal else "within the bounds" if self.holds else "they differ"
        lines = [f"{len(self.cases)} cases: {found}"]
        lines += [f"  {name}: {_told(ulp)}{self._allowed(name)}" for name, ulp in self.largest.items()]
        lines += [f"  {c.sizes}: {c.problem}" for c in self.cases if c.problem]
        lines += [f"  not taken: {sizes}: {why}" for sizes, why in self.refused]
        return "\n".join(lines)

    def _allowed(self, name: str) -> str:
        bound = self.bounds[name]
        return f" of the largest element, at most {bound:.0f} expected" if bound else ""

    def add(self, sizes: dict[str, int], got: list[Any], wanted: list[Any]) -> None:
        """A case by what a program gave and what was wanted."""
        worst = 0.0
        if len(got) != len(wanted):
            problem = f"the other gives {len(wanted)} outputs for {len(got)}"
            self.cases.append(Case(sizes, float("inf"), problem))
            return
        for name, a, b in zip(self.largest, got, wanted):
            self.bounds[name] = bound = self.of_dtype.get(a.dtype.name, 0.0)
            ulp = _apart(a, b) if bound else _difference(a, b)
            worst = max(worst, ulp)
            self.largest[name] = max(self.largest[name], ulp)
        self.cases.append(Case(sizes, worst, ""))


def _told(ulp: float) -> str:
    return "other dtype, shape or values" if ulp == float("inf") else f"{int(ulp)} ULP"


class _Model:
    """What a program was made of: a module or a function."""

    def __init__(self, program: ExportedProgram, source: Any) -> None:
        self.program, self.source = program, source
        self.buffers = list(source.buffers()) if isinstance(source, Module) else []

    def outputs(self, args: Any, kwargs: Any, written: list[Any]) -> list[Any]:
        """The results of a call, and what it wrote."""
        found = self.program._captured
        return _outputs(self.source(*args, **kwargs), found, args, _twins(self.program, self.source, written))

    def raised(self, args: Any, kwargs: Any) -> str:
        """What a call raises."""
        try:
            self.source(*args, **kwargs)
        except Exception as error:
            return str(error)
        return ""


class _Artifact:
    """What runs on arrays, made of a program."""

    buffers: tuple[Any, ...] = ()

    def __init__(self, program: ExportedProgram, run: Run) -> None:
        self.program, self.run = program, run

    def outputs(self, args: Any, kwargs: Any, written: list[Any]) -> list[Any]:
        """What it gives."""
        found, given = self.program._captured, list[Any]()
        flatten((args, kwargs), given)
        feeds = {x.name: _array(given[k]) for x, k in zip(found.inputs, found.distinct)}
        names = [found.state[k].name for kind, k in found.mutated if kind == "state"]
        return [_tensor(x) for x in self.run({**feeds, **dict(zip(names, map(_array, written)))})]

    def raised(self, args: Any, kwargs: Any) -> str:
        """Nothing: what a program raises by values others do not."""
        return ""


def _array(x: Any) -> Any:
    """A tensor as NumPy's array, bfloat16 as the bits in uint16."""
    x = x.detach()
    return x.view(_core.int16).numpy().view(np.uint16) if x.dtype is _core.bfloat16 else x.numpy().copy()


def _tensor(x: Any) -> Any:
    if x.dtype == np.uint16:
        return from_numpy(np.array(x, order="C").view(np.int16)).view(_core.bfloat16)
    return from_numpy(np.array(x, order="C"))


def beside(
    program: ExportedProgram,
    run: Run,
    bounds: Mapping[str, float] | None = None,
    cases: Any = 8,
    seed: int = 0,
) -> Verification:
    """A program beside what was made of it for elsewhere, on the `cases` that `ExportedProgram.verify` takes:
    how many random sizes, or arguments of calls.

    `run` is given arrays of NumPy by name, of the inputs and of tensors that the program writes, and gives a
    list: the outputs, then what the written ones are afterwards; bfloat16 is its bits in uint16. `bounds`: by
    dtype, how far an output may be away, in ULP of its largest element; others are of equal bits.
    ValueError for a program that draws random numbers, which are other ones elsewhere.
    """
    if program._captured.random:
        raise ValueError(
            f"verify: {program._captured.name} draws random numbers: others elsewhere, which say nothing"
        )
    return _compared(program, _Artifact(program, run), cases, seed, bounds)


def verified(
    program: ExportedProgram, cases: Any, against: Callable[..., Any] | None, seed: int
) -> Verification:
    """See `ExportedProgram.verify`."""
    source = against if against is not None else program._source[0]
    if source is None:
        raise ValueError("verify: a program that was loaded needs against=, the model it is compared with")
    return _compared(program, _Model(program, source), cases, seed, None)


def _compared(
    program: ExportedProgram, twin: _Model | _Artifact, cases: Any, seed: int, bounds: Any
) -> Verification:
    found, example = program._captured, program._source[1]
    report = Verification([*found.outputs, *(_state_name(found, m) for m in found.mutated)], bounds)
    if isinstance(cases, int):
        random = np.random.default_rng(seed)
        for sizes in _sizes(list(found.dims.values()), cases, random):
            leaves = example_leaves(found, sizes, example, random)
            given = iter([leaves[found.distinct.index(k)] for k in found.aliases])
            args, kwargs = build(found.in_tree, given)
            _run(report, program, twin, sizes, args, kwargs)
    else:
        for args in cases:
            _run(report, program, twin, {}, args if isinstance(args, tuple) else (args,), {})
    return report


def _state_name(found: Any, which: tuple[str, int]) -> str:
    kind, k = which
    return str(found.inputs[k].name if kind == "input" else found.state[k].name) + " afterwards"


def _corners(dim: Range) -> list[int]:
    most = dim.max if dim.max is not None else max(dim.example, dim.min) * 2 + 7
    wanted = [dim.min, max(dim.min, 1), max(dim.min, 3) | 1, most]
    return list(dict.fromkeys(n for n in wanted if dim.min <= n <= most))


def _sizes(dims: list[Range], cases: int, random: Any) -> Iterator[dict[str, int]]:
    """Sizes by name: each corner with the others as in the example, all least, all largest, random ones."""
    if not dims:
        yield from ({} for _ in range(max(1, cases)))
        return
    example = {dim.name: dim.example for dim in dims}
    yield example
    for dim in dims:
        for n in _corners(dim):
            yield {**example, dim.name: n}
    yield {dim.name: _corners(dim)[0] for dim in dims}
    yield {dim.name: _corners(dim)[-1] for dim in dims}

    def drawn() -> Iterator[dict[str, int]]:
        while True:
            yield {
                d.name: int(random.integers(d.min, min(_corners(d)[-1], 4 * d.example + 8) + 1)) for d in dims
            }

    yield from islice(drawn(), cases)


def example_leaves(found: Any, sizes: dict[str, int], example: Any = None, random: Any = None) -> list[Any]:
    """A tensor for every input, of these sizes; whole numbers are drawn from those of the example, or
    0 and 1.
    """
    random = np.random.default_rng(0) if random is None else random
    slots: dict[int, int] = {}
    for dim in found.dims.values():
        at = sizes[dim.name]
        while evaluate(dim.symbol, {dim.slot: at}.__getitem__) < sizes[dim.name]:
            at += 1
        slots[dim.slot] = at
    kept: list[Any] = []
    if example is not None:
        given: list[Any] = []
        for part in example:
            flatten(part, given)
        kept = [given[k] for k in found.distinct] if len(given) == len(found.aliases) else []
    leaves = []
    for k, own in enumerate(found.inputs):
        shape = tuple([evaluate(n, slots.__getitem__) for n in own.shape])
        dtype = getattr(_core, own.dtype)
        if own.dtype in FLOATS:
            values = random.standard_normal(shape)
        elif own.dtype == "bool":
            values = random.random(shape) < 0.5
        else:
            low, high = 0, 1
            if kept and kept[k].numel():
                low, high = int(kept[k].min()), int(kept[k].max())
            values = random.integers(low, high + 1, shape)
        leaves.append(from_numpy(np.array(values, order="C")).to(dtype))
    return leaves


def _run(
    report: Verification,
    program: ExportedProgram,
    twin: _Model | _Artifact,
    sizes: dict[str, int],
    args: Any,
    kwargs: Any,
) -> None:
    found = program._captured
    state = _core.random_state()
    homes = [program._homes[k] for kind, k in found.mutated if kind == "state"]
    written = [held[key] for held, key in homes]
    before = [(x, x.detach().clone()) for x in {id(x): x for x in (*written, *twin.buffers)}.values()]
    grad = _core.set_grad_enabled(False)
    try:
        copies = [(a.clone() if hasattr(a, "clone") else a) for a in args]
        try:
            result = program(*copies, **kwargs)
        except Exception as refusal:
            _core.set_random_state(*state)
            told = twin.raised(args, kwargs)
            if told and str(refusal).endswith(told):  # the same error
                report.cases.append(Case(sizes, 0.0, ""))
            elif isinstance(refusal, RuntimeError):
                report.refused.append((sizes, str(refusal)))
            else:
                report.cases.append(Case(sizes, float("inf"), f"the program raises {refusal!r}"))
            return
        got = _outputs(result, found, copies, written)
        for x, value in before:
            x.copy_(value)
        _core.set_random_state(*state)
        try:
            wanted = twin.outputs(args, kwargs, written)
        except Exception as error:
            report.cases.append(
                Case(sizes, float("inf"), f"the other raises {type(error).__name__}: {error}")
            )
            return
        report.add(sizes, got, wanted)
    finally:
        for x, value in before:
            x.copy_(value)
        _core.set_grad_enabled(grad)


def _outputs(result: Any, found: Any, args: Any, written: list[Any]) -> list[Any]:
    """The tensors of a result, then what was written, as they are now."""
    tensors: list[Any] = []
    flatten(result, tensors)
    given: list[Any] = []
    for x in args:
        flatten(x, given)
    inputs = [given[found.distinct[k]] for kind, k in found.mutated if kind == "input"]
    kinds = iter(inputs), iter(written)
    changed = [next(kinds[kind == "state"]) for kind, _ in found.mutated]
    return [*tensors, *(x.detach().clone() for x in changed)]


def _twins(program: ExportedProgram, source: Any, written: list[Any]) -> list[Any]:
    """The model's own tensors where the program wrote its."""
    if not isinstance(source, Module):
        return written
    named = dict(source.named_buffers())
    return [
        named.get(program._captured.state[k].name, x)
        for x, (_, k) in zip(written, [m for m in program._captured.mutated if m[0] == "state"])
    ]


def _difference(a: Any, b: Any) -> float:
    """The largest distance of two tensors in ULP: 0 for equal bits and for NaNs, 1 between 0.0 and -0.0; of
    numbers that are no floats, 0 or infinity.
    """
    if a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return float("inf")
    kind = a.dtype.name
    if kind not in FLOATS:
        return 0.0 if bool((a == b).all()) else float("inf")
    bits = getattr(_core, {2: "int16", 4: "int32", 8: "int64"}[np.dtype(_WIDE[kind]).itemsize])
    x, y = (t.detach().contiguous().view(bits).numpy().astype(np.int64) for t in (a, b))
    nan = a.isnan().numpy() & b.isnan().numpy()
    lowest = np.int64(np.iinfo(_WIDE[kind]).min)
    first, second = (np.where(t < 0, lowest - t, t).astype(np.float64) for t in (x, y))
    apart = np.maximum(np.abs(first - second), 1)
    return float(np.where(nan | (x == y), 0, apart).max(initial=0))


def _apart(a: Any, b: Any) -> float:
    """The largest distance of two tensors of floats in ULP of the largest element; infinity where one has a
    NaN or an infinity and the other not.
    """
    if a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return float("inf")
    x, y = (t.detach().double().numpy() for t in (a, b))
    finite, kind = np.isfinite(x), finfo(a.dtype)
    if not np.array_equal(np.where(finite, 0, x), np.where(np.isfinite(y), 0, y), equal_nan=True):
        return float("inf")
    largest = max(np.abs(x[finite]).max(initial=0), np.abs(y[finite]).max(initial=0), kind.tiny)
    unit = 2.0 ** np.floor(np.log2(largest)) * kind.eps
    return float(np.ceil((np.abs(x[finite] - y[finite]) / unit).max(initial=0)))
