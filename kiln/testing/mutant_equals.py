"""Mutants that mean the same as the code they come from.

A pattern (fnmatch) of "file function: code -> mutant", the file below kiln/ops, and why nothing can tell them
apart.
"""

from __future__ import annotations

_WIDE = "operands are float32 by then (kiln.capture.function); the rest is test_rounding.py's"
_HARMLESS = "any harmless argument does for the branch that is not taken"
_EITHER = "the larger or smaller of two is the same either way"
_SYMMETRIC = "the two are only multiplied or compared with each other"
_ZEROS = "more zeros around than are read"
_SQUEEZE = "the quick test only spares the exact one, which accepts what it accepts"
_WAYS = "decides between two ways to one result"

SAME: dict[str, str] = {
    "elementwise/precision.py wide: x is not None -> x is None": _WIDE,
    "elementwise/precision.py wide: not x.weak -> x.weak": _WIDE,
    "nn/smooth_activations.py softplus: 0 -> 1": _HARMLESS,
    "nn/smooth_activations.py logsigmoid: 0 -> 1": _HARMLESS,
    "elementwise/public_arithmetic.py clamp: p.clamp_m??.handle(input, m??, *": _EITHER,
    "elementwise/public_arithmetic.py clamp: p.clamp.handle(*) -> p.clamp.handle(min, input, max, *": _EITHER,
    "reductions/norms.py normalize: clamp_min(norm_over*) -> clamp_min(eps, *": _EITHER,
    "nn/interpolation.py _most: *": _WAYS,
    "nn/attention/functions.py _usual: *": _WAYS,
    "products/matrix_products.py _int_mm: *- 128 -> *+ 128": "bytes wrap",
    "products/matrix_products.py _int_mm: True -> False": "a row is broadcast with or without its dim of 1",
    "windows/products.py _by_phases*: n + s - 1 -> n + s + 1": _ZEROS,
    "windows/products.py _by_phases*: (s - 1 + p) // s -> *": _ZEROS,
    "windows/products.py _by_phases*: s - 1 -> s + 1": _ZEROS,
    "windows/products.py _by_phases*: (k - 1) // s -> *": _ZEROS,
    "windows/products.py _by_phases*: k - 1 -> k + 1": _ZEROS,
    "windows/products.py _by_phases*: zip(lead, many, most, spare) -> *": "summands",
    "windows/products.py _by_phases: _offset(*": _SYMMETRIC,
    "windows/products.py _spread: zip(*": _SYMMETRIC,
    "windows/products.py _spread: _offset(*": _SYMMETRIC,
    "windows/products.py _offset: zip(*": _SYMMETRIC,
    "windows/products.py convolve_weight: zip(*": _SYMMETRIC,
    "windows/products.py _backwards: zip(*": _SYMMETRIC,
    "windows/products.py _backwards: _offset(*": _SYMMETRIC,
    "nn/losses/values.py *: difference(input, target) -> *": "squared, or its sign is dropped",
    "reductions/differences.py linalg_cross*: 1 -> 2": "the step of one element",
    "views/strided.py _fits: zip(*": _SYMMETRIC,
    "rearranging/reorder.py rot90: transpose(*) -> transpose(*, b, a)": "two dims are swapped either way",
    "elementwise/parts_of_numbers.py _: g * (y / where*) -> g / (y / where*": "that factor is 1 or -1",
    "elementwise/parts_of_numbers.py _fm*: (larger if*": _EITHER,
    "nn/smooth_activations.py elu: 0 -> 1": _HARMLESS,
    "elementwise/three_operands.py lerp: 0.5 -> 1.125": "both formulas give the same but for rounding",
    "random/distributions.py _*_candidate: 0.07 -> *": _SQUEEZE,
    "random/distributions.py _poisson_candidate: 3.6224*": _SQUEEZE,
    "random/distributions.py _poisson_candidate: b - 2 -> b + 2": _SQUEEZE,
    "random/distributions.py _poisson_candidate: 2 -> 3": _SQUEEZE,
    "random/distributions.py _binomial_candidate: 4.2*": _SQUEEZE,
    "random/sampling.py normal: -1 -> 1": "of two the last is the second; one is all there is",
    "windows/folds.py _gathered.<locals>.<genexpr>: 0 -> 1": _ZEROS,
    "random/distributions.py _whole: 62 -> 63": "counts are smaller",
    "random/distributions.py _whole: 2.0 -> 3.0": "counts are smaller",
    "sorting/sorts.py _zero: False -> True": "one element has one order",
    "sorting/sorts.py _zero: sort_positions(*) -> sort_positions(*, False, 0, (0, 1))": "False is 0",
}
