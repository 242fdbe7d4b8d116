"""PyTorch's own samples of its operations, on both libraries.

    python -m kiln.testing.opinfo [--dtypes float32,int64] [--samples 40] [a..l linalg.inv ...]

Every operation of PyTorch's test table that kiln has is called with the table's samples, converted with their
layout in memory, on PyTorch and on kiln. Compared are values, structure, the memory shared with arguments,
errors, methods, in-place forms, `out=`, first and second gradients, and compiled calls with eager ones. Each
operation runs in a process of its own. Of each distinct difference one line is printed, with its smallest
sample; what KNOWN explains is counted. Exit status 1 if there is any other, or an operation did not end well.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import signal
import sys
import types
import unittest
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import kiln
from kiln.testing.compare import dtype_name, first_difference, freeze
from kiln.testing.peer_calls import (
    Outcome,
    Skip,
    call,
    described,
    difference,
    error_difference,
    kiln_function,
    path_of,
    rebound,
    tensors_in,
    torch,
)

DTYPES = "float32,int64,bool,bfloat16,uint8"  # float64 where gradients are compared
LARGEST = 20_000  # elements of a sample
WITH_OUT = 4  # samples with `out=`
COMPILED = 2  # samples compiled too
SECONDS = 900  # for one operation
# values are random, or any
LOOSE = ("bernoulli", "dropout", "empty", "cauchy", "exponential", "geometric", "log_normal", "normal",
         "rand", "multinomial", "nn.functional.rrelu", "uniform")  # fmt: skip

# (operation, check, difference, why): regular expressions, found at the beginning of each
KNOWN = [
    ("", "error", "no error, PyTorch raises TypeError", "a number may stand for a tensor"),
    ("", "error", "no error.*single memory location", "overlapping memory: all is read before it is written"),
    ("", "error", "no error.*Expected out tensor", "out= takes what it can hold"),
    ("", "error", "raises RuntimeError: .*not resized", "out= is not resized"),
    ("nn.functional", "out", ".*unexpected keyword argument 'out'", "no out= in nn.functional"),
    ("(addmv|addbmm|baddbmm)$", "", ".*must not be a floating point", "PyTorch truncates 0.5 to 0"),
    ("addbmm", "inplace", ".*doesn't match", "PyTorch changes the shape of the target"),
    ("as_strided_scatter", "gradient", "values", "PyTorch's is that of another place"),
    ("bernoulli", "call with", "requires_grad=False", "no gradient of zeros"),
    ("(byte|char|short|int|long|half|double|float)$", "", "values", "floats out of an integer's range"),
    ("cosh", "", "values", "PyTorch's is coarse near overflow"),
    ("(cov|nn.functional.binary_cross_entropy)$", "gradient", "values", "PyTorch adds an eps"),
    ("(cumsum|cumprod|bernoulli)", "out of int32", "raises", "out= does not choose the dtype"),
    ("div.(trunc|floor)", "", "values", "16 bits: rounded once, at the end"),
    ("nn.functional.embedding$", "call", "raises NotImplementedError", "no sparse gradients"),
    ("float_power", "out of float64", "", "float64 only"),
    ("i0|special.*(i1|bessel)", "", "values", "limits at infinity"),
    ("(kthvalue|topk|sort)$", "", "values of item 1", "of equals the earlier"),
    ("linalg.(eigh|svd|qr)|(svd|pca)_lowrank|svd$", "(call|method)", "values", "signs of vectors are free"),
    ("(svd|pca)_lowrank", "gradient", "values", "of vectors whose signs are free, from numbers drawn"),
    ("masked.logaddexp", "gradient", "values", "of two numbers masked: 0, PyTorch's is NaN"),
    ("nn.functional.hardsigmoid", "gradient", "values", "PyTorch's sixth is float32's"),
    ("linalg.(householder|lstsq)", "(call|gradient)", "(requires_grad|NoneType)", "of empty results"),
    ("nn.functional.local_response_norm", "", "raises NotImplementedError", "not of integers"),
    ("normal", "call with", "requires_grad=False", "no gradient of a constant"),
    ("linalg.norm.sub", "gradient", "values", "second derivatives at 0"),
    ("masked.prod", "", "memory", "a copy of a number"),
    ("mvlgamma|(special.)?polygamma", "", "values", "PyTorch's is coarse near the poles"),
    ("narrow_copy|multinomial|nonzero|vstack", "(error|out)", "(raises|no error)", "other checks"),
    ("nn.functional.triplet_margin_with", "", "raises TypeError: pairwise", "PyTorch's module is given"),
    ("to_sparse", "name", "", "no sparse tensors"),
    ("unflatten", "method", "raises TypeError: super", "PyTorch's method calls its own class"),
]  # fmt: skip


def operations() -> dict[str, Any]:
    """PyTorch's table of samples by name. The test library that its package imports is not needed for it."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        unused: Any = types.ModuleType("expecttest")
        unused.TestCase, unused.assert_expected_inline = unittest.TestCase, None
        sys.modules["expecttest"] = unused
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table: Any = importlib.import_module("torch.testing._internal.common_methods_invocations")
    return {op.full_name: op for op in table.op_db}


