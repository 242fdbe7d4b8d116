"""A program beside the model it was made of: the same inputs, differences in units in the last place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from kiln import _core
from kiln.export.program import ExportedProgram
from kiln.graph.size import evaluate
from kiln.nn import Module
from kiln.ops.creation.data import from_numpy
from kiln.table.kinds import FLOATS
from kiln.tracing.dims import Range
from kiln.tracing.trees import build, flatten

_WIDE: dict[str, Any] = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}


class Case(NamedTuple):
    """One run: the sizes by name, the largest difference of any output, what went wrong if anything did."""

    sizes: dict[str, int]
    ulp: float
    problem: str


class Verification:
    """What `ExportedProgram.verify` found."""

    def __init__(self, outputs: list[str]) -> None:
        self.cases: list[Case] = []
        self.largest = dict.fromkeys(outputs, 0.0)  # ULP, by output
        self.refused: list[tuple[dict[str, int], str]] = []  # declared sizes that the program does not take

    @property
    def equal(self) -> bool:
        """Whether every case ran, with equal bits; a declared size that is not taken has not run."""
        return bool(self.cases) and not self.refused and not any(c.ulp or c.problem for c in self.cases)

    def __repr__(self) -> str:
        lines = [f"{len(self.cases)} cases: {'equal bits' if self.equal else 'they differ'}"]
        lines += [f"  {name}: {_told(ulp)}" for name, ulp in self.largest.items()]
        lines += [f"  {c.sizes}: {c.problem}" for c in self.cases if c.problem]
        lines += [f"  not taken: {sizes}: {why}" for sizes, why in self.refused]
        return "\n".join(lines)


def _told(ulp: float) -> str:
    return "other dtype or shape" if ulp == float("inf") else f"{int(ulp)} ULP"


def verified(
    program: ExportedProgram, cases: Any, against: Callable[..., Any] | None, seed: int
) -> Verification:
    """See `ExportedProgram.verify`."""
    source, example = program._source
    source = against if against is not None else source
    if source is None:
        raise ValueError("verify: a program that was loaded needs against=, the model it is compared with")
    found = program._captured
    report = Verification([*found.outputs, *(_state_name(found, m) for m in found.mutated)])
    if isinstance(cases, int):
        random = np.random.default_rng(seed)
        for sizes in _sizes(list(found.dims.values()), cases, random):
            leaves = example_leaves(found, sizes, example, random)
            given = iter([leaves[found.distinct.index(k)] for k in found.aliases])
            args, kwargs = build(found.in_tree, given)
            _run(report, program, source, sizes, args, kwargs)
    else:
        for args in cases:
            _run(report, program, source, {}, args if isinstance(args, tuple) else (args,), {})
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
        leaves.append(from_numpy(np.ascontiguousarray(values)).to(dtype))
    return leaves


def _run(
    report: Verification, program: ExportedProgram, source: Any, sizes: dict[str, int], args: Any, kwargs: Any
) -> None:
    found = program._captured
    state = _core.random_state()
    homes = [program._homes[k] for kind, k in found.mutated if kind == "state"]
    written = [held[key] for held, key in homes]
    theirs = list(source.buffers()) if isinstance(source, Module) else []
    before = [(x, x.detach().clone()) for x in {id(x): x for x in (*written, *theirs)}.values()]
    grad = _core.set_grad_enabled(False)
    try:
        copies = [(a.clone() if hasattr(a, "clone") else a) for a in args]
        try:
            result = program(*copies, **kwargs)
        except Exception as refusal:
            _core.set_random_state(*state)
            told = _raised(source, args, kwargs)
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
            wanted = _outputs(source(*args, **kwargs), found, args, _twins(program, source, written))
        except Exception as error:
            report.cases.append(
                Case(sizes, float("inf"), f"the model raises {type(error).__name__}: {error}")
            )
            return
        worst = 0.0
        for name, a, b in zip(report.largest, got, wanted):
            ulp = _difference(a, b)
            worst = max(worst, ulp)
            report.largest[name] = max(report.largest[name], ulp)
        report.cases.append(Case(sizes, worst, ""))
    finally:
        for x, value in before:
            x.copy_(value)
        _core.set_grad_enabled(grad)


def _raised(source: Any, args: Any, kwargs: Any) -> str:
    """What a call raises."""
    try:
        source(*args, **kwargs)
    except Exception as error:
        return str(error)
    return ""


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
