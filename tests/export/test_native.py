"""Programs as native libraries: the bits of the program, its checks as codes, threads of the caller, and what
is refused.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from exported_models import Decoder
from native_libraries import assert_same_bits, leaves_of, library
from sample_calls import given, tensors

import kiln
from kiln import nn
from kiln.export import Dim, export
from kiln.nn import functional as F
from kiln.standalone import running
from kiln.standalone.native import TARGETS, library_of, target_of
from kiln.testing import mode_cases
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
RECORDS = sorted(
    (entry.record for entry in mode_cases.table().values() if entry.record.samples is not None),
    key=lambda record: str(record.name),
)
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "bool") if FULL else ("float32",)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("record", RECORDS if FULL else RECORDS[::9], ids=lambda record: str(record.name))
def test_ops(record: Any, dtype: str, tmp_path: Path) -> None:
    """Samples of an op as programs of one node."""
    function = getattr(record, "handle", None) or record.function
    dtype = "int64" if record.dtypes == "integral" else dtype
    for n, sample in enumerate(record.samples(np.random.default_rng(3), dtype)[: None if FULL else 2]):
        args, kwargs = tuple(map(given, sample.args)), {k: given(v) for k, v in sample.kwargs.items()}
        if not tensors([*args, *kwargs.values()]):
            continue
        try:
            program = export(lambda *a, **k: function(*a, **k), args, kwargs)
            program(*args, **kwargs)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, TracingError):
            continue  # not of this dtype, or goes by values
        if program._captured.by_steps:
            with pytest.raises(NotImplementedError, match="which NumPy and SciPy compute"):
                library(program, tmp_path, f"f{n}")
            continue
        assert_same_bits(library(program, tmp_path, f"f{n}"), program, args, kwargs)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 10),
    ).eval()  # fmt: skip


BATCH, TIME = Dim("batch"), Dim("time", min=2, max=64)
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "mlp": (mlp, lambda n, t: (kiln.randn(n, 128),), {0: BATCH}),
    "convolutions": (convolutions, lambda n, t: (kiln.randn(n, 1, 28, 28),), {0: BATCH}),
    "decoder": (Decoder, lambda n, t: (kiln.randint(0, 20, (n, t)),), {0: BATCH, 1: TIME}),
    "LSTM": (
        lambda: nn.LSTM(4, 3, num_layers=2, batch_first=True, bidirectional=True),
        lambda n, t: (kiln.randn(n, 5, 4),),
        {0: BATCH},
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        lambda n, t: (kiln.randn(n, t, 8),),
        {0: BATCH, 1: TIME},
    ),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_bits_of_kiln(name: str, threads: int, tmp_path: Path) -> None:
    """At several sizes, those of code of their own (1) and none at all (0) among them."""
    make, inputs, shapes = MODELS[name]
    program = export(make(), inputs(4, 6), dynamic_shapes=(shapes,))
    made = library(program, tmp_path)
    for n, t in ((4, 6), (1, 6), (1, 2), (7, 3), (33, 13), (0, 5)):
        if n or name != "LSTM":
            assert_same_bits(made, program, inputs(n, t), threads=threads)


@pytest.mark.parametrize("target", [t for t in TARGETS if target_of(None).includes(TARGETS[t])])
def test_levels_that_this_machine_has(target: str, tmp_path: Path) -> None:
    """A lower level runs here; products and sums have a stated order, so the bits are the same."""
    x = kiln.randn(5, 128)
    program = export(mlp(), (x,))
    assert_same_bits(library(program, tmp_path, target=target), program, (x,))


def test_weights_beside_the_library(tmp_path: Path) -> None:
    """The file is a usual one, and the library is small."""
    x = kiln.randn(5, 128)
    model = mlp().bfloat16()
    program = export(model, (x.bfloat16(),))
    made = library(program, tmp_path, "m", weights="beside")
    assert_same_bits(made, program, (x.bfloat16(),))
    held = kiln.load(str(tmp_path / "m.safetensors"))
    weights = [x for x in held.values() if x.dtype is kiln.bfloat16 and x.shape == (128, 256)]
    assert len(weights) == 1 and weights[0].equal(model[0].weight.detach().T)
    assert (tmp_path / "libm.so").stat().st_size < 80_000


def test_state_that_is_written(tmp_path: Path) -> None:
    """Buffers are further inputs and outputs."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = kiln.randn(6, 3)
    program = export(model, (x,))
    assert [kind for kind, _ in program._captured.mutated] == ["state"] * 3
    assert_same_bits(library(program, tmp_path), program, (x,))


