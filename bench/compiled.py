"""What `kiln.compile` gains: everyday functions and training steps, eager and compiled, taken in turn.

    python bench/compiled.py                     all of them, on one thread
    python bench/compiled.py --threads 2 chain   those whose names contain a word, on two
    python bench/compiled.py --torch             PyTorch eager beside them
    python bench/compiled.py --torch-compile     and torch.compile, where it compiles (needs a C++ compiler)

A line: microseconds of an eager and of a compiled call, eager/compiled as a ratio of medians and of minima.
A call counts as none slower at 0.98 of eager or within 0.2 us of it. The exit code is 0: a benchmark never
gates a test run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in run.py: PyTorch's threads spin on the other core
sys.path.append(str(Path(__file__).parent.parent))  # behind the installed packages, as in run.py

import kiln
from bench.compiled_programs import PROGRAMS, Program
from bench.measure import Work, interleaved
from kiln.testing.backend import peer

SIGHTS = 60  # calls after which it is decided whether a function runs compiled
NEAR = 0.2e-6  # seconds that a compiled call may cost more


def settled(run: Callable[[], Any]) -> Callable[[], Any]:
    """Calls it until it runs as it will: programs are there, and whole calls have been judged."""
    for _ in range(SIGHTS):
        run()
        kiln.compiler.wait()
    return run


def works(program: Program, torch: Any, by_torch: bool) -> list[Callable[[], Any]]:
    """The program eager and compiled by kiln, and as PyTorch runs it."""
    found = [settled(program.make(kiln, lambda what: what)), settled(program.make(kiln, kiln.compile))]
    if torch is not None:
        found.append(settled(program.make(torch, lambda what: what)))
        if by_torch:
            found.append(settled(program.make(torch, torch.compile)))
    return found


def main() -> None:
    """Times the programs and prints a line for each."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("names", nargs="*", help="words of the programs' names")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seconds", type=float, default=2.0, help="time a line takes")
    options.add_argument("--torch", action="store_true")
    options.add_argument("--torch-compile", action="store_true")
    chosen = options.parse_args()
    kiln.set_num_threads(chosen.threads)
    torch = peer() if chosen.torch or chosen.torch_compile else None
    if torch is not None:
        torch.set_num_threads(chosen.threads)
    print(f"{'program':40}{'eager':>10}{'compiled':>10}{'median':>8}{'minima':>8}  bar")
    ratios, below = list[float](), 0
    for program in PROGRAMS:
        if chosen.names and not any(word in program.name for word in chosen.names):
            continue
        runs = works(program, torch, chosen.torch_compile)
        times = interleaved([Work("run()", {"run": run}) for run in runs], chosen.seconds, 7)
        eager, compiled, *others = times
        ratio, minima = eager.median / compiled.median, eager.minimum / compiled.minimum
        free = program.bar < 1 and compiled.minimum - eager.minimum < NEAR
        fair = minima >= program.bar or free
        ratios.append(minima)
        below += not fair
        line = f"{program.name:40}{eager.median * 1e6:10.2f}{compiled.median * 1e6:10.2f}{ratio:8.2f}"
        line += f"{minima:8.2f}  {program.bar:.2f} {'ok' if fair else 'below'}"
        for time in others:
            line += f"{time.median * 1e6:12.2f} {time.minimum / compiled.minimum:.2f}x"
        print(line, flush=True)
    mean = geometric_mean(ratios)
    print(f"geometric mean of minima {mean:.2f}; {below} of {len(ratios)} below their bar")


if __name__ == "__main__":
    main()
