"""Dims known to be equal, as rewriting: equal dims have one canonical form.

    slot     -> dim      a symbol, wherever it occurs; the dim's canonical form does not name it
    quotient -> dim      wherever it occurs: s0//2 -> 0
    n * product -> dim   in every sum it occurs in: s0*s1 -> s2*s3, so s4*s0*s1 + s5 -> s4*s2*s3 + s5;
                         not inside a quotient

It ends: a symbol or quotient is gone once it is replaced, and a product is replaced by smaller ones, by
degree first (graded lexical order, which multiplying keeps). Rules that a new one changes are stated anew.
Where two rules fit one product, the way not taken must lead to the same form: that is stated too
(Buchberger's completion; s0*s1 -> s2 and s1*s3 -> s4 say that s2*s3 is s0*s4), for products that equal
products, of few factors. Beyond, equal dims may keep two forms; who needs their equality does without.
"""

from __future__ import annotations

from collections import Counter
from math import lcm

from kiln.graph.size import (
    Dim,
    Monomial,
    Size,
    leading,
    lone_quotient,
    monomial_dim,
    quotients_of,
    reduced,
    single_slot,
    slots_named,
    substitute,
    symbol,
    terms,
)

_MOST, _FACTORS = 40, 6  # rules of products that are completed, by products of so many factors

Product = tuple[int, Monomial]


class Equalities:
    """What a graph's checks say about its sizes."""

    def __init__(self) -> None:
        self._slots: dict[int, Dim] = {}
        self._quotients: dict[Size, Dim] = {}
        self._products: dict[Product, Dim] = {}
        self._canonical: dict[Size, Dim] = {}  # of dims asked for since the rules last grew

    def copy(self) -> Equalities:
        """The same knowledge, to grow by itself."""
        made = Equalities()
        made._slots, made._quotients = dict(self._slots), dict(self._quotients)
        made._products = dict(self._products)
        return made

    def canonical(self, dim: Dim) -> Dim:
        """The one form of all dims known to be equal to `dim`."""
        if isinstance(dim, int) or not (self._slots or self._quotients or self._products):
            return dim
        found = self._canonical.get(dim)
        if found is None:
            found = substitute(dim, self._root, self._divided if self._quotients else None)
            found = self._canonical[dim] = self._rewritten(found) if self._products else found
        return found

    def _divided(self, quotient: Dim) -> Dim:
        known = self._quotients.get(quotient) if isinstance(quotient, Size) else None
        return quotient if known is None else self.canonical(known)

    def _root(self, slot: int) -> Dim:
        found = self._slots.get(slot)
        if found is None:
            return symbol(slot)
        root = self._slots[slot] = self.canonical(found)
        return root

    def _rewritten(self, dim: Dim) -> Dim:
        """`dim` with no product in it that a rule replaces."""
        found = next((step for term in terms(dim) if (step := self._step(*term)) is not None), None)
        while found is not None:
            dim = dim - found[0] + found[1]
            found = next((step for term in terms(dim) if (step := self._step(*term)) is not None), None)
        return dim

    def _step(self, monomial: Monomial, many: int) -> tuple[Dim, Dim] | None:
        """A multiple of `monomial` and what it is replaced by; None if no rule fits."""
        for (least, product), dim in self._products.items():
            times = many // least
            if times and len(product) <= len(monomial) and not (Counter(product) - Counter(monomial)):
                rest = monomial_dim(tuple((Counter(monomial) - Counter(product)).elements()))
                return monomial_dim(monomial) * (times * least), rest * dim * times
        return None

    def state(self, a: Dim, b: Dim) -> bool:
        """Makes two dims equal; False if they were known to be."""
        a, b = reduced(self.canonical(a), self.canonical(b))
        if a == b:
            return False
        if isinstance(a, int) or single_slot(a) < single_slot(b):
            a, b = b, a
        if not isinstance(a, Size):
            raise ValueError(f"{a} and {b} differ")
        self._canonical.clear()
        slot = single_slot(a)
        if slot >= 0 and slot not in slots_named(b):
            self._slots[slot] = b
            self._state_anew(frozenset((slot,)))
        elif given := lone_quotient(a - b):
            self._quotients[given[0]] = given[1]
            self._state_anew(slots_named(given[0]), given[0])
        elif isinstance(a - b, int):
            raise ValueError(f"{a} and {b} differ")
        else:
            self._state_product(a - b)
        return True

    def _state_anew(self, slots: frozenset[int], new: Dim = 0) -> None:
        """States the rules again whose dims name one of the slots that a rule was made for."""
        changed: list[tuple[Dim, Dim]] = []
        for (many, product), dim in list(self._products.items()):
            left = monomial_dim(product) * many
            if slots & (slots_named(left) | slots_named(dim)):
                del self._products[many, product]
                changed.append((left, dim))
        for found, dim in list(self._quotients.items()):
            apart = new == 0 or (found != new and new in quotients_of(found) | quotients_of(dim))
            if apart and slots & (slots_named(found) | slots_named(dim)):
                del self._quotients[found]
                changed.append((found, dim))
        for pair in changed:
            self.state(*pair)

    def _state_product(self, zero: Dim) -> None:
        """The rule that the largest product of `zero` equals the rest, and what it says beside the others."""
        zero, _ = reduced(zero, 0)
        monomial, many = leading(zero)
        zero, many = (zero, many) if many > 0 else (-zero, -many)
        left = monomial_dim(monomial) * many
        if single_slot(left) >= 0:
            self.state(left, left - zero)
            return
        others = {
            p: dim
            for p, dim in self._products.items()
            if not (Counter(monomial) - Counter(p[1])) and p[0] >= many
        }
        for other in others:
            del self._products[other]
        self._products[many, monomial] = left - zero
        for (n, product), dim in others.items():
            self.state(monomial_dim(product) * n, dim)
        if len(self._products) <= _MOST:
            for a, b in self._pairs(many, monomial):
                self.state(a, b)

    def _pairs(self, many: int, monomial: Monomial) -> list[tuple[Dim, Dim]]:
        """Both forms of the least product that the rule for `monomial` and another one fit."""
        dim, found = self._products.get((many, monomial)), []
        if dim is None or len(terms(dim)) > 1:
            return []
        mine = Counter(monomial)
        for (n, product), other in self._products.items():
            theirs, common = Counter(product), lcm(many, n)
            small = len(terms(other)) == 1 and (mine | theirs).total() <= _FACTORS
            if small and mine & theirs and product != monomial:
                ours = monomial_dim(tuple((theirs - mine).elements())) * (common // many)
                rest = monomial_dim(tuple((mine - theirs).elements())) * (common // n)
                found.append((ours * dim, rest * other))
        return found