def test_random_numbers_are_of_a_stated_seed(tmp_path: Path) -> None:
    """The seed and the position are integers of a run."""
    x = kiln.ones(50, 40)
    program = export(lambda x: (F.dropout(x, 0.3, True), x * kiln.rand(40)), (x,))
    made = library(program, tmp_path)
    assert_same_bits(made, program, (x,))
    first, again = made([x], (1, 0)), made([x], (2, 0))
    assert first[0].tobytes() != again[0].tobytes() and first[0].tobytes() == made([x], (1, 0))[0].tobytes()


def scripted(x: Any, n: Any) -> Any:
    """Branches, loops that end by a value, a result that only one way gives."""
    total = x * 0
    k = kiln.zeros((), dtype=kiln.int64)
    while k < n:
        k = k + 1
        if (x.sum() + k) % 2 > 1:
            continue
        total = total + x * k
        if total.sum() > 100:
            return total, k
    return total.sin(), k * 2


def test_control_flow(tmp_path: Path) -> None:
    """Every way through a script."""
    program = export(kiln.jit.script(scripted), (kiln.ones(3), kiln.tensor(3)))
    made = library(program, tmp_path)
    for first in (0.5, 1.25, 9.0, -3.0):
        for n in (0, 1, 2, 5, 40):
            assert_same_bits(made, program, (kiln.arange(3.0) * first, kiln.tensor(n)))


def test_scans(tmp_path: Path) -> None:
    """Steps over a dim whose length varies, forth and back, with what each gives."""

    def cumulative(x: Any, back: bool) -> Any:
        def step(state: Any, each: Any) -> tuple[Any, Any]:
            return state * 0.5 + each, state + each.sin()

        return kiln.graph.scan(step, kiln.zeros(3), x, reverse=back)

    for back in (False, True):
        x = kiln.randn(5, 3)
        program = export(lambda x: cumulative(x, back), (x,), dynamic_shapes=({0: Dim("t")},))  # noqa: B023
        made = library(program, tmp_path, f"s{int(back)}")
        for n in (5, 1, 2, 0):
            assert_same_bits(made, program, (kiln.randn(n, 3),))


# -- what a run refuses -----------------------------------------------------------------------------------


