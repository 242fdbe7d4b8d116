"""The table of kiln's speed: every line measured with kiln and PyTorch in turn, in one process if possible.

    python bench/run.py                      the whole table
    python bench/run.py --list               names of the lines
    python bench/run.py add softmax-forward  some of them
    python bench/run.py --backend torch      PyTorch against itself: checks the benchmark, not kiln

A ratio above 1 says that kiln is faster. "share" is of the measured copy bandwidth or of the core's peak.
A line that cannot run prints n/a and why. A benchmark never gates a test run: the exit code is 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# PyTorch's threads spin for milliseconds after each of its calls, on the core that kiln's second thread needs
# next; waiting does not slow PyTorch's own lines
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# behind the installed packages: the kiln that is measured is the installed one
sys.path.append(str(Path(__file__).parent.parent))

import numpy as np

from bench import (
    attention,
    breadth,
    fresh,
    gradients,
    loaders,
    optimizers,
    products,
    resnet,
    windows,
    workloads,
)
from bench.measure import Times, Work, copy_work, interleaved
from bench.peak import PEAKS
from kiln.testing.backend import load, peer

MIB = 1 << 20


class Row(NamedTuple):
    """One printed line; empty strings where a column does not apply."""

    name: str
    threads: str
    kiln: str
    other: str
    ratio: str
    minima: str
    rate: str
    bar: str
    verdict: str


class Context:
    """What lines share: the frameworks, and the time they may take."""

    def __init__(self, backend: str | None, seconds: float) -> None:
        self.kiln = load(backend)
        self.torch = peer()
        self.seconds = seconds


class Pair(NamedTuple):
    """A line measured in this process: a program for both frameworks, and its bars.

    `per` divides the time (ops in the program), `nbytes` and `flops` are what one execution moves and
    computes,
    `ratio` is the bar against PyTorch (the quickest of `make` and `others`), `share` one of the machine that
    also passes, `peak` the dtype whose arithmetic it could do at best.
    """

    name: str
    make: Callable[[Any], Work]
    ratio: float
    per: int = 1
    nbytes: int = 0
    flops: float = 0.0
    share: float = 0.0
    threads: int = 1
    others: tuple[Callable[[Any], Work], ...] = ()
    peak: str = "float32"


def pairs() -> list[Pair]:
    """The lines of the table that compare programs."""
    w, four = workloads, 16 * MIB
    ops = (("a+b", "a + b"), ("a*b", "a * b"), ("tanh", "tanh(a)"))
    lines = [
        *(Pair(f"{name} 4x4", w.small(text, False), 8.0) for name, text in ops),
    ]
    for threads in (1, 2):
        lines += [
            Pair("add 4M", w.add, 1.0, nbytes=3 * four, threads=threads),
            Pair("gelu(a+b) 4M fused", w.gelu, 2.5, nbytes=3 * four, threads=threads),
            Pair(
                "softmax forward",
                w.normalised("softmax", False),
                1.3,
                nbytes=2 * four,
                share=0.75,
                threads=threads,
            ),
            Pair(
                "layer_norm forward",
                w.normalised("layer_norm", False),
                1.3,
                nbytes=2 * four,
                share=0.85,
                threads=threads,
            ),
            Pair("matmul 512x512x512", w.matmul(512, 512, 512), 0.85, flops=2.0 * 512**3, threads=threads),
        ]
    lines += [
        Pair("matmul 32x256x128", w.matmul(32, 256, 128), 1.0, flops=2.0 * 32 * 256 * 128),
        Pair("MLP Adam step, eager", w.mlp(False), 3.0),
        Pair("MLP Adam step, recorded", w.mlp(True), 5.0),
    ]
    lines += [
        Pair(line.name, line.make, line.ratio, line.per, line.nbytes, share=line.share, threads=threads)
        for threads in (1, 2)
        for line in (*gradients.lines(), *breadth.lines())
        if threads == 1 or line.nbytes
    ]
    lines += [
        Pair(
            line.name,
            line.make,
            1.0,
            nbytes=line.nbytes,
            flops=line.flops,
            threads=threads,
            others=line.others,
        )
        for threads in (1, 2)
        for line in optimizers.lines()
    ]
    return lines + [
        Pair(
            line.name, line.make, line.ratio,
            flops=line.flops, threads=threads, others=line.others, peak=line.peak,
        )
        for threads in (1, 2)
        for line in (*products.lines(), *windows.lines(), *resnet.lines(), *attention.lines())
    ]  # fmt: skip


def duration(seconds: float) -> str:
    """A time with three digits in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def set_threads(context: Context, count: int) -> None:
    """The same number of threads for both."""
    for framework in (context.kiln, context.torch):
        if framework is not None:
            framework.set_num_threads(count)


