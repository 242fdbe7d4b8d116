"""Mutants are made and put in as meant; the checks of a few entries see theirs, and a reference that calls
the body it is to prove is found.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from backend import needs_kiln

from kiln.testing.mutants import key_of, living_functions, mutants
from kiln.testing.mutation_scan import shared

SOURCE = '''
def choose(x, y, *, low=2):
    """Says 1 + 1."""
    if x < low and not y:
        raise ValueError(f"{x + 1} is too small")
    check_sizes(x, 3)
    inner = lambda z: -z * 0.5
    return max(power(x, y), inner(y))


def check_sizes(x, n):
    assert x != n


def power(x, y):
    return x ** y
'''
WANTED = [
    "choose: x < low and (not y) -> x < low or not y",
    "choose: x < low -> x > low",
    "choose: not y -> y",
    "choose.<locals>.<lambda>: -z * 0.5 -> -z / 0.5",
    "choose.<locals>.<lambda>: -z -> z",
    "choose.<locals>.<lambda>: 0.5 -> 1.125",
    "choose: power(x, y) -> power(y, x)",
]


def test_mutants(tmp_path: Path) -> None:
    """Each mistake once; messages, refusals and documentation stay; functions keep their identity."""
    path = tmp_path / "chosen.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("chosen", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    choose, plain = module.choose, module.choose.__code__
    wanted = key_of(plain)
    made = list(mutants(str(path), lambda code: key_of(code) == wanted))
    assert [m.label for m in made] == WANTED
    assert [m.line for m in made] == [4, 4, 4, 7, 7, 7, 8]
    functions, right = living_functions(str(tmp_path)), results(choose)
    assert right == [64, "raised", 1, 1, 2.0]
    seen = []
    for mutant in made:
        assert mutant.put_in(functions) == 1
        seen.append(results(choose))
        choose.__code__ = plain
    assert results(choose) == right
    assert all(found != right for found in seen)
    assert seen[0] == [64, "raised", "raised", "raised", 2.0]
    assert [found[-1] for found in seen[3:]] == [8.0, 0.0625, 4.5, 16]


def results(choose: Any) -> list[Any]:
    """What the function gives for arguments that tell its mutants apart."""
    found: list[Any] = []
    for arguments in ((4, 3), (1, 0), (1, 1), (5, 0), (2, -4)):
        try:
            found.append(choose(*arguments))
        except ValueError:
            found.append("raised")
    return found


def scan(*names: str, before: str = "") -> tuple[int, list[str]]:
    """The exit status and the lines of a scan, after a program."""
    main = f"{before}\nimport sys\nsys.argv[1:] = {list(names)!r}\n"
    main += "from kiln.testing.mutation_scan import main\nmain()\n"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", main], capture_output=True, text=True, timeout=600, cwd=root)
    assert done.stderr == ""
    return done.returncode, [line for line in done.stdout.splitlines() if line]


@needs_kiln
def test_mistakes_in_a_few_entries_are_seen() -> None:
    names = ("adam_step", "amsgrad_step", "sgd_momentum_step", "softplus", "rot90", "tanh")
    status, lines = scan(
        *names, "--every", "4", "--files", "test_table.py,test_call_forms.py,test_calls_against_numpy.py"
    )
    assert (status, len(lines)) == (0, 1), lines
    assert int(lines[0].split()[0]) > 20


# what gives sizes alone
MAY_SHARE = {
    "alpha_dropout_values": ["_mask_sizes"],
    "convolve": ["out_sizes"],
    "dropout_values": ["_mask_sizes"],
    "window_taps": ["_counts"],
}


@needs_kiln
def test_references_share_no_code_with_bodies() -> None:
    """No function of kiln/ops is part of both an entry's body, or derivative, and of its reference."""
    public, record = (importlib.import_module(f"kiln.table.{name}") for name in ("public", "record"))
    with_reference = [r for r in [*record.table(), *public.records()] if r.reference is not None]
    assert len(with_reference) > 300
    found = {r.name: names for r in with_reference if (names := shared(r))}
    assert found == MAY_SHARE
    step = record.find("sgd_step")
    right = step.reference
    try:
        step.reference = importlib.import_module("kiln.ops.nn.optimizer_steps")._sgd
        assert shared(step) == ["_sgd", "direction", "downhill", "shrunk"]
    finally:
        step.reference = right


OWN_BODY = """
import kiln
from kiln.ops.nn import optimizer_steps
from kiln.table.record import find
find("sgd_step").reference = optimizer_steps._sgd
"""


@needs_kiln
def test_a_reference_that_calls_the_body_is_found() -> None:
    status, lines = scan("sgd_step", "--files", "test_table.py", before=OWN_BODY)
    assert status == 1
    assert any("_sgd: param - lr * direction" in line and "param + lr" in line for line in lines), lines
