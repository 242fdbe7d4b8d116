"""The mistakes that PyTorch's own tables of operations, modules and optimizers declare, made on kiln.

    python -m kiln.testing.declared_errors [add nn.BatchNorm1d Adam ...]

Each entry of those tables is a call that must fail, the type of its error, and an expression that PyTorch's
tests look for in the text. kiln must fail with an error that the same `except` catches, in words in which the
expression is found. What differs on purpose stands in KNOWN with its reason. Of each difference one line is
printed; exit status 1 if there is any other, or one of KNOWN is met no more.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import kiln
from kiln.testing.opinfo import operations
from kiln.testing.peer_calls import Arguments, Outcome, Skip, call, error_difference, kiln_function, torch

# (name, difference, why): regular expressions; the name from its beginning, the difference anywhere
KNOWN = [
    ("", "no error, PyTorch raises TypeError", "a number may stand for a tensor"),
    ("", "no error.*(Expected out tensor|tensor out)", "out= takes what it can hold"),
    ("", "no error.*memory location", "overlapping memory: all is read before it is written"),
    ("", "'(unsupported operation|the written-to)", "out= is not resized, which is looked at first"),
    ("arange", "not resized", "out= is not resized, which is looked at first"),
    ("signal", "'expects float32 or float64", "the dtype is named as kiln's"),
    ("(amax|amin|aminmax)", "64 dims", "24 dims at most"),
    ("(lin|log)space", "received an invalid", "the argument that is wrong is named"),
    ("narrow_copy", "", "told as narrow's"),
    ("multinomial", "expects Long tensor out", "what is drawn from is looked at before out="),
    ("multinomial", "number of categories", "more than 2^24 weights are taken"),
    ("nn.functional.embedding", "'weight' must be", "told by what is first asked of it"),
    ("nn.NLLLoss", "no error", "a weight of another dtype is converted"),
]  # fmt: skip


class Mistake(NamedTuple):
    """One call that must fail: whose, its outcomes on PyTorch and on kiln, the words looked for."""

    name: str
    theirs: Outcome
    mine: Outcome
    words: str

    @property
    def difference(self) -> str | None:
        """How kiln's error differs; None if it does not, or PyTorch raises none."""
        if self.theirs.error is None:
            return None
        what = error_difference(self.theirs, self.mine)
        if what is None and not re.search(self.words, str(self.mine.error)):
            what = f"says {str(self.mine.error)[:160]!r}; PyTorch's tests look for '{self.words}'"
        return what


# ---- operations ----


def of_operations(wanted: list[str]) -> Iterator[Mistake]:
    """The mistakes of operations."""
    for name, op in operations().items():
        function = kiln_function(op.op, op.name) if op.error_inputs_func is not None else None
        if function is None or (wanted and name not in wanted):
            continue
        for wrong in op.error_inputs("cpu"):
            try:
                mine = call(kiln, function, wrong.sample_input)
            except Skip:
                continue
            yield Mistake(name, call(torch, op.op, wrong.sample_input), mine, wrong.error_regex)


# ---- modules and optimizers ----


class Objects(Arguments):
    """Arguments of a class: parameters stay parameters, and one that is given twice is one."""

    def __init__(self, library: Any) -> None:
        super().__init__(library)
        self.made: dict[int, Any] = {}

    def tensor(self, value: Any) -> Any:
        """A tensor, or a parameter."""
        if not isinstance(value, torch.nn.Parameter):
            return super().tensor(value)
        if id(value) not in self.made:
            self.made[id(value)] = self.library.nn.Parameter(super().tensor(value.detach()))
        return self.made[id(value)]


def outcome(library: Any, run: Callable[[Objects], object]) -> Outcome:
    """What a run with arguments of a library gave."""
    convert = Objects(library)
    try:
        return Outcome(run(convert), None, convert)
    except Skip:
        raise
    except Exception as error:
        return Outcome(None, error, convert)


def of_modules(wanted: list[str]) -> Iterator[Mistake]:
    """The mistakes of modules, in their constructor or when they are called."""
    table: Any = importlib.import_module("torch.testing._internal.common_modules")
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": True}
    for info in table.module_db:
        own = getattr(kiln.nn, info.module_cls.__name__, None)
        if info.module_error_inputs_func is None or own is None or (wanted and info.name not in wanted):
            continue
        for wrong in info.module_error_inputs_func(info, **options):
            both = _outcomes(info.module_cls, own, partial(_called, wrong))
            if both is not None:
                yield Mistake(info.name, *both, wrong.error_regex)


def _called(wrong: Any, made: Any, convert: Objects) -> None:
    begin, inputs = wrong.module_error_input.constructor_input, wrong.module_error_input.forward_input
    module = made(*convert(list(begin.args)), **convert(dict(begin.kwargs)))
    if "FORWARD" in wrong.error_on.name and inputs is not None:
        module(*convert(list(inputs.args)), **convert(dict(inputs.kwargs)))


def of_optimizers(wanted: list[str]) -> Iterator[Mistake]:
    """The mistakes of optimizers, in their constructor or at a step."""
    table: Any = importlib.import_module("torch.testing._internal.common_optimizers")
    for info in table.optim_db:
        name = info.optim_cls.__name__
        own = getattr(kiln.optim, name, None)
        if info.optim_error_inputs_func is None or own is None or (wanted and name not in wanted):
            continue
        for wrong in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
            both = _outcomes(info.optim_cls, own, partial(_stepped, wrong))
            if both is not None:
                yield Mistake(name, *both, wrong.error_regex)


def _stepped(wrong: Any, made: Any, convert: Objects) -> None:
    given = wrong.optimizer_error_input
    optimizer = made(convert(given.params), **convert(dict(given.kwargs)))
    if "STEP" in wrong.error_on.name:
        optimizer.step()


def _outcomes(theirs: Any, own: Any, run: Callable[[Any, Objects], object]) -> tuple[Outcome, Outcome] | None:
    """Of PyTorch's class and kiln's; None if kiln leaves out what the arguments need."""
    try:
        return outcome(torch, lambda c: run(theirs, c)), outcome(kiln, lambda c: run(own, c))
    except Skip:
        return None


# ---- all ----


def main(wanted: list[str]) -> int:
    """Prints the differences; how many there are that are not known, and known ones that are none."""
    seen: Counter[tuple[str, str, str]] = Counter()
    count = wrong = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for source in (of_operations, of_modules, of_optimizers):
            for mistake in source(wanted):
                count, what = count + 1, mistake.difference
                if what is None:
                    continue
                known = [
                    k for k in KNOWN if re.match(k[0], mistake.name) and re.search(k[1], what, re.DOTALL)
                ]
                seen.update(known[:1])
                if not known:
                    wrong += 1
                    print(f"{mistake.name}: {what}"[:400])
    unmet = [k for k in KNOWN if not seen[k] and not wanted]
    for entry in unmet:
        print(f"no longer different: {entry[0]}: {entry[1]}")
    print(f"{count} mistakes, {sum(seen.values())} known differences, {wrong} others")
    return wrong + len(unmet)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