def agrees(one: Work, two: Work) -> bool:
    """Whether two works compute the same values, by their result expressions."""
    if not one.result or not two.result:
        return True
    x, y = (np.asarray(eval(w.result, dict(w.names)).detach().numpy()) for w in (one, two))
    return x.shape == y.shape and bool(np.allclose(x, y, rtol=1e-3, atol=1e-4))


def measure_pair(line: Pair, context: Context) -> Row:
    """One line: kiln, PyTorch and, where bytes count, a plain copy in turn."""
    set_threads(context, line.threads)
    works = [line.make(context.kiln)]
    if context.torch is not None:
        works += [make(context.torch) for make in (line.make, *line.others)]
        if not agrees(*works[:2]):
            return Row(line.name, str(line.threads), "", "", "", "", "", "", "WRONG: results differ")
    if line.nbytes:
        works.append(copy_work(16 * MIB))
    times = interleaved(works, context.seconds)
    ours, rivals = times[0], times[1 : 2 + len(line.others)] if context.torch is not None else []
    theirs = min(rivals, key=lambda t: t.median, default=None)
    rate, share = machine_share(line, ours, times[-1])
    reached = theirs is not None and theirs.median / ours.median >= line.ratio
    passed = reached or (line.share > 0 and share >= line.share)
    bar = f"{line.ratio:g}x" + (f" or {line.share:.0%} of copy" if line.share else "")
    return Row(
        line.name,
        str(line.threads),
        duration(ours.median / line.per),
        duration(theirs.median / line.per) if theirs else "",
        f"{theirs.median / ours.median:.2f}x" if theirs else "n/a",
        f"{theirs.minimum / ours.minimum:.2f}x" if theirs else "n/a",
        rate,
        bar if line.threads == 1 else "",
        ("ok" if passed else "below") if line.threads == 1 else "",
    )


def machine_share(line: Pair, ours: Times, copy: Times) -> tuple[str, float]:
    """The rate of a line as text, and its share of what the machine can do: of one core's copy, or of its
    peak in this minute.
    """
    if line.nbytes:
        bandwidth = line.nbytes / ours.median
        share = bandwidth / (32 * MIB / copy.median)
        return f"{bandwidth / 1e9:.1f} GB/s, {share:.0%} of copy", share
    if line.flops:
        speed = line.flops / ours.median
        try:
            peak = PEAKS[line.peak]()
        except ImportError:
            return f"{speed / 1e9:.3g} GF/s", 0.0
        return f"{speed / 1e9:.3g} GF/s, {speed / peak:.0%} of peak {peak / 1e9:.0f}", speed / peak
    return "", 0.0


def limit_row(
    name: str, ours: float, theirs: float | None, limit: float, note: str = "", threads: str = "1"
) -> Row:
    """A line whose bar is a time."""
    return Row(
        name, threads, duration(max(ours, 0.0)), duration(theirs) if theirs is not None else "",
        f"{theirs / ours:.1f}x" if theirs is not None and ours > 0 else "", "", note,
        f"<= {duration(limit)}", "ok" if ours <= limit else "below",
    )  # fmt: skip


def import_rows(context: Context) -> list[Row]:
    """`import kiln`: seconds, megabytes, heavy modules."""
    ours, last = fresh.median_of("import", context.kiln.name, "seconds", 9)
    theirs = (
        fresh.median_of("import", "torch", "seconds", 3)
        if context.torch is not None
        else (None, {"resident": 0.0})
    )
    heavy = ", ".join(last["heavy"]) or "none of numpy, scipy, llvmlite"
    size = Row(
        "import: resident memory", "1",
        f"{last['resident']:.0f} MB", f"{theirs[1]['resident']:.0f} MB", "", "",
        f"interpreter alone {last['before']:.0f} MB", "<= 40 MB", "ok" if last["resident"] <= 40 else "below",
    )  # fmt: skip
    row = limit_row("import", ours, theirs[0], 0.060, heavy)
    return [row if not last["heavy"] else row._replace(verdict="below"), size]


def has_pack() -> bool:
    """Whether kiln is installed from a wheel that has the prebuilt pack."""
    import kiln

    return (Path(kiln.__file__).parent / "packs").is_dir()