class Difference(NamedTuple):
    """One difference: which check of which operation, what differs, of which dtype, and the sample."""

    op: str
    check: str
    what: str
    dtype: str
    size: int
    sample: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it distinct: numbers in a message do not."""
        return self.op, self.check, re.sub(r"[(\[].*|-?\d[\d.e+-]*", "", self.what)

    @property
    def reason(self) -> str | None:
        """Why it is right, if it is known."""
        facts = self.op, self.check, self.what
        return next((k[3] for k in KNOWN if all(re.match(p, f, re.DOTALL) for p, f in zip(k, facts))), None)


# ---- the checks ----


def gradients(outcome: Outcome, process: Any, twice: bool) -> Any:
    """Gradients of an outcome's arguments by fixed cotangents, and those of these gradients."""
    library = outcome.arguments.library
    leaves = [x for x in outcome.arguments.tensors if x.requires_grad]
    results = [y for y in tensors_in(process(outcome.value)) if y.requires_grad]
    found = []
    for again in (twice, False) if twice else (False,):
        given = [None] * len(leaves)
        if results and leaves:
            weights = [cotangent(library, n, y) for n, y in enumerate(results)]
            given = library.autograd.grad(results, leaves, weights, create_graph=again, allow_unused=True)
        results = [g for g in given if g is not None and g.requires_grad]
        zero = [library.zeros_like(x) if g is None else g for g, x in zip(given, leaves)]
        found.append([g.detach() for g in zero])
    return found


def cotangent(library: Any, seed: int, y: Any) -> Any:
    """Fixed values in the shape and dtype of y."""
    return library.tensor(np.random.default_rng(seed).uniform(0.5, 1.5, tuple(y.shape)), dtype=y.dtype)


def samples_of(op: Any, dtype: Any, grad: bool, count: int) -> list[Any]:
    """The first samples of an operation that are not too large and not the same."""
    found: dict[str, Any] = {}
    for source in [op.sample_inputs] if grad else [op.sample_inputs, op.reference_inputs]:
        for sample in source("cpu", dtype, requires_grad=grad):
            values = [sample.input, sample.args, sample.kwargs]
            if sum(t.numel() for t in tensors_in(values)) <= LARGEST:
                found.setdefault(described(values), sample)
            if len(found) >= count:
                return list(found.values())
    return list(found.values())


