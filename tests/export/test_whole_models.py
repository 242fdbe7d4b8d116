"""Whole models through every export, each beside its program at the corners of the declared sizes: the file
and the native library (of equal bits), the WebAssembly module and the ONNX model (within their bounds).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from subprocess import run
from typing import Any

import numpy as np
import pytest
from program_files import again
from whole_models import CALLS, MODELS, Gpt, ResNet18

import kiln
from kiln.export import export
from kiln.export.verification import Run
from kiln.onnx.running import BOUNDS, by_runtime
from kiln.standalone import verifying
from kiln.standalone.constants import memory_of
from kiln.standalone.native import library_of, target_of, write
from kiln.standalone.running import Loaded
from kiln.standalone.wasm import wasm_of

CASES = 2  # random sizes, beside the corners


def program_of(name: str) -> tuple[Any, Any, Any]:
    """The model, its program, and what calls it is verified by."""
    kiln.manual_seed(0)
    make, args, shapes = MODELS[name]
    model = make()
    if isinstance(model, kiln.nn.Module):
        model.eval()
    return model, export(model, args, dynamic_shapes=shapes), CALLS.get(name, CASES)


@pytest.mark.parametrize("name", MODELS)
def test_files(name: str) -> None:
    """The program and what is loaded of its file, beside the model."""
    model, program, cases = program_of(name)
    for made in (program, again(program)):
        report = made.verify(cases, against=model)
        assert report.equal, report


@pytest.mark.parametrize("name", MODELS)
def test_native_libraries(name: str, tmp_path: Path) -> None:
    _, program, cases = program_of(name)
    made = library_of(program._captured, "m")
    report = verifying.native(program, write(made, tmp_path)[0], made.driver, cases)
    assert report.equal, report


@pytest.mark.parametrize("name", MODELS)
def test_libraries_under_valgrind(name: str, tmp_path: Path) -> None:
    """The C example that is written beside a library touches nothing outside of what it allocated."""
    compiler, valgrind = which("cc"), which("valgrind")
    if compiler is None or valgrind is None or target_of(None).name == "aarch64":
        pytest.skip("needs valgrind and a C compiler on x86-64")
    program_of(name)[1].to_native(tmp_path, name="m", target="x86-64-v3")
    run([compiler, "-g", "m_example.c", "m.o", "-o", "main", "-lm"], cwd=tmp_path, check=True, timeout=120)
    checked = [valgrind, "-q", "--error-exitcode=9", "--undef-value-errors=no", "./main"]
    done = run(checked, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no error" in done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_webassembly_modules(name: str, tmp_path: Path) -> None:
    if which("node") is None:
        pytest.skip("Node.js is not installed")
    _, program, cases = program_of(name)
    made = wasm_of(program._captured, "m")
    report = verifying.wasm(program, write(made, tmp_path)[0], made.driver, cases)
    assert report.holds, report


@pytest.mark.parametrize("name", MODELS)
def test_onnx_models(name: str) -> None:
    pytest.importorskip("onnxruntime")
    _, program, cases = program_of(name)
    report = kiln.export.verification.beside(program, by_runtime(program.to_onnx().data, {}), BOUNDS, cases)
    assert report.holds, report


def words_of(first: int, count: int, scores: Callable[[int], Any]) -> list[int]:
    """The likeliest words, one after another."""
    words = [first]
    for _ in range(count):
        words.append(int(np.argmax(scores(words[-1]))))
    return words


def stepped(run: Run, states: dict[str, Any]) -> Callable[[int], Any]:
    """Calls of an export: what the program writes are further inputs and outputs."""
    now = dict(states)

    def scores(word: int) -> Any:
        came, *after = run({"word": np.array([word]), **now})
        now.update(zip(list(now), after))
        return came

    return scores


def test_every_export_of_a_gpt_writes_the_same_text(tmp_path: Path) -> None:
    """Keys and values are kept from word to word."""
    kiln.manual_seed(5)
    model = Gpt().eval()
    program = export(model, (kiln.tensor([3]),))
    found, loaded = program._captured, again(program)
    states = {found.state[k].name: memory_of(found.state[k].tensor).copy() for _, k in found.mutated}
    with kiln.no_grad():
        expected = words_of(3, 11, lambda word: model(kiln.tensor([word])).numpy())
        assert len(set(expected)) > 4
        assert words_of(3, 11, lambda word: loaded(kiln.tensor([word])).numpy()) == expected
    made = library_of(found, "m")
    library = Loaded(write(made, tmp_path)[0], made.driver)
    scores = stepped(lambda arrays: library.of_arrays(list(arrays.values())), states)
    assert words_of(3, 11, scores) == expected
    if find_spec("onnxruntime") is not None:
        assert words_of(3, 11, stepped(by_runtime(program.to_onnx().data, {}), states)) == expected
    if which("node") is not None:
        module = wasm_of(found, "w")
        with verifying.in_node(write(module, tmp_path)[0], module.driver) as run:
            assert words_of(3, 11, stepped(run, states)) == expected


@pytest.mark.skipif(not os.environ.get("KILN_TEST_FULL"), reason="seconds: KILN_TEST_FULL=1")
def test_a_resnet_of_the_paper(tmp_path: Path) -> None:
    """64 to 512 channels, images of 224 by 224, 1000 classes."""
    kiln.manual_seed(0)
    program = export(ResNet18(64, 1000).eval(), (kiln.randn(1, 3, 224, 224),))
    made = library_of(program._captured, "m")
    assert verifying.native(program, write(made, tmp_path)[0], made.driver, 1).equal
    if which("node") is not None:
        module = wasm_of(program._captured, "w")
        assert verifying.wasm(program, write(module, tmp_path)[0], module.driver, 1).holds
    pytest.importorskip("onnxruntime")
    assert kiln.export.verification.beside(program, by_runtime(program.to_onnx().data, {}), BOUNDS, 1).holds
