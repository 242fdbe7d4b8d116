"""A scan of all public functions: a call ends, whatever count it is given.

    python -m kiln.testing.count_scan [--part 0/4] [--every 50] [tensor_split nn.LSTM ...]

Every call (count_cases.py) must end within seconds in a result or in one of Python's ordinary errors. What
asks for much memory may run out of it: a child process with little of it makes the calls, and says before
each which one it is. A call that does not end, or that ends the process, ends only the child: another goes
on after it.

Each call that ends otherwise is a line; exit status 1 if there is any.
"""

from __future__ import annotations

import argparse
import pkgutil
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import kiln
from kiln.testing.count_cases import Call, calls, functions

MEMORY = 3 << 30  # of a child, in bytes of address space: as much as is filled in seconds
WAIT = 120  # seconds of the clock for a call: one that waits uses no processor
SLOW = 2  # seconds of processor time from which on a call that ended is named with --slow

ORDINARY = (TypeError, ValueError, RuntimeError, IndexError, OverflowError, MemoryError, ImportError)
# Of functions that are no entries of the table, as of PyTorch's of these names.
OUTSIDE = (AttributeError, AssertionError)


class Part(NamedTuple):
    """Which calls are made, and how long one may take."""

    names: list[str]  # of public functions, or "package.module.name" of others
    every: int = 1  # of so many calls one,
    offset: int = 0  # from this one on
    seconds: float = 10  # of processor time, all threads together
    slow: bool = False  # whether calls are named that end, but late

    def calls(self) -> Iterator[Call]:
        """The calls, always in the same order."""
        known = functions()
        found = ((name, known.get(name) or pkgutil.resolve_name(name)) for name in self.names)
        everyone = chain.from_iterable(calls(name, function) for name, function in found)
        return (call for k, call in enumerate(everyone) if k % self.every == self.offset % self.every)

    def command(self, first: int) -> list[str]:
        """What a child is started with."""
        numbers = [f"--every={self.every}", f"--offset={self.offset}", f"--seconds={self.seconds}"]
        slow = ["--slow"] if self.slow else []
        return [sys.executable, "-P", "-m", __spec__.name, *numbers, *slow, f"--child={first}", *self.names]


def wrong(call: Call) -> str:
    """What is wrong with how a call ends, or nothing."""
    try:
        arguments = call.make()
    except Exception:  # there is nothing to call with
        return ""
    try:
        call.function(*arguments.args, **arguments.kwargs)
    except Exception as error:
        expected = isinstance(error, ORDINARY) or (not call.of_table and type(error) in OUTSIDE)
        internal = isinstance(error, RecursionError) or "LLVM" in str(error)
        return "" if expected and not internal else f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def child(part: Part, first: int) -> None:
    """Makes the calls from the one numbered `first` on; says each before, and what was wrong after it."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for k, call in enumerate(part.calls()):
        if k < first:
            continue
        print(f"call {k} {call.label}", flush=True)
        kiln.manual_seed(0)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, part.seconds)
        signal.alarm(WAIT)
        found = wrong(call)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        used = time.process_time() - began
        if part.slow and used > SLOW and not found:
            found = f"took {used:.1f} s"
        if found:
            print(f"wrong {found!r}", flush=True)
    print("done", flush=True)


def scan(part: Part) -> Iterator[str]:
    """The calls that end wrongly; last a line that says how many calls there were."""
    first, ended = 0, False
    while not ended:
        label, before = "no call", first
        with subprocess.Popen(part.command(first), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                word, _, text = line.rstrip("\n").partition(" ")
                if word == "call":
                    number, _, label = text.partition(" ")
                    first = int(number) + 1
                elif word == "wrong":
                    yield f"{label}: {text}"
                ended = ended or word == "done"
        if not ended:
            yield f"{label}: {_end(process.returncode)}"
            ended = first == before  # it made no call: nothing to go on after
    yield f"{first} calls"


def _end(status: int) -> str:
    if status in (-signal.SIGPROF, -signal.SIGALRM):
        return "did not end"
    return f"ended the process: {signal.Signals(-status).name if status < 0 else status}"


def main() -> None:
    """The scan from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", default="0/1", help="k/n: the k-th of n parts of the names")
    parser.add_argument("--every", type=int, default=1, help="of so many calls one")
    parser.add_argument("--offset", type=int, default=0, help="which of them")
    parser.add_argument("--seconds", type=float, default=10, help="of processor time for a call")
    parser.add_argument("--slow", action="store_true", help=f"name also what takes {SLOW} seconds and ends")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    k, parts = map(int, options.part.split("/"))
    names = options.names or list(functions())[k::parts]
    part = Part(names, options.every, options.offset, options.seconds, options.slow)
    if options.child is not None:
        child(part, options.child)
        return
    count = -1  # the last line is no call
    for line in scan(part):
        count += 1
        print(line, flush=True)
    print(f"{count} end wrongly")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