def started(task: str, context: Context) -> dict[str, dict[str, Any]]:
    """What a task answers with nothing cached, with the prebuilt pack alone, and with a warm disk cache."""
    answers = {}
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as cache:
        answers["nothing"] = fresh.child(task, context.kiln.name, cache=cache)
        answers["a warm disk cache"] = fresh.child(task, context.kiln.name, cache=cache)
    if has_pack():
        with tempfile.TemporaryDirectory(prefix="kiln-bench-") as cache:
            answers["the pack"] = fresh.child(task, context.kiln.name, cache=cache, pack="")
    return answers


def program_rows(context: Context) -> list[Row]:
    """The README's first program, from the start of its process to the end."""
    limits = {"nothing": 1.5, "the pack": 0.4, "a warm disk cache": 0.4}
    return [
        limit_row(
            f"first program from {state}",
            answer["seconds"],
            None,
            limits[state],
            "LLVM" if answer["llvm"] else "no LLVM",
        )
        for state, answer in started("program", context).items()
    ]


def step_rows(context: Context) -> list[Row]:
    """The first recorded training steps of a process."""
    theirs = fresh.child("step", "torch")["calls"] if context.torch is not None else [None] * 4
    rows = []
    for state, answer in started("step", context).items():
        limit = 1.0 if state == "nothing" else 0.1
        llvm = "LLVM" if answer["llvm"] else "no LLVM"
        note = f"{llvm}; import and model before it {duration(answer['setup'])}"
        rows += [
            limit_row(f"1st step from {state}", answer["calls"][0], theirs[0], limit, f"1st sight; {note}"),
            limit_row(
                f"2nd step from {state}",
                answer["calls"][1],
                theirs[1],
                limit,
                f"the program is there after {duration(answer['compiled'])}",
            ),
        ]
    return rows


def kernel_rows(context: Context) -> list[Row]:
    """Kernels never seen: generated, and loaded from disk by the next process."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as cache:
        cold = fresh.child("kernels", context.kiln.name, cache=cache)["seconds"]
        warm = fresh.child("kernels", context.kiln.name, cache=cache)["seconds"]
    first, *names = cold
    pointwise = sorted(cold[n] for n in names if n.startswith("pointwise"))
    others = {n: cold[n] for n in names if not n.startswith("pointwise")}
    loads = sorted(warm[n] for n in names)
    slowest = max(others, key=lambda n: others[n])
    return [
        limit_row("first kernel of a process", cold[first], None, 0.075, first),
        limit_row(
            "new pointwise kernel",
            pointwise[len(pointwise) // 2],
            None,
            0.010,
            f"worst {duration(pointwise[-1])}",
        ),
        limit_row(
            "new kernel of another kind", others[slowest], None, 0.040, f"worst of {len(others)}: {slowest}"
        ),
        limit_row(
            "kernels of one op from disk", loads[len(loads) // 2], None, 1e-4, f"worst {duration(loads[-1])}"
        ),
    ]


def neighbour_rows(context: Context) -> list[Row]:
    """Two threads while another process keeps one of the cores busy, against one thread alone."""
    rows = []
    for which, title in (("gelu", "gelu 4M"), ("mlp", "MLP step")):
        ours = fresh.child("neighbour", context.kiln.name, which)
        theirs = fresh.child("neighbour", "torch", which) if context.torch is not None else None
        factor = ours["hogged"] / ours["one"]
        rows.append(
            Row(
                f"{title}, busy neighbour", "2",
                duration(ours["hogged"]), duration(theirs["hogged"]) if theirs else "",
                f"{theirs['hogged'] / ours['hogged']:.2f}x" if theirs else "", "",
                f"{factor:.2f}x of 1 thread ({duration(ours['one'])}; 2 alone {duration(ours['two'])})"
                + (f"; PyTorch {theirs['hogged'] / theirs['one']:.2f}x" if theirs else ""),
                "<= 1.3x of 1 thread", "ok" if factor <= 1.3 else "below",
            )
        )  # fmt: skip
    return rows


def memory_rows(context: Context) -> list[Row]:
    """The most that a training step's tensors take."""
    rows = []
    for which, title in (("mlp", "MLP 1024-4096-4096-10"), ("gpt", "GPT of 6 layers")):
        ours = fresh.child("memory", context.kiln.name, which)["bytes"] / 1e6
        theirs = fresh.child("memory", "torch", which)["bytes"] / 1e6 if context.torch is not None else None
        rows.append(
            Row(
                f"peak memory, {title}", "1", f"{ours:.0f} MB", f"{theirs:.0f} MB" if theirs else "",
                f"{theirs / ours:.2f}x" if theirs else "", "", "tensors, beyond those before the step",
                "1x", "ok" if theirs is None or ours <= theirs else "below",
            )
        )  # fmt: skip
    return rows


