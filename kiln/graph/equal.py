"""Dims known to be equal, as rewriting: equal dims have one canonical form.

    slot  -> dim      a symbol, wherever it occurs; the dim's canonical form does not name it
    whole -> dim      a dim that is no symbol, where it stands alone: s0*s1 -> s2*s3, or s0*s1 -> s0;
                      a quotient wherever it occurs: s0//2 -> 0

It ends: a new rule goes from one canonical form to another, so no rule leads back; rules of whole dims that
a new slot rule changes are stated anew.
"""

from __future__ import annotations

from kiln.graph.size import Dim, Size, lone_quotient, single_slot, slots_named, substitute, symbol


def follows(a: Dim, b: Dim, facts: list[tuple[Dim, Dim]]) -> bool:
    """Whether a == b by facts that each give one symbol: s0*s9 + s0 == s0*s4 + s0*s5 by s9 + 1 == s4 + s5."""
    asked, rest = a - b, [x - y for x, y in facts]
    while rest and asked != 0:
        fact = rest.pop()
        found = ((s, e) for s in sorted(slots_named(fact)) for e in (symbol(s) - fact, symbol(s) + fact))
        if given := next(((s, e) for s, e in found if s not in slots_named(e)), None):

            def solved(slot: int, given: tuple[int, Dim] = given) -> Dim:
                return given[1] if slot == given[0] else symbol(slot)

            asked, rest = substitute(asked, solved), [substitute(r, solved) for r in rest]
    return asked == 0


class Equalities:
    """What a graph's checks say about its sizes."""

    def __init__(self) -> None:
        self._slots: dict[int, Dim] = {}
        self._whole: dict[Size, Dim] = {}
        self._canonical: dict[Size, Dim] = {}  # of dims asked for since the rules last grew

    def copy(self) -> Equalities:
        """The same knowledge, to grow by itself."""
        made = Equalities()
        made._slots, made._whole = dict(self._slots), dict(self._whole)
        return made

    def canonical(self, dim: Dim) -> Dim:
        """The one form of all dims known to be equal to `dim`."""
        if isinstance(dim, int) or not (self._slots or self._whole):
            return dim
        found = self._canonical.get(dim)
        if found is None:
            found = substitute(dim, self._root, self._divided if self._whole else None)
            if isinstance(found, Size) and found in self._whole:
                found = self.canonical(self._whole[found])
            self._canonical[dim] = found
        return found

    def _divided(self, quotient: Dim) -> Dim:
        known = self._whole.get(quotient) if isinstance(quotient, Size) else None
        return quotient if known is None else self.canonical(known)

    def _root(self, slot: int) -> Dim:
        found = self._slots.get(slot)
        if found is None:
            return symbol(slot)
        root = self._slots[slot] = self.canonical(found)
        return root

    def state(self, a: Dim, b: Dim) -> bool:
        """Makes two dims equal; False if they were known to be."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return False
        if isinstance(a, int) or single_slot(a) < single_slot(b):
            a, b = b, a
        slot = single_slot(a)
        if slot >= 0 and slot in slots_named(b):
            a, b, slot = b, a, -1
        if not isinstance(a, Size):
            raise ValueError(f"{a} and {b} differ")
        self._canonical.clear()
        if slot < 0:
            a, b = lone_quotient(a - b) or (a, b)
            assert isinstance(a, Size)
            self._whole[a] = b
            return True
        self._slots[slot] = b
        changed = [(x, y) for x, y in self._whole.items() if slot in slots_named(x) | slots_named(y)]
        for x, _ in changed:
            del self._whole[x]
        for x, y in changed:
            self.state(x, y)
        return True
