"""Symbolic sizes: integer polynomials over the sizes a graph is called with.

    Dim  := int | Size            a Size is never constant: constants are ints
    Size := sum of coefficient * atom * atom * ...
    atom := Symbol(slot)          a run-time integer: a size, a stride, a number argument
          | Quotient(a, b)        a // b for non-negative a and positive b

Sizes are immutable and interned, so equality of normal forms is identity. They never compare by value:
`a < b` on a Size raises, because what a program does may not depend on a particular size. Nor is there
arithmetic with floats: what is remembered of 1 must not be found for 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import gcd
from typing import Any, Union

_keys = count()


class Atom:
    """A factor of a monomial: a run-time integer in slot `slot`, or the quotient of two dims."""

    __slots__ = ("denominator", "key", "numerator", "slot")
    _interned: dict[tuple[Any, ...], Atom] = {}

    slot: int
    numerator: Dim
    denominator: Dim
    key: int

    @staticmethod
    def _intern(slot: int, numerator: Dim, denominator: Dim) -> Atom:
        key = (slot, numerator, denominator)
        atom = Atom._interned.get(key)
        if atom is None:
            atom = Atom()
            atom.slot, atom.numerator, atom.denominator = slot, numerator, denominator
            atom.key = next(_keys)
            atom = Atom._interned.setdefault(key, atom)  # another thread may have been faster
        return atom

    def __repr__(self) -> str:
        return f"s{self.slot}" if self.slot >= 0 else f"({self.numerator})//({self.denominator})"


Monomial = tuple[Atom, ...]


class Size:
    """A sum of integer multiples of products of atoms; at least one product is not empty."""

    __slots__ = ("terms",)
    _interned: dict[tuple[tuple[Monomial, int], ...], Size] = {}

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum(self, other, 1) if isinstance(other, (int, Size)) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _sum(self, other, -1) if isinstance(other, (int, Size)) else NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return _sum(other, self, -1) if isinstance(other, (int, Size)) else NotImplemented

    def __neg__(self) -> Dim:
        return _sum(0, self, -1)

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        found = _products.get((self, other))
        if found is None:
            product: dict[Monomial, int] = {}
            for left, m in terms(self):
                for right, n in terms(other):
                    monomial = tuple(sorted(left + right, key=_atom_key))
                    product[monomial] = product.get(monomial, 0) + m * n
            found = _products[self, other] = _normal(product)
        return found

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return quotient(self, other) if isinstance(other, (int, Size)) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return quotient(other, self) if isinstance(other, (int, Size)) else NotImplemented

    def __lt__(self, other: object) -> bool:
        raise TypeError(f"the size {self} is symbolic: a captured function may not branch on it")

    __le__ = __gt__ = __ge__ = __bool__ = __lt__

    def __int__(self) -> int:
        raise TypeError(f"the size {self} is symbolic: a captured function may not read it")

    __index__ = __int__

    def __repr__(self) -> str:
        parts = [
            "*".join(([str(n)] if n != 1 or not m else []) + [repr(a) for a in m]) for m, n in self.terms
        ]
        return " + ".join(parts)


Dim = Union[int, Size]

# arithmetic done before: sizes are interned, so the tables grow with the expressions that exist
_products: dict[tuple[Dim, Dim], Dim] = {}
_sums: dict[tuple[Dim, Dim, int], Dim] = {}
_quotients: dict[tuple[Dim, Dim], Dim] = {}
_symbols: dict[int, Size] = {}
_named: dict[Dim, frozenset[int]] = {}


def symbol(slot: int) -> Size:
    """The run-time integer in `slot` as a size."""
    size = _symbols.get(slot)
    if size is None:
        made = _normal({(Atom._intern(slot, 0, 0),): 1})
        assert isinstance(made, Size)
        size = _symbols[slot] = made
    return size


def quotient(a: Dim, b: Dim) -> Dim:
    """a // b; exact where b divides every term of a."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not (isinstance(a, (int, Size)) and isinstance(b, (int, Size))):
        raise TypeError(f"expected sizes as ints, got {a!r} to be divided by {b!r}")
    found = _quotients.get((a, b))
    if found is None:
        exact = _divide(a, b)
        found = _normal({(Atom._intern(-1, a, b),): 1}) if exact is None else exact
        _quotients[a, b] = found
    return found


def product(dims: tuple[Dim, ...]) -> Dim:
    """The product of dims; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def least(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims that are not negative. b // (a + 1) is 0 exactly where b is no larger."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    is_b = 1 // (1 + b // (a + 1))
    return a + (b - a) * is_b


def evaluate(dim: Dim, slots: Callable[[int], int]) -> int:
    """The value of `dim` when slot i holds slots(i)."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        for atom in monomial:
            if atom.slot >= 0:
                coefficient *= slots(atom.slot)
            else:
                coefficient *= evaluate(atom.numerator, slots) // max(evaluate(atom.denominator, slots), 1)
        total += coefficient
    return total


