"""Ctrl-C for real, at some moment of a program.

    python interrupts.py first|wait|exit seed count

Each time a process of its own, with an empty cache, gets SIGINT after a delay drawn by the seed: during the
first calls of a compiled function (`first`; `wait`: with wait=True), which catches it (or goes on, where it
came in a callback of CPython's imports, which loses it), looks whether all works and ends; or around its end
(`exit`), with the compiling thread at work. Prints a line for each: the delay and how it ended, 0 or by
SIGINT as Python does; anything else ends this with an error.
"""

from __future__ import annotations

import faulthandler
import os
import random
import select
import shutil
import signal
import sys
import tempfile
from typing import Any

import kiln

LONGEST = {"first": 0.3, "wait": 0.25, "exit": 0.1}  # seconds, about as long as what is interrupted takes
PATIENCE = 60  # seconds, until a process that hangs says where, and ends


def work(wait: bool) -> None:
    """First calls, which compile."""
    f: Any = kiln.compile(lambda x, w: ((x @ w).tanh().softmax(-1) * 2 + 1).sum(0), wait=wait)
    x, w = kiln.ones(4, 3), kiln.ones(3, 5)
    for _ in range(3):
        found = f(x, w).tolist()
        assert all(abs(value - 5.6) < 1e-5 for value in found), found


def look() -> None:
    """Whether everything works."""
    core: Any = kiln._core
    assert core.modes() == (True, False, None) and not core.recording()
    assert (kiln.ones(2) + 1).tolist() == [2.0, 2.0]
    work(False)
    work(True)
    kiln.compiler.wait()


def run(what: str, begun: int) -> None:
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    signal.alarm(PATIENCE)
    if what == "exit":
        work(False)
        os.write(begun, b".")
        return
    ignored: list[Any] = []  # what CPython could not raise: a weak reference's callback was interrupted
    sys.unraisablehook = lambda told: ignored.append(told.exc_type)
    try:
        os.write(begun, b".")
        work(what == "wait")
        if KeyboardInterrupt not in ignored:
            select.select([], [], [])
    except KeyboardInterrupt:
        pass
    look()


def main() -> None:
    what, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    draw = random.Random(seed)
    for n in range(count):
        os.environ["KILN_CACHE_DIR"] = directory = tempfile.mkdtemp()
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(begun)
            return run(what, begins)
        os.close(begins)
        os.read(begun, 1)
        delay = draw.random() * LONGEST[what]
        select.select([begun], [], [], delay)  # or until it has ended
        os.kill(child, signal.SIGINT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(begun)
        shutil.rmtree(directory)
        print(f"{delay:.4f} {code}", flush=True)
        if code not in (0, -signal.SIGINT) or (code and what != "exit"):
            sys.exit(f"{what}, seed {seed}, process {n}, after {delay:.4f} s: it ended with {code}")


if __name__ == "__main__":
    main()
