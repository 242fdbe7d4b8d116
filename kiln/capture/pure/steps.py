"""A function's ops, written down: what a cell is made of.

    operand  0 .. n-1        tensors (arguments, parameters, constants), then numbers
    step     op(structure; args) -> values           args: ("value", k) | ("number", x) | ("operand", k)

A value is what a tensor held, with its history, at one moment: a write makes a new one. Steps stand in the
order in which they ran, which is the order that backward goes by.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln.codegen.store.identity import digest

Argument = tuple[str, Any]

# What tensors do that is no op of the table: an alias without history; a new content of memory that is seen
# through views: `write` puts a value at places of a whole, `strided` sees places of a whole.
DETACH, WRITE, STRIDED, CAST = "detach", "write", "strided", "cast"


class Step(NamedTuple):
    """One op, or one of the above (then `op` is its name)."""

    op: Any
    structure: tuple[Any, ...]
    args: tuple[Argument, ...]
    outs: tuple[int, ...]
    dtypes: tuple[str, ...]
    ones: tuple[tuple[int, ...], ...]  # per result: which sizes are 1
    history: bool  # gradients were recorded

    @property
    def name(self) -> str:
        """What it is called."""
        return self.op if isinstance(self.op, str) else str(self.op.name)

    @property
    def flows(self) -> bool:
        """Whether gradients of its results come to its arguments."""
        differentiable = self.op != DETACH if isinstance(self.op, str) else self.op.differentiable
        return self.history and bool(differentiable)

    def told(self) -> str:
        """It in a few words, for errors: "mul(., 2.0) of float32"."""
        told = {"value": ".", "operand": "drawn"}
        args = ", ".join(told.get(kind, repr(x)) for kind, x in self.args)
        structure = [x for x in self.structure if x is not None and x not in ("t", "f", "i", "b")]
        more = f" {tuple(structure)}" if structure else ""
        return f"{self.name}({args}){more} of {', '.join(self.dtypes)}"

    def what(self) -> tuple[Any, ...]:
        """All that says what it computes."""
        own = self.op if isinstance(self.op, str) else self.op.identity or f"{self.op.name} {id(self.op)}"
        return (own, repr(self.structure), repr(self.args), self.outs, self.dtypes, self.ones, self.history)


class Steps(NamedTuple):
    """Steps on so many tensors and numbers, and the values that are their results."""

    tensors: int
    numbers: str  # a letter each: "f" or "i"
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    # a tensor that several steps use is an operand once for each, so that the engine adds what they give one
    # after another, as it would without a cell: the first operand of each of the last ones of `tensors`
    again: tuple[int, ...] = ()

    def uses(self) -> dict[tuple[int, int], int]:
        """(step, argument) -> the operand that gets the gradient it gives."""
        first = self.tensors - len(self.again)
        left = {k: [k, *(first + j for j, own in enumerate(self.again) if own == k)] for k in range(first)}
        # one that has no operand for each use keeps its last
        return {at: left[k].pop(0) if len(left[k]) > 1 else left[k][0] for at, k in using(self.steps, first)}

    def transpositions(self) -> dict[int, bool]:
        """The values that are operands transposed: whether rows and columns have changed places."""
        found = transpositions(self.steps, self.tensors)
        return {k: transposed for k, (_, transposed) in found.items()}

    def identity(self) -> str | None:
        """The same text for the same computation in every process; None if an op has none."""
        if any(not isinstance(s.op, str) and s.op.identity is None for s in self.steps):
            return None
        text = repr((self.tensors, self.numbers, [s.what() for s in self.steps], self.results, self.again))
        return f"cell {digest(b'cell', text.encode()).hex()}"

    def needed(self) -> Steps:
        """Without the steps that no result needs."""
        wanted, kept = set(self.results), []
        for step in reversed(self.steps):
            if wanted.intersection(step.outs):
                kept.append(step)
                wanted.update(k for kind, k in step.args if kind == "value")
        return self._replace(steps=tuple(reversed(kept)))


def using(steps: tuple[Step, ...], tensors: int) -> list[tuple[tuple[int, int], int]]:
    """((step, argument), operand) wherever a gradient may come to an operand from, in the engine's order.

    Products come to a matrix through its transpositions too, one by one.
    """
    found = []
    roots = {k: root for k, (root, _) in transpositions(steps, tensors).items()}
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if step.flows:
            values = [(i, k) for i, (kind, k) in enumerate(step.args) if kind == "value"]
            places = [(i, k if k < tensors else roots.get(k)) for i, k in values]
            found += [((at, i), k) for i, k in places if k is not None]
    return found


def transpositions(steps: tuple[Step, ...], tensors: int) -> dict[int, tuple[int, bool]]:
    """The values that are operands transposed: of which, and whether rows and columns have changed places."""
    found: dict[int, tuple[int, bool]] = {}
    for step in steps:
        if isinstance(step.op, str) or step.op.kind != "permute" or step.structure[1] != (1, 0):
            continue
        (_, k), (out,) = step.args[0], step.outs
        if step.history and (k < tensors or k in found):
            root, transposed = found.get(k, (k, False))
            found[out] = root, not transposed
    return found