class Checks:
    """All checks of one operation; differences are given to `report`."""

    def __init__(self, op: Any, count: int, report: Callable[[Difference], None]) -> None:
        self.op, self.count, self.report = op, count, report
        self.function = kiln_function(op.op, op.name)
        self.loose = any(n in op.name for n in LOOSE)
        self.calls = 0

    def note(self, check: str, what: str | None, sample: Any, dtype: str) -> None:
        """Counts a comparison, and reports a difference if there is one."""
        self.calls += 1
        if what is not None:
            parts = [described(sample.input), *map(described, sample.args), described(sample.kwargs)]
            size = sum(t.numel() + t.ndim for t in tensors_in((sample.input, sample.args)))
            text = "; ".join(p for p in parts if p)
            self.report(Difference(self.op.full_name, check, what, dtype, size, text))

    def run(self, dtypes: list[str]) -> None:
        """Everything."""
        if self.function is None:
            return
        self.names()
        jobs = [(self.forms, name, False) for name in dtypes]
        if self.op.supports_autograd:
            jobs += [(self.gradient, "float64", True), (self.requires, "float32", True)]
        for check, name, grad in jobs:
            dtype = getattr(torch, name)
            if dtype in self.op.dtypes:
                for n, sample in enumerate(samples_of(self.op, dtype, grad, self.count)):
                    self.guarded(check, sample, name, n)
        if self.op.error_inputs_func is not None:
            for n, wrong in enumerate(self.op.error_inputs("cpu")):
                self.guarded(self.error, wrong.sample_input, "any", n)

    def guarded(self, check: Any, sample: Any, dtype: str, n: int) -> None:
        """A check of one sample, unless that needs what kiln leaves out."""
        try:
            check(sample, dtype, n)
        except Skip:
            pass

    def names(self) -> None:
        """Methods, in-place forms and other names."""
        sample = types.SimpleNamespace(input=None, args=(), kwargs={})
        for form in (self.op.method_variant, self.op.inplace_variant):
            if isinstance(form, (types.FunctionType, functools.partial)) or form is None:
                continue
            if not hasattr(kiln.Tensor, form.__name__):
                self.note("name", f"no Tensor.{form.__name__}", sample, "any")
        for alias in self.op.aliases:
            name = alias.name.removeprefix("torch.")
            if path_of(torch, name) is not None and path_of(kiln, name) is None:
                self.note("name", f"no {name}", sample, "any")

    def forms(self, sample: Any, dtype: str, n: int) -> None:
        """The function, the method, the in-place form, `out=`, compiled."""
        t, k = call(torch, self.op.op, sample), call(kiln, self.function, sample)
        self.note("call", difference(t, k, self.loose), sample, dtype)
        for kind in ("method", "inplace"):
            form = getattr(self.op, f"{kind}_variant")
            written = isinstance(form, (types.FunctionType, functools.partial))
            mine = rebound(form) if written else getattr(kiln.Tensor, getattr(form, "__name__", ""), None)
            if mine is not None and isinstance(sample.input, torch.Tensor):
                what = difference(call(torch, form, sample), call(kiln, mine, sample), self.loose)
                self.note(kind, what, sample, dtype)
        if t.error is None and k.error is None and self.op.supports_out and n < WITH_OUT:
            self.out(sample, dtype, t.value)
        if k.error is None and n < COMPILED:
            self.compiled(sample, dtype)

    def out(self, sample: Any, dtype: str, value: Any) -> None:
        """`out=` of the right dtype, and of others: those are taken where they can hold the result."""

        def like(library: Any, v: Any, other: str) -> Any:
            if isinstance(v, (list, tuple)):
                return tuple(like(library, x, other) for x in v)
            return library.zeros(tuple(v.shape), dtype=getattr(library, other or dtype_name(v.dtype)))

        for other in ("", "float64", "int32"):
            made = functools.partial(like, v=value, other=other)
            t, k = (call(lib, f, sample, made) for lib, f in ((torch, self.op.op), (kiln, self.function)))
            what = difference(t, k, self.loose or bool(other))
            if what and other and what.startswith("no error") and "can't be cast" not in what:
                what = None
            self.note(f"out of {other}" if other else "out", what, sample, dtype)

    def compiled(self, sample: Any, dtype: str) -> None:
        """The compiled call gives the bits of the eager one."""
        program = kiln.compile(lambda *args, **kwargs: self.function(*args, **kwargs), wait=True)
        eager = freeze(call(kiln, self.function, sample).value)
        for turn in ("first", "second"):
            got = call(kiln, program, sample)
            failed = f"raises {got.error!r}" if got.error else None
            what = failed or first_difference(freeze(got.value), eager, True)
            self.note(f"compiled, {turn} call", what, sample, dtype)

    def requires(self, sample: Any, dtype: str, n: int) -> None:
        """Which results require gradients."""
        t, k = call(torch, self.op.op, sample), call(kiln, self.function, sample)
        self.note("call with gradient", difference(t, k, self.loose), sample, dtype)

    def gradient(self, sample: Any, dtype: str, n: int) -> None:
        """First and second gradients."""
        t, k = call(torch, self.op.op, sample), call(kiln, self.function, sample)
        if t.error or k.error or self.loose:
            return
        process = sample.output_process_fn_grad
        twice = self.op.supports_gradgrad and sum(x.numel() for x in t.arguments.tensors) < 500
        both = []
        for outcome, processed in ((t, process), (k, rebound(process))):
            try:
                both.append(outcome._replace(value=gradients(outcome, processed, twice)))
            except Exception as error:
                both.append(outcome._replace(value=None, error=error))
        self.note("gradient", difference(both[0], both[1]), sample, dtype)

    def error(self, sample: Any, dtype: str, n: int) -> None:
        """Calls that must fail."""
        t, k = call(torch, self.op.op, sample), call(kiln, self.function, sample)
        if t.error is not None:
            self.note("error", error_difference(t, k), sample, dtype)