def substitute(dim: Dim, replace: Callable[[int], Dim], divided: Callable[[Dim], Dim] | None = None) -> Dim:
    """`dim` with slot i replaced by replace(i), and every quotient in it then for divided(it)."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            if atom.slot >= 0:
                term = term * replace(atom.slot)
            else:
                parts = (substitute(part, replace, divided) for part in (atom.numerator, atom.denominator))
                found = quotient(*parts)
                term = term * (found if divided is None else divided(found))
        total = total + term
    return total


def reduced(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Two dims without the factor that all coefficients share: 2*s0 and 6 are equal where s0 and 3 are."""
    common = gcd(*(many for dim in (a, b) for _, many in terms(dim)))
    return (quotient(a, common), quotient(b, common)) if common > 1 else (a, b)


def terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The products of a dim with their coefficients; that of a constant is empty."""
    return dim.terms if isinstance(dim, Size) else (((), dim),)


def monomial_dim(monomial: Monomial) -> Dim:
    """A product as a dim."""
    return _normal({tuple(sorted(monomial, key=_atom_key)): 1})


def leading(dim: Dim) -> tuple[Monomial, int]:
    """The largest product of a dim, with its coefficient: of the most factors, then of the latest ones."""
    return max(terms(dim), key=lambda t: (len(t[0]), [(a.slot < 0, a.slot, a.key) for a in _latest(t[0])]))


def _latest(monomial: Monomial) -> list[Atom]:
    return sorted(monomial, key=lambda a: (a.slot < 0, a.slot, a.key), reverse=True)


def lone_quotient(dim: Dim) -> tuple[Size, Dim] | None:
    """A quotient and what it equals where `dim` is 0, without naming it: of s0//2 - s1 s0//2 and s1.

    None if there is none.
    """
    for monomial, coefficient in () if isinstance(dim, int) else dim.terms:
        if len(monomial) == 1 and monomial[0].slot < 0 and abs(coefficient) == 1:
            found = _normal({monomial: 1})
            rest = (found * coefficient - dim) * coefficient
            if isinstance(found, Size) and found not in quotients_of(rest):
                return found, rest
    return None


def quotients_of(dim: Dim) -> set[Dim]:
    """Every quotient that occurs in a dim."""
    found: set[Dim] = set()

    def note(quotient: Dim) -> Dim:
        found.add(quotient)
        return quotient

    substitute(dim, symbol, note)
    return found


def single_slot(dim: Dim) -> int:
    """The slot if `dim` is exactly one symbol, else -1."""
    if isinstance(dim, Size) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0].slot
    return -1


def slots_named(dim: Dim) -> frozenset[int]:
    """The slots a dim is an expression over."""
    found = _named.get(dim)
    if found is None:
        slots: set[int] = set()
        for monomial, _ in terms(dim):
            for atom in monomial:
                if atom.slot >= 0:
                    slots.add(atom.slot)
                else:
                    slots |= slots_named(atom.numerator) | slots_named(atom.denominator)
        found = _named[dim] = frozenset(slots)
    return found


def _atom_key(atom: Atom) -> int:
    return atom.key


def _sum(a: Dim, b: Dim, sign: int) -> Dim:
    found = _sums.get((a, b, sign))
    if found is None:
        total = dict(terms(a))
        for monomial, coefficient in terms(b):
            total[monomial] = total.get(monomial, 0) + sign * coefficient
        found = _sums[a, b, sign] = _normal(total)
    return found


def _normal(terms: dict[Monomial, int]) -> Dim:
    kept = tuple(sorted(((m, n) for m, n in terms.items() if n), key=lambda t: [a.key for a in t[0]]))
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    size = Size._interned.get(kept)
    if size is None:
        size = Size()
        size.terms = kept
        size = Size._interned.setdefault(kept, size)
    return size


def _divide(a: Dim, b: Dim) -> Dim | None:
    """a / b where b is a single term that divides every term of a, else None."""
    divisors = terms(b)
    if len(divisors) != 1 or divisors[0][1] == 0:
        return None
    factors, divisor = divisors[0]
    result: dict[Monomial, int] = {}
    for monomial, coefficient in terms(a):
        rest = list(monomial)
        for factor in factors:
            if factor not in rest:
                return None
            rest.remove(factor)
        if coefficient % divisor:
            return None
        result[tuple(rest)] = coefficient // divisor
    return _normal(result)
