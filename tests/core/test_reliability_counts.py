"""Counts that no loop comes to the end of: each call ends at once, in a result or an exception. Here what is
known to be hard, and a sample of what `make counts` asks of every argument of every function.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import pytest
from backend import needs_kiln

pytest.importorskip("resource")  # limits of a process

import kiln
from kiln.ops.windows.adaptive_pools import _most
from kiln.testing.count_cases import Call
from kiln.testing.count_scan import Part, functions, scan, wrong
from kiln.testing.mode_cases import Arguments

EVERY = 1 if os.environ.get("KILN_TEST_FULL") else 251  # of so many calls of the scan one

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
F.conv_transpose2d(ones(1, 1, 4, 4), ones(1, 1, 2, 2), stride=2**20)
F.adaptive_avg_pool2d(ones(1, 1, 4, 4), 2**24)
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
    *found, count = scan(Part(list(functions()), EVERY))
    assert not found
    assert int(count.split()[0]) * EVERY > 200_000


@pytest.mark.parametrize(
    "name, call, end",
    [
        ("math.factorial", "math.factorial(n): 0 = 2**62", "did not end"),
        ("os._exit", "os._exit(n): 0 = 10**30", ""),
        ("os._exit", "os._exit(n): 0 = -1", "ended the process: 255"),
    ],
)
def test_the_scan_finds(name: str, call: str, end: str) -> None:
    labels = [made.label for made in Part([name]).calls()]
    *found, _ = scan(Part([name], len(labels), labels.index(call), seconds=0.5))
    assert found == ([f"{call}: {end}"] if end else [])


@pytest.mark.parametrize("error", [SystemError, RecursionError, AttributeError, AssertionError])
def test_errors_that_a_call_may_not_end_in(error: type[Exception]) -> None:
    def fails() -> None:
        raise error("told")

    assert wrong(Call("", fails, lambda: Arguments((), {}), of_table=True)) == f"{error.__name__}: told"


def test_errors_that_a_call_may_end_in() -> None:
    assert wrong(Call("", lambda: kiln.zeros(-1), lambda: Arguments((), {}), of_table=True)) == ""
    assert wrong(Call("", lambda: kiln.zeros(1), lambda: Arguments((), {}), of_table=True)) == ""


@pytest.mark.parametrize("call", [
    lambda x: kiln.as_strided_(3, (1,), (1,)), lambda x: kiln.fill_(3, 1), lambda x: x.map_(3, max),
    lambda x: x.is_set_to(3), lambda x: x.index_add_(0, 3, x),
])  # fmt: skip
def test_methods_and_in_place_forms_say_that_arguments_are_wrong(call: Any) -> None:
    with pytest.raises(TypeError, match=r"_\w*\(\): .*argument"):
        call(kiln.ones(2, 3))


def test_a_dim_is_an_index() -> None:
    assert kiln.masked.sum(kiln.ones(2, 3), kiln.arange(2)).item() == 6
    with pytest.raises(TypeError):
        kiln.masked.sum(kiln.ones(2, 3), kiln.ones(2))


def test_what_contains_itself_has_an_end() -> None:
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(ValueError, match="at most"):
        kiln.func.vmap(lambda x: x)(itself)
    with pytest.raises(ValueError, match="at most"):
        kiln.utils.data.default_collate([itself])


@pytest.mark.parametrize("make", [
    lambda: kiln.nn.LSTM(2, 2, num_layers=2**31 - 1),
    lambda: kiln.nn.Transformer(num_decoder_layers=2**31),
    lambda: kiln.nn.functional.local_response_norm(kiln.ones(1, 2, 3), 2**31 - 1),
    lambda: kiln.linalg.vander(kiln.ones(2), N=2**62),
    lambda: kiln.mvlgamma(kiln.ones(2), 2**31 - 1),
    lambda: kiln.pca_lowrank(kiln.ones(3, 3), niter=2**62),
    lambda: kiln.nn.functional.rms_norm(kiln.ones(2, 3), (2**63 - 1,)),
])  # fmt: skip
def test_a_count_that_is_too_large_raises(make: Any) -> None:
    with pytest.raises(RuntimeError):
        make()


def test_a_stride_beyond_the_kernel() -> None:
    y = kiln.nn.functional.conv_transpose1d(
        kiln.ones(1, 1, 3), kiln.tensor([[[2.0, 3.0]]]), stride=2**20, padding=1
    )
    assert y.shape == (1, 1, 2 * 2**20)
    assert y.nonzero()[:, 2].tolist() == [0, 2**20 - 1, 2**20, 2 * 2**20 - 1]
    assert y[0, 0, [0, 2**20 - 1, 2**20, -1]].tolist() == [3.0, 2.0, 3.0, 2.0]


def test_the_largest_window_of_an_adaptive_pool() -> None:
    for n in range(40):
        for w in range(1, 60):
            spans = [-(-(i + 1) * n // w) - i * n // w for i in range(w)]
            assert _most((n,), (w,)) == (max(spans),)


def test_terms_and_columns_are_no_ops_of_their_own() -> None:
    x = kiln.full((2,), 600.0, dtype=kiln.float64)
    p = 1000
    expected = sum(math.lgamma(600 - j / 2) for j in range(p)) + p * (p - 1) / 4 * math.log(math.pi)
    assert kiln.mvlgamma(x, p).tolist() == pytest.approx([expected] * 2, rel=1e-12)
    assert (
        kiln.vander(kiln.ones(3), 2**16).shape
        == kiln.linalg.vander(kiln.ones(3), N=2**16).shape
        == (3, 2**16)
    )
