"""einops on kiln's tensors: registered with it, whichever is imported first, and never in its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kiln

BACKENDS = "class AbstractBackend:\n    framework_name = ''\n"


def run(program: str, folder: Path) -> str:
    """What a program prints, with packages in a folder."""
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def package(folder: Path, backends: str) -> None:
    (folder / "einops").mkdir()
    (folder / "einops" / "__init__.py").write_text("from . import _backends\n")
    (folder / "einops" / "_backends.py").write_text(backends)


SHOW = (
    "import sys; found = einops._backends.AbstractBackend.__subclasses__();"
    "print([c.framework_name for c in found], 'kiln.nn' in sys.modules,"
    "      [f for f in sys.meta_path if type(f).__module__ == 'kiln.late'])"
)


ASKED = "import kiln; from importlib.util import find_spec; find_spec('einops._backends'); import einops"


@pytest.mark.parametrize("order", ["import einops, kiln", "import kiln, einops", ASKED])
def test_the_backend_comes_with_einops(order: str, tmp_path: Path) -> None:
    package(tmp_path, BACKENDS)
    assert run(f"{order}; {SHOW}", tmp_path).strip() == "['kiln'] False []"


def test_another_version_of_einops_is_imported_all_the_same(tmp_path: Path) -> None:
    package(tmp_path, "nothing = 1\n")
    shown = run("import kiln, einops; print(einops._backends.nothing, kiln.ones(1).tolist())", tmp_path)
    assert shown.startswith("1 [1.0]") and "kiln.einops does not know this version" in shown


def test_functions_and_layers() -> None:
    einops = pytest.importorskip("einops")
    x = kiln.arange(24.0).reshape(2, 3, 4).requires_grad_()
    y = einops.rearrange(x, "b c h -> (b c) h")
    assert y.tolist() == x.reshape(6, 4).tolist()
    einops.reduce(x, "b c h -> b", "prod").sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    for name in ("min", "max", "mean", "sum"):
        got, want = (
            einops.reduce(x, "b c h -> c", name),
            einops.reduce(x.detach().numpy(), "b c h -> c", name),
        )
        assert got.tolist() == pytest.approx(want.tolist())
    assert einops.repeat(x, "b c h -> b r c h", r=5).shape == (2, 5, 3, 4)
    assert einops.einsum(x, x, "b c h, b d h -> b c d").shape == (2, 3, 3)
    packed, shapes = einops.pack([x, x], "b * h")
    assert packed.shape == (2, 6, 4) and [tuple(s) for s in shapes] == [(3,), (3,)]
    layers = kiln.einops
    model = kiln.nn.Sequential(
        layers.EinMix("b c h -> b d h", weight_shape="c d", bias_shape="d", c=3, d=5),
        layers.Reduce("b d h -> b d", "max"),
        layers.Rearrange("b d -> (b d)"),
    )
    model(x).sum().backward()
    assert model(x).shape == (10,) and model[0].weight.grad is not None
    assert dict(model[0].named_parameters()).keys() == {"weight", "bias"}
