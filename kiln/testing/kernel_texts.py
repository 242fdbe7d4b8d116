"""Hashes of the LLVM text of some thousand kernels on every level: what a change of the generator changed.

    python -m kiln.testing.kernel_texts before.txt              on the tree before the change
    python -m kiln.testing.kernel_texts --against before.txt    on the tree after it

A kernel is noted when its machine code is asked for, by a program that calls the table's samples in several
dtypes and layouts, with gradients, products and layers of many sizes, products with what is fused into them,
convolutions, and random programs under `compile`.
Its text is then written for each level, this host's or not. A line holds the kernel's key, the level and the
hash of the texts of all its parts, or of what a level refuses. Nothing kept on disk is used or changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice, product
from typing import Any

DTYPES = ("float32", "bfloat16", "int64", "bool")
LAYOUTS = ("contiguous", "transposed", "expanded")
# rows, k, columns of products: each schedule of one row, few rows, blocks, cuts along k
PRODUCTS = (
    (1, 64, 64), (1, 2048, 512), (5, 33, 17), (16, 256, 96), (48, 48, 48), (130, 70, 300), (600, 40, 520),
    (8, 4096, 8), (64, 512, 1024),
)  # fmt: skip
# m, k, n of products that something is fused into; of one row or column their kernels are others
FUSED = ((40, 70, 50), (1, 70, 50), (40, 70, 1))
# the dtypes of factors that have kernels of their own
FACTORS = ("float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8")
# channels, their groups, stride, dilation, padding of convolutions
WINDOWS = ((3, 1, 1, 1, 0), (3, 1, 2, 1, 1), (4, 2, 1, 2, 1), (4, 4, 2, 1, 1), (6, 3, 1, 1, 1))
RANDOM_PROGRAMS = 60

Texts = dict[tuple[str, str], str]
Work = Callable[[], Any]


class Noted:
    """The kernels that were asked for, by their key's text."""

    def __init__(self) -> None:
        self.kernels: dict[str, Any] = {}

    def watch(self) -> None:
        """Notes every kernel whose machine code a plan asks for from now on."""
        from kiln.passes import launch

        pattern: Any = launch.Kernel
        make = pattern.object

        def noted(kernel: Any, target: Any = None) -> Any:
            self.kernels[kernel.text()] = kernel
            return make(kernel, target)

        pattern.object = noted

    def texts(self) -> Texts:
        """(key, level) -> the hash of the kernel's text there."""
        from kiln.codegen.target import LEVELS

        found: Texts = {}
        for text, kernel in self.kernels.items():
            key = hashlib.sha256(text.encode()).hexdigest()[:24]
            for level, target in LEVELS.items():
                found[key, level] = hashlib.sha256(text_of(kernel, target).encode()).hexdigest()[:24]
        return found


def text_of(kernel: Any, target: Any) -> str:
    """What the generator writes for a kernel: its parts, each with the functions it has, or the refusal."""
    try:
        return "\n".join(f"{p.functions} {p.quick} {p.shared}\n{p.text()}" for p in kernel.parts(target))
    except (ValueError, KeyError) as error:
        return f"refused: {error}"


# ---- what asks for kernels ----


def samples(every: int) -> Iterator[Work]:
    """The table's samples, forward and backward; one of `every` so many."""
    import kiln
    from kiln.testing.mode_cases import table
    from kiln.testing.op_cases import results_of, tensors

    def call(entry: Any, case: Any, dtype: str, layout: str) -> None:
        made = tensors(kiln, case, dtype, layout, grad=entry.differentiable)
        results = results_of(entry.function(*made.args, **made.kwargs))
        sums = [y.float().sum() for y in results if y.requires_grad]
        if sums:
            sum(sums[1:], sums[0]).backward()

    all_of_them = (
        partial(call, entry, case, dtype, layout)
        for entry in table().values()
        for dtype in DTYPES
        if dtype in entry.dtypes
        for case in entry.cases(dtype)
        for layout in LAYOUTS
    )
    return islice(all_of_them, 0, None, every)