def long_rows(context: Context) -> list[Row]:
    """A chain of a million ops beside one of ten thousand: forward, backward and free, per op."""
    short = fresh.child("long", context.kiln.name, "10000")["seconds"]
    long = fresh.child("long", context.kiln.name, "1000000")["seconds"]
    theirs = fresh.child("long", "torch", "10000")["seconds"] if context.torch is not None else None
    return [
        Row(
            "chain of 1000000, per op", "1", duration(long), duration(theirs) if theirs else "",
            f"{theirs / long:.1f}x" if theirs else "", "",
            f"{long / short:.2f}x of a chain of 10000 ({duration(short)}; PyTorch: of 10000)",
            "<= 2x of 10000", "ok" if long <= 2 * short else "below",
        )
    ]  # fmt: skip


def pattern_rows(context: Context) -> list[Row]:
    """The kernels of one product: made in a process that made others before, and loaded from disk."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as cache:
        cold = fresh.child("products", context.kiln.name, cache=cache)["seconds"]
        warm = fresh.child("products", context.kiln.name, cache=cache)["seconds"]
    new, loads = max(cold, key=lambda name: cold[name]), sorted(warm.values())
    return [
        limit_row("kernels of a product, new", cold[new], None, 0.060, f"worst of {len(cold)}: {new}"),
        limit_row(
            "kernels of a product from disk",
            loads[len(loads) // 2],
            None,
            1e-4,
            f"worst of {len(loads)}: {duration(loads[-1])}",
        ),
    ]


def loader_rows(context: Context) -> list[Row]:
    """Epochs of loaders, and their begins."""
    frameworks = [f for f in (context.kiln, context.torch) if f is not None]
    rows = []
    for case in loaders.CASES:
        (ours, begin), *others = loaders.compared(case, frameworks)
        theirs, their_begin = others[0] if others else (None, None)
        note = f"first batch after {duration(begin)}" + (f"; {duration(their_begin)}" if their_begin else "")
        ratio = f"{theirs / ours:.2f}x" if theirs else "n/a"
        passed = theirs is None or theirs >= ours
        rows.append(
            Row(
                case.name, "2", duration(ours), duration(theirs) if theirs else "", ratio, "", note,
                "1x", "ok" if passed else "below",
            )
        )  # fmt: skip
    return rows


GROUPS: dict[str, Callable[[Context], list[Row]]] = {
    "busy neighbour": neighbour_rows,
    "peak memory": memory_rows,
    "long chain": long_rows,
    "loaders": loader_rows,
    "first program": program_rows,
    "first steps": step_rows,
    "new kernels": kernel_rows,
    "new products": pattern_rows,
    "import": import_rows,
}


def lines() -> dict[str, Callable[[Context], list[Row]]]:
    """Every line or group of lines by its name, in the order of the table."""
    found: dict[str, Callable[[Context], list[Row]]] = {}
    for line in pairs():
        name = line.name if line.threads == 1 else f"{line.name} on {line.threads} threads"
        found[name] = lambda context, line=line: [measure_pair(line, context)]  # type: ignore[misc]
    return {**found, **GROUPS}


HEADINGS = Row("line", "thr", "kiln", "PyTorch", "ratio", "minima", "rate or note", "bar", "")
WIDTHS = (32, 3, 8, 8, 7, 7, 64, 21, 6)


def show(row: Row) -> None:
    """Prints a row at once, so a long table can be watched."""
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, WIDTHS, strict=True)).rstrip(), flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="the table of kiln's speed")
    parser.add_argument("names", nargs="*", help="lines whose name contains one of these (default: all)")
    parser.add_argument("--backend", default=None, help="kiln, or torch to measure PyTorch against itself")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each compared line")
    parser.add_argument("--list", action="store_true", help="names of the lines")
    options = parser.parse_args(argv)
    chosen = {
        n: f for n, f in lines().items() if not options.names or any(part in n for part in options.names)
    }
    if options.list:
        print("\n".join(chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="kiln-bench-cache-") as cache:
        # kernels of this process are warm after the first execution; the user's own cache is left alone
        os.environ["KILN_CACHE_DIR"] = cache
        context = Context(options.backend, options.seconds)
        show(HEADINGS)
        for name, run in chosen.items():
            try:
                rows = run(context)
            except Exception as error:
                reason = (str(error).strip().splitlines() or [""])[0]
                rows = [Row(name, "", "", "", "", "", f"n/a: {type(error).__name__}: {reason}", "", "")]
            for row in rows:
                show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
