"""Counts that no loop comes to the end of: each call ends at once, in a result or an exception. Here what is
known to be hard, and a sample of what `make counts` asks of every argument of every function.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from backend import needs_kiln

pytest.importorskip("resource")  # limits of a process

from kiln.testing.count_scan import Part, functions, scan  # noqa: E402

EVERY = 1 if os.environ.get("KILN_TEST_FULL") else 499  # of so many calls of the scan one

CALLS = """
tensor(itself)
tensor(twice)
as_tensor(itself)
x[itself]
x.__setitem__(0, itself)
stack(itself)
cat(itself)
tensor_split(x, 10**30)
tensor_split(x, 2**40)
hsplit(x, 2**40)
zeros(2**31 - 1, 0).unbind(0)
list(zeros(2**31 - 1, 0))
zeros(2**31 - 1, 0).split(1)
zeros(2**31 - 1, 0).chunk(2**31 - 1)
zeros(0).chunk(2**31 - 1)
x.chunk(10**30)
F.adaptive_max_pool1d(ones(1, 1, 4), 2**40)
F.adaptive_avg_pool1d(ones(1, 1, 4), 2**40)
F.adaptive_avg_pool1d(ones(1, 1, 4), 2**63)
F.adaptive_max_pool2d(ones(1, 1, 4, 4), (2**40, 1))
mvlgamma(x, 2**31 - 1)
special.multigammaln(x, 2**31 - 1)
special.laguerre_polynomial_l(zeros(0), 2**31 - 1)
special.laguerre_polynomial_l(ones(2), 2**31 - 1)
special.legendre_polynomial_p(ones(2), 2**31 - 1)
special.hermite_polynomial_h(ones(2), 2**31 - 1)
special.chebyshev_polynomial_t(ones(2), 2**31 - 1)
polygamma(2**31 - 1, x)
linalg.matrix_power(eye(2), 2**62)
combinations(ones(100), 50)
combinations(ones(100), 50, with_replacement=True)
vander(ones(2), 2**40)
F.one_hot(tensor([1]), 2**40)
diff(x, 2**31 - 1)
F.pad(x, (2**40, 0))
x.roll(2**62, 0)
x.rot90(2**62)
x.repeat(2**31, 2**31)
histc(x, 2**40)
bincount(tensor([1]), minlength=2**40)
tril_indices(2**31, 2**31)
linspace(0, 1, 2**40)
arange(2**50)
randperm(2**40)
cartesian_prod(*[ones(100)] * 20)
F.max_pool1d(ones(1, 1, 4), 1, 1, 0, 2**40)
F.interpolate(ones(1, 1, 4), size=2**40)
zeros(*[1] * 70)
"""

CHILD = """
import resource, signal, sys
import kiln
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
F, itself, twice, x = kiln.nn.functional, [], [], kiln.ones(4, 4)
itself.append(itself)
twice.extend([twice, twice])
names = {n: getattr(kiln, n) for n in dir(kiln)}
names.update(F=F, itself=itself, twice=twice, x=x, list=list)
for call in sys.stdin.read().split("\\n"):
    print(call, flush=True)
    signal.alarm(20)
    try:
        eval(call, names)
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError, MemoryError, NotImplementedError):
        pass
    signal.alarm(0)
"""


pytestmark = [
    needs_kiln,
    pytest.mark.skipif(bool(os.environ.get("ASAN_OPTIONS")), reason="the sanitizer's memory has no limit"),
]


def test_every_call_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD], input=CALLS.strip(), capture_output=True, text=True, timeout=600
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, (last, done.returncode, done.stderr[-1000:])
    assert len(done.stdout.strip().split("\n")) == len(CALLS.strip().split("\n"))


def test_a_sample_of_all_calls_ends() -> None:
    *wrong, count = scan(Part(list(functions()), EVERY))
    assert not wrong
    assert int(count.split()[0]) * EVERY > 200_000


def test_the_scan_finds_what_does_not_end_or_ends_the_process() -> None:
    """factorial(2**62) does not; _exit does; index's error is no finding."""
    *wrong, count = scan(Part(["math.factorial", "os._exit", "operator.index"], every=40, offset=8, seconds=0.5))
    print(wrong,count)
    assert 0
