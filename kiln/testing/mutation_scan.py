"""A scan of the table's checks: a mistake in an entry is seen.

    python -m kiln.testing.mutation_scan [--part 0/4] [--every 5] [tanh adam_step linalg.det ...]

Every entry's body, derivative and function, and the helpers in kiln/ops that they call, get one small mistake
at a time (mutants.py). A forked child puts it in and runs what the harness checks of that entry (the tests of
CHECKS with its name, in their order) until one fails: references, derivatives against differences, examples,
failures, PyTorch's answers that are kept; PyTorch itself is hidden. Most run on the interpreter; kernels are
made anew where an op is changed, so that none of the right body is found. A helper's mutant must be seen by
the checks of one of the entries that call it.

A mutant that passes everything is a line: either the checks of its entry are weak, its reference calls what
it is to prove, or the mutant means the same: those stand in `mutant_equals.py`, with the reason. A check that
sees a mutant was run without it too, and must have passed. Exit status 1 if there is any line.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

from kiln.testing.mutant_equals import SAME
from kiln.testing.mutants import Functions, Mutant, helpers, key_of, living_functions, mutants, refuses

FILES = (
    "test_table.py", "test_ops.py", "test_derivatives.py", "test_stated_derivatives.py", "test_call_forms.py",
    "test_calls_against_numpy.py", "test_calls_of_matrices.py",
)  # fmt: skip
# where in kiln/ops -> the files that test what is there, where samples with references cannot: they have no
# gradients of views, no equal draws, no sizes that vary
BESIDE = {
    "indexing/getitem.py": ("test_indexing.py",),
    "linalg/": ("test_linalg.py", "test_lobpcg.py"),
    "named_results.py": ("test_named_results.py",),
    "nn/attention/": ("test_attention.py",),
    "nn/interpolation.py": ("test_interpolation.py",),
    "nn/byte_images.py": ("test_interpolation.py",),
    "random/": ("test_random.py",),
    "rearranging/": ("test_shapes.py",),
    "views/": ("test_view_calls.py", "test_shapes.py"),
    "windows/": ("test_windows.py", "test_pools.py"),
    "": ("test_sizes.py", "test_checked.py", "test_dynamic_shapes.py"),
}
# In the order in which a child runs them: the fast ones first, those without kernels before those with them.
CHECKS = (
    "test_body_agrees_with_reference", "test_stated_derivatives_agree_with_differences",
    "test_derivatives_agree_with_differences", "test_special_values_as_torch", "test_body_agrees_with_torch",
    "test_second_derivatives_agree_with_differences", "test_examples_run", "test_calls", "test_more_calls",
    "test_errors", "test_reference", "test_peer", "test_places", "test_gradient_peer", "test_differences",
    "test_differences_of_the_others", "test_second_derivatives_are_pytorch", "test_errors_as_peer",
    "test_dtypes_of_gradients", "test_one_of_several_results",
    "test_gradients_have_the_history_of_pytorch_s",
)  # fmt: skip
INTERPRETED = 6  # the first ones, which need no kernel
IN_MANY, DTYPES = ("test_reference", "test_peer", "test_gradient_peer"), ("float32", "int64", "bool")
MEMORY = 4 << 30  # bytes of address space that a child may take beyond its parent's
WAIT = 60  # seconds for one check: a mutant may not come to an end
SEEN, PASSED = 0, 1
OPS = str(Path(__file__).parents[1] / "ops") + os.sep


class Entry:
    """One name of the table: the functions that it is made of, and whether a kernel is made of any."""

    def __init__(self, name: str) -> None:
        from kiln.table import registry
        from kiln.table.public import FACTS

        op = registry.OPS.get(name)
        fact = FACTS.get(name)
        given = [registry.FUNCTIONS.get(name), fact and fact.function]
        self.name = name
        self.is_op = op is not None
        self.own = [f for f in (op and op.body, op and op.gradient) if isinstance(f, FunctionType)]
        self.own += [f for x in given if (f := _python_of(x)) is not None and f not in self.own]


def _python_of(function: Any) -> FunctionType | None:
    """The Python function of kiln/ops behind a public one, if there is one."""
    while function is not None and not (isinstance(function, FunctionType) and _is_of_ops(function.__code__)):
        function = getattr(function, "__wrapped__", None)
    return function


def entries() -> dict[str, Entry]:
    """Every op and public function of the table that some Python of kiln/ops stands behind."""
    from kiln.table import record, registry

    record.table()
    found = {name: Entry(name) for name in sorted({*registry.OPS, *registry.FUNCTIONS})}
    return {name: e for name, e in found.items() if any(_is_of_ops(f.__code__) for f in e.own)}


def _is_of_ops(code: CodeType) -> bool:
    return code.co_filename.startswith(OPS)


def callers(table: dict[str, Entry]) -> dict[Any, list[str]]:
    """Code of a function -> the entries it is part of: its own, or else those that reach it by helpers."""
    owners: dict[Any, list[str]] = {}
    for entry in table.values():
        for key in {key_of(function.__code__): None for function in entry.own}:
            owners.setdefault(key, []).append(entry.name)
    own, reached = set(owners), dict(owners)
    for entry in table.values():
        todo, seen = list(entry.own), set()
        while todo:
            for helper in helpers(todo.pop()):
                key = key_of(helper.__code__)
                known = key in own or key in seen or refuses(helper.__name__)
                if _is_of_ops(helper.__code__) and not known:
                    seen.add(key)
                    todo.append(helper)
                    reached.setdefault(key, []).append(entry.name)
    return reached


def shared(record: Any) -> list[str]:
    """The functions of kiln/ops that both an entry's reference and its body or derivative are made of."""
    own = [f for f in (getattr(record, "body", None), getattr(record, "gradient", None)) if f is not None]
    bodies = _all_of(own or Entry(record.name).own)
    return sorted(f.__name__ for key, f in _all_of([record.reference]).items() if key in bodies)