# ---- processes ----


def in_a_child(op: Any, dtypes: list[str], count: int) -> tuple[list[Difference], str]:
    """The differences of one operation, found in a child process, and how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(SECONDS)
        with os.fdopen(writer, "w") as pipe:
            checks = Checks(op, count, lambda d: print(json.dumps(d), file=pipe, flush=True))
            try:
                checks.run(dtypes)
                print(json.dumps(f"{checks.calls} comparisons"), file=pipe)
            except BaseException as error:
                print(json.dumps(f"ended by {error!r}"), file=pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = [json.loads(line) for line in pipe]
    status = os.waitpid(child, 0)[1]
    last = lines.pop() if lines and isinstance(lines[-1], str) else f"ended by status {status}"
    return [Difference(*line) for line in lines], last


def picked(op: Any, names: list[str]) -> bool:
    """Whether an operation is one of `names`, or begins with a letter of a range `a..l`."""
    short = re.sub(r"^_*(nn\.functional\.|linalg\.|special\.)?_*", "", op.name).lower()
    ranges = [n.split("..") for n in names if ".." in n]
    return op.name in names or op.full_name in names or any(a <= short[0] <= b for a, b in ranges)


def report(found: list[Difference]) -> int:
    """Prints a line for each distinct difference that nothing explains, with its smallest sample."""
    groups: dict[Any, list[Difference]] = {}
    for d in found:
        if d.reason is None:
            groups.setdefault(d.key, []).append(d)
    for ds in groups.values():
        d = min(ds, key=lambda d: (d.size, len(d.sample)))
        names = ",".join(dict.fromkeys(x.dtype for x in ds))
        print(f"{d.op} [{d.check}] {len(ds)} x {names}: {d.what} | {d.sample[:300]}", flush=True)
    return len(groups)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", default=["a..z"])
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--samples", type=int, default=40)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = known = 0
    for op in operations().values():
        if picked(op, given.names) and kiln_function(op.op, op.name) is not None:
            found, last = in_a_child(op, given.dtypes.split(","), given.samples)
            explained = [d for d in found if d.reason is not None]
            known += len(explained)
            print(f"{op.full_name}: {last}, {len(explained)} differ as known", flush=True)
            bad += report(found) + last.startswith("ended")
    print(f"{bad} differences to look at; {known} comparisons differ as known")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