def refused(made: Any, inputs: list[Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        made(inputs)
    return str(caught.value)


def test_sizes_outside_of_the_declared_ones_write_nothing(tmp_path: Path) -> None:
    """A code for the workspace, the shape and the run."""
    program = export(
        lambda x, y: (x[:, 1:] * 2, y.sum()),
        (kiln.ones(4, 3), kiln.ones(3)),
        dynamic_shapes=({0: Dim("n", min=2, max=8), 1: Dim("m", min=2)}, {0: Dim("m", min=2)}),
    )
    made = library(program, tmp_path)
    assert_same_bits(made, program, (kiln.ones(8, 2), kiln.ones(2)))
    for n, m, told in ((1, 3, "n must be from 2 to 8"), (9, 3, "n must be"), (4, 1, "m must be from 2"),
                       (-5, 3, "n must"), (4, 1 << 62, "m must")):  # fmt: skip
        stated = np.array([n, m, 0], np.int64)
        with pytest.raises(RuntimeError, match=told):
            made.run([np.ones(3, np.float32)] * 2, stated)
        outputs = [np.full(4, 7.0, np.float32) for _ in range(2)]
        addresses = (np.array([x.ctypes.data for x in outputs]), np.array([x.ctypes.data for x in outputs]))
        code = made._run(addresses[0].ctypes.data_as(_VOID), stated.ctypes.data_as(_VOID),
                         addresses[1].ctypes.data_as(_VOID), None, None)  # fmt: skip
        assert told in made._message(code).decode()
        assert all((x == 7).all() for x in outputs)


_VOID = __import__("ctypes").c_void_p


def test_values_that_ops_refuse_are_codes(tmp_path: Path) -> None:
    """Positions out of range, of inputs and of what is computed; divisors; targets; embeddings."""
    table = kiln.randn(6, 2)
    position, divisor = kiln.tensor([1, 5, -6]), kiln.tensor([2, -3, 1])
    program = export(lambda p, d: (table[p], p // d, F.embedding(p.abs(), table)), (position - 0, divisor))
    made = library(program, tmp_path)
    assert_same_bits(made, program, (kiln.tensor([1, 5, -5]), divisor))
    assert "size is 6" in refused(made, [kiln.tensor([1, 6, 0]), divisor])
    assert "size is 6" in refused(made, [kiln.tensor([1, -7, 0]), divisor])
    assert "embedding" in refused(made, [kiln.tensor([1, -6, 0]), divisor])
    assert "divided by 0" in refused(made, [kiln.tensor([1, 2, 0]), kiln.tensor([1, 0, 1])])
    losses = export(
        lambda x, t: F.cross_entropy(x, t, ignore_index=-1), (kiln.randn(4, 3), kiln.tensor([0, 1, 2, -1]))
    )
    made = library(losses, tmp_path, "g")
    assert_same_bits(made, losses, (kiln.randn(4, 3), kiln.tensor([-1, 1, 2, -1])))
    assert "size is 3" in refused(made, [kiln.randn(4, 3), kiln.tensor([0, 3, 1, 1])])
    assert "size is 3" in refused(made, [kiln.randn(4, 3), kiln.tensor([0, -2, 1, 1])])


def test_positions_that_are_constants(tmp_path: Path) -> None:
    """They are asked for, too, where the size they are compared with varies."""
    position = kiln.tensor([0, 4])
    program = export(lambda x: x[position], (kiln.randn(6, 2),), dynamic_shapes=({0: Dim("n")},))
    made = library(program, tmp_path)
    assert_same_bits(made, program, (kiln.randn(5, 2),))
    assert "take_at" in refused(made, [kiln.randn(4, 2)])


def test_what_a_program_goes_by_is_checked(tmp_path: Path) -> None:
    """Values that were read when it was made, what ops expect, and the exceptions of a script."""
    with pytest.warns(UserWarning, match="goes by values"):
        draft = kiln.export.draft_export(lambda x: x * 2 if x.sum() > 0 else -x, (kiln.ones(2),))
    made = library(draft, tmp_path)
    assert made([kiln.ones(2)])[0].tolist() == [2, 2]
    assert "another value" in refused(made, [-kiln.ones(2)])

    @kiln.jit.script
    def positive(x: Any) -> Any:
        if x.sum() < 0:
            raise ValueError("a negative sum")
        if x.sum() > 100:
            raise RuntimeError("too much")
        return x.sqrt()

    program = export(positive, (kiln.ones(2),))
    made = library(program, tmp_path, "g")
    assert_same_bits(made, program, (kiln.ones(2),))
    assert refused(made, [-kiln.ones(2)]) == "ValueError: a negative sum"
    assert refused(made, [kiln.ones(2) * 99]) == "RuntimeError: too much"


# -- what to_native refuses -------------------------------------------------------------------------------


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    """Before anything is written."""
    program = export(nn.Linear(2, 3), (kiln.ones(1, 2),))
    for name in ("", "a b", "1x", "int", "a-b", "ä", 3):
        with pytest.raises(ValueError, match="identifier of C"):
            program.to_native(tmp_path, name=name)
    with pytest.raises(ValueError, match="a target among x86-64-v4"):
        program.to_native(tmp_path, target="sparc")
    with pytest.raises(ValueError, match="weights='inside' or 'beside'"):
        program.to_native(tmp_path, weights="far")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        program.to_native(tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_gradients_of_while_loops_are_refused() -> None:
    """Their memory grows with every step."""
    x = kiln.graph.placeholder("x", (2,), kiln.float32)
    y = kiln.graph.while_loop(lambda x: x.sum() < 10, lambda x: x * 2, x).sum()
    gradient = kiln.graph.Graph([x], [y]).gradient()
    with pytest.raises(ValueError, match="gradient of a while loop"):
        library_of(gradient._runs().captured, "f")


def test_a_library_holds_only_what_its_launches_need(tmp_path: Path) -> None:
    """Of a product's tiles and packing those that some launch goes to, and a driver for each."""
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    x = kiln.randn(32, 128)
    program = export(model, (x,), dynamic_shapes=({0: BATCH},))
    made = library(program, tmp_path, "m")
    for rows in (0, 1, 2, 9, 24, 32, 300):
        assert_same_bits(made, program, (kiln.randn(rows, 128),), threads=2)
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert (tmp_path / "libm.so").stat().st_size - weights < 30_000


@pytest.mark.parametrize("dims", [(7, 40, 520), (7, 40, 3), (0, 40, 5), (3, 0, 5), (130, 600, 70)])
def test_products_are_written_for_their_sizes(dims: tuple[int, int, int], tmp_path: Path) -> None:
    """Sizes that do not vary, none among them; factors in each layout; one kernel of two launches."""
    m, k, n = dims

    def function(a: Any, b: Any, c: Any) -> Any:
        return (
            (a @ b + 1).relu(),
            a @ c.T,
            (c @ a.T).T,
            (b.T @ a.T).T,
            a[:, ::2] @ b[::2],
            a.T.contiguous().T @ b,
        )

    given = kiln.randn(m, k), kiln.randn(k, n), kiln.randn(n, k)
    program = export(function, given)
    assert_same_bits(library(program, tmp_path), program, given, threads=3)


# -- callers ----------------------------------------------------------------------------------------------


def test_the_same_program_gives_the_same_files() -> None:
    """Byte for byte."""
    program = export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=({0: BATCH},))
    assert library_of(program._captured, "m").files == library_of(program._captured, "m").files


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("weights", ["inside", "beside"])
@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++"])
def test_c_programs(compiler: str, weights: str, tmp_path: Path) -> None:
    """The example, with the library and with the object; two programs in one file."""
    if which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=({0: BATCH},)).to_native(
        tmp_path, name="first", weights=weights
    )
    flags = ["-Wall", "-Wextra", "-Werror", *([] if compiler == "g++" else ["-std=c99", "-pedantic"])]
    source = ["first_example.c"] if compiler != "g++" else ["-x", "c++", "first_example.c", "-x", "none"]
    run(compiler, *flags, *source, "-L.", "-lfirst", "-Wl,-rpath,.", "-o", "shared", cwd=tmp_path)
    assert run("./shared", cwd=tmp_path) == "first: no error\n"
    run(compiler, *flags, *source, "first.o", "-o", "static", cwd=tmp_path)
    assert run("./static", cwd=tmp_path) == "first: no error\n"


def test_two_objects_in_one_program(tmp_path: Path) -> None:
    """Kernels of the same names do not meet."""
    compiler = which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    for name, width in (("one", 4), ("two", 7)):
        export(nn.Linear(width, 3), (kiln.ones(2, width),)).to_native(tmp_path, name=name)
    (tmp_path / "main.c").write_text(
        '#include "one.h"\n#include "two.h"\n#include <stdio.h>\n'
        "int main(void) { puts(one_message(0)); puts(two_message(0)); "
        "return one_workspace(0, 1) < 0 || two_workspace(0, 1) < 0; }\n"
    )
    run(compiler, "main.c", "one.o", "two.o", "-o", "both", cwd=tmp_path)
    assert run("./both", cwd=tmp_path) == "no error\n" * 2


def test_the_python_example_needs_no_kiln(tmp_path: Path) -> None:
    """It has NumPy and ctypes alone."""
    program = export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=({0: BATCH},))
    program.to_native(tmp_path, name="m")
    text = (tmp_path / "m_example.py").read_text()
    assert "kiln" not in text
    assert run(sys.executable, "m_example.py", cwd=tmp_path) == "m: no error (4, 10)\n"


def test_headers_say_what_a_call_takes(tmp_path: Path) -> None:
    """Names, dtypes, lengths and bounds, and every code."""
    program = export(
        lambda x, y: (x[:, 1:] + y, y > 0),
        (kiln.ones(4, 9), kiln.ones(8)),
        dynamic_shapes=({0: Dim("rows", min=1, max=50)}, None),
    )
    program.to_native(tmp_path, name="m")
    text = (tmp_path / "m.h").read_text()
    for line in ("inputs[0]  x: float32 [rows, 9], float", "inputs[1]  y: float32 [8], float",
                 "sizes[0]  rows, from 1 to 50", "outputs[0]  output[0]: float32 [rows, 8], float",
                 "outputs[1]  output[1]: bool [8], uint8_t", "1  rows must be from 1 to 50"):  # fmt: skip
        assert line in text, line


@pytest.mark.parametrize("rows", [1, 30, 200, 700])
def test_products_are_split_among_the_threads_of_a_caller(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows and columns, where there is work for several: bits do not depend on who computes what."""
    given: list[tuple[int, int]] = []

    class Noted(running._Threads):
        def __init__(self, count: int) -> None:
            def run(context: Any, body: Any, task: Any, units: int, grain: int) -> None:
                given.append((units, grain))
                for n, begin in enumerate(range(0, units, grain)):
                    body(task, begin, min(begin + grain, units), n % count)

            ctypes.Structure.__init__(self, count, None, running._RUN(run))

    monkeypatch.setattr(running, "_Threads", Noted)
    program = export(nn.Linear(600, 5000), (kiln.ones(3, 600),), dynamic_shapes=({0: BATCH},))
    made = library(program, tmp_path)
    x = kiln.randn(rows, 600)
    alone = made([x])[0].tobytes()
    for count in (2, 3, 7):
        assert made([x], None, count)[0].tobytes() == alone
    assert_same_bits(made, program, (x,), threads=2)
    assert given and all(units >= 5 * grain for units, grain in given)


def test_several_threads_call_one_library(tmp_path: Path) -> None:
    """Nothing is kept between calls."""
    from concurrent.futures import ThreadPoolExecutor

    program = export(mlp(), (kiln.ones(3, 128),), dynamic_shapes=({0: BATCH},))
    made = library(program, tmp_path)
    batches = [kiln.randn(1 + k % 40, 128) for k in range(60)]
    expected = [program(x).detach().numpy().tobytes() for x in batches]
    with ThreadPoolExecutor(4) as pool:
        came = list(pool.map(lambda x: made(leaves_of(program, (x,)))[0].tobytes(), batches))
    assert came == expected


BITS = """
#include "m.h"
#include <stdio.h>
#include <stdlib.h>
int main(void) {{
    for (int64_t n = 1; n < 40; n += 6) {{
        float *x = malloc(n * {width} * 4), *y = malloc(n * {results} * 4);
        void *workspace = malloc(m_workspace(&n, 1));
        for (int i = 0; i < n * {width}; i++) x[i] = (float)(i * 7919 % 1000) / 500.f - 1.f;
        const void *inputs[] = {{x}};
        void *outputs[] = {{y}};
        printf("%d", m_run(inputs, &n, outputs, workspace, NULL));
        for (int i = 0; i < n * {results}; i++) printf(" %a", y[i]);
        free(x), free(y), free(workspace);
    }}
    return 0;
}}
"""


class Lgamma(nn.Module):
    """A long body, with branches that few elements take."""

    def forward(self, x: Any) -> Any:
        return kiln.lgamma(x * 40 - 1)


def bits_program(folder: Path, target: str | None) -> None:
    """A program in C beside a library: it prints bits of results at several sizes."""
    model = nn.Sequential(
        nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 10), nn.Softmax(1), Lgamma()
    )
    kiln.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p)
    program = export(model, (kiln.ones(3, 24),), dynamic_shapes=({0: BATCH},))
    program.to_native(folder, name="m", target=target)
    (folder / "main.c").write_text(BITS.format(width=24, results=10))


def test_aarch64(tmp_path: Path) -> None:
    """A library and an object for another processor, run by an emulator: the bits of this one."""
    compiler, emulator = which("aarch64-linux-gnu-gcc"), which("qemu-aarch64")
    if compiler is None or emulator is None or which("cc") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc and qemu-aarch64")
    here, there = tmp_path / "here", tmp_path / "there"
    bits_program(here, None)
    bits_program(there, "aarch64")
    run("cc", "main.c", "m.o", "-o", "main", cwd=here)
    run(compiler, "main.c", "libm.so", "-Wl,-rpath,.", "-o", "shared", cwd=there)
    run(compiler, "main.c", "m.o", "-o", "static", cwd=there)
    expected = run("./main", cwd=here)
    for program in ("shared", "static"):
        assert run(emulator, "-L", "/usr/aarch64-linux-gnu", f"./{program}", cwd=there) == expected


def test_memory_under_valgrind(tmp_path: Path) -> None:
    """No access outside of what was allocated, at any size."""
    if which("valgrind") is None or which("cc") is None or target_of(None).name == "aarch64":
        pytest.skip("needs valgrind and a C compiler on x86-64")
    bits_program(tmp_path, "x86-64-v3")
    run("cc", "-g", "main.c", "m.o", "-o", "main", cwd=tmp_path)
    run("valgrind", "-q", "--error-exitcode=9", "--undef-value-errors=no", "./main", cwd=tmp_path)


def test_verified_libraries_have_equal_bits(tmp_path: Path, capsys: Any) -> None:
    """At the corners of the declared sizes; what is written too."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    program = export(model, (kiln.randn(6, 3),), dynamic_shapes=({0: Dim("n", min=2, max=40)},))
    program.to_native(tmp_path, verify=True)
    told = capsys.readouterr().out
    assert "as a library: " in told and "equal bits" in told and "they differ" not in told
    if target_of(None).name != "aarch64":
        with pytest.raises(ValueError, match="runs no aarch64"):
            program.to_native(tmp_path / "other", target="aarch64", verify=True)


def test_a_tensor_that_was_exchanged_is_the_one_written(tmp_path: Path) -> None:
    """Into libraries, models and files: what the program computes with now."""
    program = export(nn.Linear(2, 1), (kiln.ones(1, 2),))
    program.weight = nn.Parameter(kiln.full((1, 2), 7.0))
    assert_same_bits(library(program, tmp_path), program, (kiln.ones(1, 2),))
    again = kiln.onnx.load(program.to_onnx().data)
    assert again(kiln.ones(1, 2)).equal(program(kiln.ones(1, 2)))


def test_names_that_would_end_a_comment(tmp_path: Path) -> None:
    """Names of arguments are any text."""
    compiler = which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    x = kiln.ones(2)
    program = export(lambda **given: given["*/ </script> \n x"] * 2, (), {"*/ </script> \n x": x})
    program.to_native(tmp_path, name="m")
    run(compiler, "-fsyntax-only", "-Werror", "m_example.c", cwd=tmp_path)
    program.to_wasm(tmp_path, name="m")
    assert (tmp_path / "m.html").read_text().count("</script>") == 1
