"""Which steps of a program are the calls of which module of a model.

    modules   (name, first name): every module below the root, in order; of one that has two names, twice
    tied      (name, which state): further names of parameters and buffers
    calls     in the order in which they began: those inside a call stand after it

While a program is made, calls are noted by the steps and values of its run; then by nodes of its graph, where
input k is k and node k is the number of inputs + k, so that a file keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.tracing.trees import Tree
from kiln.tuples import NamedTuple

UNKNOWN = -1  # a value that a program does not have


class ModuleCall(NamedTuple):
    """A call of a module: its steps from `first` on, before `last`; the values of its tensors."""

    module: str
    first: int
    last: int
    given: tuple[int, ...]
    returned: tuple[int, ...]
    states: tuple[tuple[int, int], ...]  # of its own buffers that it changed: which state, its value then
    in_tree: Tree | None = None  # (args, kwargs) and the result, where its signature is kept
    out_tree: Tree | None = None


class Hierarchy(NamedTuple):
    """The modules of a model and their calls."""

    modules: tuple[tuple[str, str], ...]
    tied: tuple[tuple[str, int], ...]
    calls: tuple[ModuleCall, ...]

    def in_graph(self, begins: Sequence[int], values: dict[int, int]) -> Hierarchy:
        """The same by nodes: `begins` says with how many nodes before it each step begins, `values` which
        input or node of the graph each value is.
        """

        def of(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([values.get(k, UNKNOWN) for k in numbers])

        calls = [
            c._replace(
                first=begins[c.first],
                last=begins[c.last],
                given=of(c.given),
                returned=of(c.returned),
                states=tuple([(which, values.get(k, UNKNOWN)) for which, k in c.states]),
            )
            for c in self.calls
        ]
        return self._replace(calls=tuple(calls))