def products() -> Iterator[Work]:
    """Products alone, with a bias and an activation, in each order of memory, with gradients."""
    import kiln

    def call(m: int, k: int, n: int, dtype: Any, transposed: tuple[bool, ...]) -> None:
        a, b = kiln.ones(m, k, dtype=dtype), kiln.ones(k, n, dtype=dtype)
        a, b = (x.t().contiguous().t() if t else x for x, t in zip((a, b), transposed))
        a.requires_grad_()
        b.requires_grad_()
        fused = kiln.compile(lambda a, b: kiln.relu(a @ b + 1.0), wait=True)
        (fused(a, b).float().sum() + (a @ b).float().sum()).backward()

    for sizes in PRODUCTS:
        for dtype in (kiln.float32, kiln.float64, kiln.bfloat16):
            for transposed in product((False, True), repeat=2):
                yield partial(call, *sizes, dtype, transposed)


def fused_products() -> Iterator[Work]:
    """Products whose factors are computed as they are packed, or whose rows are reduced in the epilogue."""
    import kiln

    framework: Any = kiln
    relu, int_mm = kiln.relu, framework._int_mm
    factors = (
        lambda x, w, codes: relu(x) @ w,
        lambda x, w, codes: x @ relu(w),
        lambda x, w, codes: relu(x) @ (w + w),
        lambda x, w, codes: relu(relu(x) @ relu(w) + 1),
        lambda x, w, codes: x @ codes.to(x.dtype),
        lambda x, w, codes: (x * codes[:1, :1].to(x.dtype)) @ (codes.to(x.dtype) * w[0, 0]),
    )
    rows = (
        lambda y: y.sum(-1), lambda y: y.amax(-1), lambda y: y.amin(-1), lambda y: y.prod(-1),
        lambda y: y.argmax(-1), lambda y: y.argmin(-1), lambda y: (y > 1).any(-1), lambda y: (y > 1).all(-1),
        lambda y: (y, (y * y).sum(-1)),
    )  # fmt: skip

    def call(
        function: Any, sizes: tuple[int, ...], dtype: str, swapped: bool, batch: tuple[int, ...]
    ) -> None:
        m, k, n = sizes
        pairs = ((m, k, dtype), (k, n, dtype), (k, n, "int8"))
        made = [kiln.ones(*batch, *size, dtype=getattr(kiln, kind)) for *size, kind in pairs]
        x, w, codes = (y.mT.contiguous().mT if swapped else y for y in made)
        kiln.compile(function, wait=True)(x, w, codes)

    def wide(x: Any, w: Any, codes: Any) -> Any:
        return int_mm(relu(x), codes), int_mm(x, codes + codes).float().relu().amax(-1)

    def reduced(reduce: Any) -> Any:
        return lambda x, w, codes: reduce(relu(x @ w + 1))

    for dtype in FACTORS:
        for function, sizes, swapped in product(factors, FUSED, (False, True)):
            yield partial(call, function, sizes, dtype, swapped, ())
        yield partial(call, factors[2], FUSED[0], dtype, False, (3,))
        for reduce, swapped in product(rows, (False, True)):
            yield partial(call, reduced(reduce), FUSED[0], dtype, swapped, ())
        yield partial(call, lambda x, w, codes: relu(relu(x) @ w).sum(-1), FUSED[0], dtype, False, ())
    for dtype, swapped in product(("int8", "uint8"), (False, True)):
        yield partial(call, wide, FUSED[0], dtype, swapped, ())