def _all_of(functions: list[Any]) -> dict[Any, FunctionType]:
    """Functions and their helpers, those of the table's declarations on the way, that stand in kiln/ops."""
    todo, found = list(functions), {}
    package = OPS.removesuffix(f"ops{os.sep}")
    while todo:
        function = todo.pop()
        key = key_of(function.__code__)
        if key not in found and function.__code__.co_filename.startswith(package):
            found[key] = function
            todo += helpers(function)
    return {key: f for key, f in found.items() if _is_of_ops(f.__code__)}


class Asked(NamedTuple):
    """Which mutants are made, and which checks look at them."""

    names: tuple[str, ...] = ()  # of entries; all if there are none,
    part: tuple[int, int] = (0, 1)  # or this of so many parts of them
    every: int = 1  # of so many mutants one
    most: int = 6  # callers of a helper that run slow checks
    files: tuple[str, ...] = FILES  # where checks are looked for


class Scan:
    """The plugin of pytest that runs mutants in the place of the collected tests."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.table: dict[str, Entry] = {}
        self.reached: dict[Any, list[str]] = {}
        self.functions: Functions = {}
        self.checks: dict[str, list[Any]] = {}
        self.beside: dict[str, list[Any]] = {}
        self.sound: dict[str, bool] = {}  # check -> whether it passes without a mutant
        self.count = 0
        self.lines: list[str] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        """Instead of the tests: every mutant in a child of this process."""
        _warm()
        self.table = entries()
        self.reached, self.functions = callers(self.table), living_functions(OPS)
        self.checks = _by_entry(session.items)
        for item in session.items:
            self.beside.setdefault(item.path.name, []).append(item)
        gc.collect()
        gc.freeze()
        for mutant, names in self.mutants():
            self.judge(mutant, names)
        return True

    def mutants(self) -> Iterator[tuple[Mutant, list[str]]]:
        """Those that are asked for, and the entries whose checks are to see them."""
        names = list(self.asked.names or list(self.table)[self.asked.part[0] :: self.asked.part[1]])
        for name in names:
            if name not in self.table:
                raise SystemExit(f"{name}: no entry of the table with a body in Python")
        wanted, number = set(names), 0
        for path in sorted({f.__code__.co_filename for e in names for f in self.closure(e)}):
            for mutant in mutants(
                path, lambda code: bool(wanted.intersection(self.reached.get(key_of(code), ())))
            ):
                own = [self.reached[key_of(a)] for a, _ in mutant.codes if key_of(a) in self.reached][-1]
                if own[0] not in wanted and not self.asked.names:  # another part's
                    continue
                number += 1
                if number % self.asked.every == 0 and _reason(mutant) is None:
                    yield mutant, [*(n for n in own if n in wanted), *(n for n in own if n not in wanted)]

    def closure(self, name: str) -> Iterator[FunctionType]:
        """The functions of an entry and their helpers."""
        for key, names in self.reached.items():
            if name in names:
                yield from self.functions.get(key, ())

    def judge(self, mutant: Mutant, names: list[str]) -> None:
        """Runs a mutant; a line if no check sees it."""
        self.count += 1
        near = set(names[: self.asked.most])
        items = [i for n in names for i in self.checks.get(n, ()) if n in near or _order(i) < INTERPRETED]
        items.sort(key=_order)
        place = mutant.path.removeprefix(OPS)
        beside = dict.fromkeys(f for start, files in BESIDE.items() if place.startswith(start) for f in files)
        items += [i for f in beside for i in self.beside.get(f, ())]
        anew = any(self.table[name].is_op for name in names)
        start = time.monotonic()
        while True:
            seen = _in_child(items, lambda: self.put_in(mutant, anew))
            if seen is None or self.passes(items[seen]):
                break
            self.line(f"{items[seen].nodeid}: fails without a mutant")
            items = [item for item in items if item is not items[seen]]
        place = f"kiln/ops/{place}:{mutant.line}"
        if seen is None:
            self.line(f"{place} {mutant.label}   [{' '.join(names[: self.asked.most])}]")
        elif os.environ.get("KILN_MUTANTS_LOUD"):
            took = time.monotonic() - start
            print(f"  {took:.2f}s {place} {mutant.label}   {items[seen].name}", flush=True)

    def line(self, text: str) -> None:
        """Notes what is wrong."""
        self.lines.append(text)
        print(text, flush=True)

    def put_in(self, mutant: Mutant, anew: bool) -> None:
        """What a child begins with."""
        changed = mutant.put_in(self.functions)
        assert changed, mutant.label
        if anew:
            _keep_no_kernels()

    def passes(self, item: Any) -> bool:
        """Whether a check passes on the right code."""
        if item.nodeid not in self.sound:
            self.sound[item.nodeid] = _in_child([item], lambda: None) is None
        return self.sound[item.nodeid]


def _reason(mutant: Mutant) -> str | None:
    """Why a mutant means the same, if it is known to."""
    name = f"{mutant.path.removeprefix(OPS)} {mutant.label}"
    return next((why for pattern, why in SAME.items() if fnmatchcase(name, pattern)), None)


def _warm() -> None:
    """Loads LLVM and what captures, on kernels without mathematics."""
    import kiln

    kiln.ones(3, 2).t().contiguous().tolist()


def _order(item: Any) -> int:
    return CHECKS.index(item.originalname)


def _by_entry(items: list[Any]) -> dict[str, list[Any]]:
    """The checks of each entry, in the order of CHECKS; with kernels, in one dtype of each kind."""
    found: dict[str, list[Any]] = {}
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        of = params.get("op", params.get("record"))
        name = params.get("name", getattr(of, "name", None))
        if name is None or item.originalname not in CHECKS:
            continue
        if item.originalname in IN_MANY and params.get("dtype", DTYPES[0]) not in DTYPES:
            continue
        found.setdefault(name, []).append(item)
    return found


def _keep_no_kernels() -> None:
    """From now on nothing that was kept on disk is used, and nothing is added to it."""
    from kiln.codegen.store import kept

    kept.load = lambda key, target=None: None
    kept.store = lambda key, entry, target=None: False


def _in_child(items: list[Any], begin: Callable[[], None]) -> int | None:
    """The place of the first check that fails, or that does not end, in a child process; None if all pass."""
    get, put = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(get)
            _run(items, begin, put)
        finally:
            os._exit(2)
    os.close(put)
    with open(get, "rb") as pipe:
        begun = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == PASSED:
        return None
    if not begun:
        raise RuntimeError("a child ended before its first check")
    return len(begun) - 1


def _run(items: list[Any], begin: Callable[[], None], put: int) -> None:
    """A child's work: a byte for every check that it begins."""
    from _pytest.runner import runtestprotocol

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.collect = lambda generation=2: 0  # slow: it looks at all that was collected
    begin()
    for k, item in enumerate(items):
        os.write(put, b".")
        signal.alarm(WAIT)
        following = items[k + 1] if k + 1 < len(items) else None
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            os._exit(SEEN)
    os._exit(PASSED)


