"""`SobolEngine`: points that fill the unit cube more evenly than random ones, made by SciPy's `stats.qmc`."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Tensor, get_default_dtype
from kiln.absent import hint_missing as _hint_missing
from kiln.random import initial_seed
from kiln.table.callables import name_helpers as _name_helpers

if TYPE_CHECKING:
    from kiln._typed.words import DType

__all__ = ["SobolEngine"]


class SobolEngine:
    """The Sobol' sequence in `dimension` dims (1 to 21201), by Joe's and Kuo's direction numbers of 30 bits.

    Points are PyTorch's without `scramble`; scrambled ones (Owen's, by `seed`) are as even, and others than
    its. Needs SciPy: ImportError without.

    >>> engine = kiln.quasirandom.SobolEngine(dimension=2)
    >>> engine.draw(3)
    tensor([[0.0000, 0.0000],
            [0.5000, 0.5000],
            [0.7500, 0.2500]])
    """

    MAXBIT = 30
    MAXDIM = 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if not 1 <= dimension <= self.MAXDIM:
            raise ValueError(
                f"Supported range of dimensionality for SobolEngine is [1, {self.MAXDIM}], got {dimension}"
            )
        try:
            qmc = import_module("scipy.stats.qmc")
        except ImportError:
            raise ImportError(
                "SobolEngine: SciPy makes the points, and is not installed: install it"
            ) from None
        self.dimension, self.scramble, self.seed = dimension, scramble, seed
        self.num_generated = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the keyword of the seed has two names
            chosen = seed if seed is not None or not scramble else initial_seed()
            self._points: Any = qmc.Sobol(dimension, scramble=scramble, bits=self.MAXBIT, seed=chosen)

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """The next n points, (n, dimension), of the default dtype; written to `out` if that is given."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that n is no power of 2
            values = self._points.random(n)
        self.num_generated += n
        drawn: Tensor = ops.from_numpy(values).to(dtype or get_default_dtype())
        if out is None:
            return drawn
        return out.resize_(drawn.shape).copy_(drawn) if out.shape != drawn.shape else out.copy_(drawn)

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: DType | None = None) -> Tensor:
        """The next 2**m points. ValueError if there would not be a power of 2 of them altogether."""
        n = 2**m
        total = self.num_generated + n
        if total & (total - 1):
            raise ValueError(
                f"The balance properties of Sobol' points require n to be a power of 2. {self.num_generated} "
                f"points have been previously generated, then: n={self.num_generated}+2**{m}={total}. If you "
                "still want to do this, please use 'SobolEngine.draw()' instead."
            )
        return self.draw(n, out, dtype)

    def reset(self) -> SobolEngine:
        """Back to the first point."""
        self._points.reset()
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Leaves n points out."""
        self._points.fast_forward(n)
        self.num_generated += n
        return self

    def __repr__(self) -> str:
        given = [f"dimension={self.dimension}"]
        given += ["scramble=True"] if self.scramble else []
        given += [] if self.seed is None else [f"seed={self.seed}"]
        return f"{type(self).__name__}({', '.join(given)})"


_name_helpers(globals(), __name__)
_hint_missing(__name__)