def convolutions() -> Iterator[Work]:
    """Products over windows of one to three dims, with a bias and an activation, and their gradients."""
    import kiln

    functions = kiln.nn.functional
    convolve = (functions.conv1d, functions.conv2d, functions.conv3d)
    transposed = (functions.conv_transpose1d, functions.conv_transpose2d, functions.conv_transpose3d)

    def call(function: Any, ndim: int, window: tuple[int, ...], dtype: str, swapped: bool) -> None:
        channels, groups, stride, dilation, padding = window
        kind = getattr(kiln, dtype)
        real = kind.is_floating_point
        sizes = (9, 7, 8)[:ndim]
        x = kiln.ones(2, channels, *sizes, dtype=kind)
        out = 2 * groups
        shape = (out, channels // groups) if function in convolve else (channels, out // groups)
        w = kiln.ones(*shape, *(3, 2, 3)[:ndim], dtype=kind)
        if swapped:
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        options: Any = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        made = [x, w] + [kiln.ones(out, dtype=kind)] * real
        leaves = [y.requires_grad_() if real else y for y in made]

        def activated(*inputs: Any) -> Any:
            return functions.relu(function(*inputs, **options))

        for step in (partial(function, **options), kiln.compile(activated, wait=True)):
            y = step(*leaves)
            if real:
                y.float().sum().backward()

    for function, dtype, swapped in product((*convolve, *transposed), FACTORS, (False, True)):
        for window in WINDOWS:
            yield partial(call, function, int(function.__name__[-2]), window, dtype, swapped)


def layers() -> Iterator[Work]:
    """Layers whose kernels are whole algorithms, or many: convolutions, attention, recurrence, norms."""
    import kiln

    nn = kiln.nn

    def call(module: Any, *shape: int) -> None:
        x = kiln.ones(*shape, requires_grad=True)
        for step in (module, kiln.compile(lambda x: module(x), wait=True)):
            y = step(x)
            (y[0] if isinstance(y, tuple) else y).sum().backward()

    def attend(heads: int, length: int, size: int, causal: bool, dtype: Any) -> None:
        q, k, v = (kiln.ones(2, heads, length, size, dtype=dtype, requires_grad=True) for _ in range(3))
        nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).float().sum().backward()

    for channels, size, stride in ((3, 15, 1), (16, 14, 2), (64, 7, 1)):
        yield partial(call, nn.Conv2d(channels, 24, 3, stride, 1), 2, channels, size, size)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        yield partial(call, kind(12, 20, 2), 5, 3, 12)
    yield partial(call, nn.LayerNorm(96), 40, 96)
    yield partial(call, nn.BatchNorm2d(6), 4, 6, 9, 9)
    yield partial(call, nn.GroupNorm(2, 6), 4, 6, 9, 9)
    yield partial(call, nn.TransformerEncoderLayer(32, 4, 64, 0.0), 7, 3, 32)
    for sizes in ((2, 16, 32), (1, 130, 64), (3, 40, 24)):
        for causal in (False, True):
            for dtype in (kiln.float32, kiln.bfloat16):
                yield partial(attend, *sizes, causal, dtype)


def programs(count: int) -> Iterator[Work]:
    """Random programs under `compile`: fused groups that no single op has."""
    import kiln
    from kiln.testing.program_writer import write_program
    from kiln.testing.random_programs import CALLS, compiled_text, observe

    framework: Any = kiln
    for seed in range(count):
        compiled: Any = kiln.compile(compiled_text(write_program(seed)), wait=True)
        yield partial(observe, compiled, framework, CALLS[0], False)


def corpus(every: int = 1) -> Texts:
    """Runs it all and hashes what was asked for; `every`: of so many pieces of work one, for a test."""
    noted = Noted()
    noted.watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work in (*products(), *fused_products(), *convolutions(), *layers()):
            work()
        for work in (*samples(every), *programs(RANDOM_PROGRAMS // every)):
            with suppress(Exception):  # an extra is not there, a program raises: only kernels are looked at
                work()
    return noted.texts()


def read(path: str) -> Texts:
    """The lines of a file."""
    with open(path) as file:
        return {(key, level): text for key, level, text in (line.split() for line in file)}


def differences(before: Texts, after: Texts) -> Iterator[str]:
    """Kernels that changed, came or went."""
    for what in sorted({*before, *after}):
        old, new = before.get(what), after.get(what)
        if old != new:
            yield f"{' '.join(what)}: {'new' if old is None else 'gone' if new is None else 'another text'}"


def main() -> None:
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", help="where the hashes go, or come from")
    parser.add_argument("--against", action="store_true", help="compare with the file")
    parser.add_argument("--every", type=int, default=1, help="of so many samples one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(KILN_CACHE_DIR=folder, KILN_PACK="0")
        found = corpus(options.every)
    print(f"{len(found)} texts of {len({key for key, _ in found})} kernels", file=sys.stderr)
    if options.against:
        lines = [*differences(read(options.file), found)]
        print(*lines, f"{len(lines)} differences", sep="\n")
        sys.exit(bool(lines))
    with open(options.file, "w") as file:
        file.writelines(f"{key} {level} {text}\n" for (key, level), text in sorted(found.items()))


if __name__ == "__main__":
    main()