def scan(asked: Asked, tests: Path) -> Scan:
    """The scan of what is asked for, by the harness in a folder."""
    found = Scan(asked)
    sys.modules["torch"] = None  # type: ignore[assignment]  # what is checked does not depend on it
    options = ["-qqq", "-p", "no:cacheprovider", "--no-summary", "--tb=no", "--assert=plain", "--rootdir"]
    files = dict.fromkeys((*asked.files, *(f for files in BESIDE.values() for f in files)))
    status = pytest.main(
        [*options, str(tests.parent), *(str(p) for f in files for p in tests.rglob(f))], plugins=[found]
    )
    if status not in (0, 5):
        raise SystemExit(f"pytest ended with {status}")
    return found


def main() -> None:
    """The scan from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="0/1", help="k/n: the k-th of n parts of the entries")
    parser.add_argument("--every", type=int, default=1, help="of so many mutants one")
    parser.add_argument("--files", default=",".join(FILES), help="where checks are looked for")
    parser.add_argument("--tests", type=Path, default=Path("tests"), help="the folder of the harness")
    options = parser.parse_args()
    first, parts = map(int, options.part.split("/"))
    asked = Asked(tuple(options.names), (first, parts), options.every)
    asked = asked._replace(files=tuple(options.files.split(",")))
    found = scan(asked, options.tests.resolve())
    print(f"{found.count} mutants, {len(found.lines)} not seen")
    sys.exit(bool(found.lines))


if __name__ == "__main__":
    main()
