"""PyTorch's programs run unchanged: `python -m kiln program.py`, `import kiln.as_torch`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from backend import needs_kiln

pytestmark = needs_kiln


def run(
    *args: str, cwd: Path, name: str = "kiln", stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python -m kiln args...` does; with another name, Python itself."""
    command = [sys.executable, *(["-m", "kiln"] if name == "kiln" else []), *args]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=env, input=stdin)


# what a program sees, and what libraries ask; in one process
NAMES = """
import importlib.metadata, importlib.util, sys
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim.lr_scheduler
import torch.nn.modules.module
import torch.utils._pytree
import torch.version
from torch import Tensor, optim
from torch._tensor import Tensor as SameTensor
from torch.autograd.function import Function
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import Parameter
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle
import kiln

assert torch is sys.modules["torch"] is not kiln and sys.modules["torch.nn"] is nn is kiln.nn
assert F is kiln.nn.functional and Tensor is SameTensor is kiln.Tensor and Parameter is nn.Parameter
assert isinstance(nn.Linear(1, 1), kiln.nn.Module) and issubclass(nn.Conv2d, _ConvNd)
assert kiln.nn.__spec__.name == "kiln.nn" and kiln.nn.__name__ == "kiln.nn"

assert kiln.__version__ == kiln.version.__version__ != torch.__version__ == torch.version.__version__
assert isinstance(torch.__version__, str) and torch.__version__.split("+")[0].count(".") == 2
assert torch.__version__ >= "2.9" and torch.__version__ < (3, 0) and not torch.__version__ < "2.2"
assert importlib.metadata.version("torch") == torch.__version__
assert "torch" in importlib.metadata.packages_distributions()["torch"]
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch.optim.lr_scheduler")
assert importlib.util.find_spec("torch.sparse") is None and importlib.util.find_spec("torch.errors2") is None
assert not hasattr(torch, "sparse") and torch.cuda.is_available() is False

for statement, words in (
    ("import torch.sparse", "No module named 'torch.sparse': kiln has no sparse tensors"),
    ("from torch import sparse", "cannot import name 'sparse' from 'kiln': kiln has no sparse tensors"),
    ("from torch.nn import Nothing", "cannot import name 'Nothing' from 'kiln.nn'"),
    ("import torch.nothing.at.all", "No module named 'torch.nothing'"),
):
    try:
        exec(statement)
    except ImportError as error:
        assert str(error) == words, error
    else:
        raise AssertionError(statement)

x = torch.zeros(2, 3, dtype=torch.float64)
assert [str(x.dtype), repr(x.shape)] == ["torch.float64", "torch.Size([2, 3])"]
assert x.type() == "torch.DoubleTensor"
assert repr(x[0]) == "tensor([0., 0., 0.], dtype=torch.float64)"
assert repr(torch.ones(2).max(0)) == "torch.return_types.max(\\nvalues=tensor(1.),\\nindices=tensor(0))"
# what is told apart by value is so also under another name
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert torch.autograd.gradcheck(torch.sin, (x.clone().requires_grad_(),))
assert torch.zeros(2, layout=torch.strided).layout is torch.strided
assert torch.zeros_like(x, memory_format=torch.preserve_format).shape == (2, 3)
try:
    x.t().contiguous(memory_format=torch.preserve_format)
except RuntimeError as error:
    assert "preserve memory format" in str(error)
else:
    raise AssertionError
# names of dtypes that kiln has no tensors of, for tables
assert {torch.complex64: 8, torch.float32: 4}[torch.complex64] == 8 and torch.complex64.is_complex
assert torch.finfo(torch.float8_e4m3fn).max == 448 and torch.finfo(torch.float32).eps == 2**-23
assert torch.iinfo(torch.uint16).max == 65535 and x.dtype != torch.complex64
try:
    torch.zeros(2, dtype=torch.complex64)
except TypeError as error:
    assert "got torch.complex64" in str(error)
else:
    raise AssertionError

torch._dynamo.config.suppress_errors = True
torch._inductor.config.triton.cudagraphs = True
assert torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU).has("AutocastCPU")
op = torch.library.Library("mine", "DEF")
op.impl("square", lambda x: x * x, "CPU")
op.impl("square", lambda x: 0, "CUDA")
assert torch.ops.mine.square(torch.tensor([3.0])).item() == 9 and not hasattr(torch.ops.mine, "cube")
try:
    torch.ops.load_library("a.so")
except OSError as error:
    assert "compiled for PyTorch" in str(error)
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.jit.annotations import BroadcastingList2, List
assert BroadcastingList2[int]
from torch.fx.node import Target
assert QuantStub()(x) is x
del sys.modules["torch"]
import torch as again
assert again.ones is kiln.ones
print("all of it")
"""


def test_what_a_program_sees(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text(NAMES)
    done = run("names.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr
    # what it asked for where no text shows that it only tried
    assert done.stderr.splitlines()[1:] == [
        "  <string>:1: torch.sparse: kiln has no sparse tensors",
        "  <string>:1: torch.nn.Nothing",
        "  <string>:1: torch.nothing",
    ]


# a program that prints what Python tells it, then fails; the module beside it fails in the end
TELLS = """
import json, os, sys
import beside
class Own: pass
def fail(): return json.dumps({"x": Own()})
print(__name__, __file__ == os.path.abspath("tells.py"), sys.argv, __spec__, __package__, __builtins__.len)
print(os.path.samefile(sys.path[0], "."), sys.modules["__main__"].Own is Own, Own.__module__)
if sys.argv[1:] == ["exit"]: sys.exit(7)
if sys.argv[1:] == ["words"]: sys.exit("so it ends")
if sys.argv[1:] == ["stop"]: raise KeyboardInterrupt
beside.call(fail)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "beside.py").write_text("def call(f):\n    return f()\n")
    return tmp_path


@pytest.mark.parametrize("args", [[], ["exit"], ["words"], ["stop"]], ids=["fails", "exit", "words", "stop"])
def test_as_python_runs_it(args: list[str], program: Path) -> None:
    """The same output, traceback and code: nothing of kiln is seen."""
    ours, theirs = (run("tells.py", *args, cwd=program, name=name) for name in ("kiln", "python"))
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_a_package_and_words_as_python_runs_them(program: Path) -> None:
    (program / "parcel").mkdir()
    text = (
        "import sys\nfrom . import inner\nprint(__name__, __package__, __spec__.name, sys.argv[1:], inner.x)"
    )
    text += "\n1 / 0\n"
    (program / "parcel" / "__main__.py").write_text(text)
    (program / "parcel" / "__init__.py").write_text("")
    (program / "parcel" / "inner.py").write_text("x = 3")
    for args in (["-m", "parcel", "a"], ["-c", "import sys; print(sys.argv, sys.path[0]); 1 / 0", "b"]):
        ours, theirs = (run(*args, cwd=program, name=name) for name in ("kiln", "python"))
        own = [line for line in theirs.stderr.splitlines() if "runpy" not in line]  # Python's way to it
        assert ours.stdout == theirs.stdout and ours.returncode == theirs.returncode == 1
        assert ours.stderr.splitlines()[-1] == own[-1] == "ZeroDivisionError: division by zero"
        assert "runpy" not in ours.stderr and "as_torch" not in ours.stderr
    text = "import sys; print(sys.argv, __name__, repr(sys.path[0]))\n1 / 0\n"
    ours, theirs = (run("-", "a", cwd=program, name=name, stdin=text) for name in ("kiln", "python"))
    assert (ours.stdout, ours.stderr, ours.returncode) == (theirs.stdout, theirs.stderr, theirs.returncode)
    for args, words in (
        (["no.py"], "can't open file 'no.py'"),
        (["-m", "no_such"], "No module named no_such"),
    ):
        done = run(*args, cwd=program)
        assert done.returncode and words in done.stderr and "Traceback" not in done.stderr


ASKS = """\
import torch
import torch.nn as nn
from torch import optim
try:
    import torch.sparse
except ImportError:
    torch = torch
if hasattr(torch, "sparse"):
    torch.sparse.mm
x = getattr(torch, "stft", None)
def later():
    return torch.view_as_real(x), nn.functional.nothing.at.all, optim.Nothing, torch.ones(1).to_sparse()
def fine():
    return nn.Linear, torch.fft, optim.SGD.step, torch.Tensor.add, torch.cuda.is_available, x.size.anything
import asks_too
from torch.nn import *
from torch.fft import rfft
torch.polar
"""
ASKED = """\
asks.py:12: torch.Tensor.to_sparse: kiln has no sparse tensors
asks.py:12: torch.nn.functional.nothing
asks.py:12: torch.optim.Nothing
asks.py:12: torch.view_as_real: kiln has no complex numbers
asks.py:17: torch.fft.rfft: kiln has no complex numbers
asks.py:18: torch.polar: kiln has no complex numbers
asks_too.py:1: torch.hub.nothing
"""


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    """Read without running, and after a run: once per line, not what was only tried."""
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "asks_too.py").write_text("from torch.hub import nothing\n")
    read = run("--missing", "asks.py", cwd=tmp_path)
    assert (read.returncode, read.stdout, read.stderr) == (1, ASKED, "")
    (tmp_path / "asks_too.py").write_text("import torch\nfor _ in range(2):\n    try:\n        later()\n"
                                          "    except NameError: pass\n")  # fmt: skip
    ran = run("asks.py", cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-3:] == [
        "AttributeError: module 'kiln' has no attribute 'polar': kiln has no complex numbers",
        "kiln: names of PyTorch that were asked for and are not there",
        "  asks.py:18: torch.polar: kiln has no complex numbers",
    ]
    assert "as_torch" not in ran.stderr and "absent.py" not in ran.stderr
    (tmp_path / "asks.py").write_text("import torch, torch.nn.functional as F\nF.relu(torch.ones(1).cpu())\n")
    read = run("--missing", "asks.py", cwd=tmp_path)
    assert (read.returncode, read.stdout) == (0, "")


def test_what_a_package_misses_is_read(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import pack.part\n")
    (tmp_path / "pack" / "part.py").write_text("import torch\ndef f(x): return torch.fft.rfft(x)\n")
    read = run("--missing", "-m", "pack", cwd=tmp_path)
    assert (read.returncode, read.stderr) == (1, "")
    assert read.stdout == "pack/part.py:2: torch.fft.rfft: kiln has no complex numbers\n"


PLACES = """
import copy, pickle, sys, typing
import torch, torch.fft
from torch import nn
from torch.fft import rfft

x = torch.ones(2)
net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.LSTM(1, 1), nn.Linear(1, 1))
adam = torch.optim.Adam(net.parameters())
d = torch.distributions
places = {
    "torch": [torch.Tensor, torch.Size, torch.dtype, torch.device, torch.FloatTensor, torch.finfo],
    "torch._C": [torch.Generator, torch.linalg.LinAlgError],
    "torch.return_types": [type(x.max(0)), torch.return_types.topk],
    "torch.nn.modules.module": [nn.Module],
    "torch.nn.modules.conv": [nn.Conv2d, nn.modules.conv._ConvNd, nn.LazyConv2d],
    "torch.nn.modules.batchnorm": [nn.BatchNorm2d, nn.modules.batchnorm._BatchNorm],
    "torch.nn.modules.rnn": [nn.LSTM],
    "torch.nn.modules.linear": [nn.Linear],
    "torch.nn.modules.activation": [nn.ReLU, nn.MultiheadAttention],
    "torch.nn.parameter": [nn.Parameter],
    "torch.optim.adam": [torch.optim.Adam],
    "torch.optim.lr_scheduler": [torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler.OneCycleLR],
    "torch.distributions.normal": [d.Normal],
    "torch.distributions.exp_family": [d.ExponentialFamily],
    "torch.distributions.transforms": [d.ExpTransform],
    "torch.utils.data.dataset": [torch.utils.data.Dataset, torch.utils.data.TensorDataset],
    "torch.utils.data.dataloader": [torch.utils.data.DataLoader],
    "torch.storage": [torch.UntypedStorage],
}
for place, classes in places.items():
    for kind in classes:
        assert kind.__module__ == place, (kind, kind.__module__, place)
        assert pickle.loads(pickle.dumps(kind)) is kind and place in sys.modules
assert str(type(x)) == "<class 'torch.Tensor'>" and "torch.nn.parameter.Parameter" in repr(nn.Parameter)
assert typing.get_type_hints(nn.Module) and not hasattr(torch.fft, "rfft")
class Named(torch.Tensor): pass
assert repr(x.as_subclass(Named)) == "Named([1., 1.])" and str(Named) == "<class '__main__.Named'>"
leaf = torch.ones(1, requires_grad=True)
node = (leaf * 2).grad_fn
for handle in (leaf.register_hook(abs), node.register_prehook(abs), net.register_forward_hook(abs)):
    assert isinstance(handle, torch.utils.hooks.RemovableHandle)
    handle.remove()
try:
    x.nothing
except AttributeError as error:
    assert str(error) == "'Tensor' object has no attribute 'nothing'"
try:
    rfft(x)
except NotImplementedError as error:
    assert str(error) == "fft.rfft: kiln has no complex numbers"

things = [
    net, adam, torch.optim.lr_scheduler.StepLR(adam, 2), d.Independent(d.Normal(x, 1.0), 1), x, torch.float32,
    x.shape, torch.device("cpu"), torch.strided, torch.Generator(), x.storage(), nn.Parameter(x),
    torch.utils.data.TensorDataset(x), nn.LazyLinear(2), torch.FloatStorage([1]), x.max(0),
]
for thing in things:
    for again in (copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
        assert type(again) is type(thing)
torch.save(things, "objects.pt")
with open("objects.pickle", "wb") as file:
    pickle.dump(things, file)
"""
AGAIN = """
import pickle, sys
import kiln
kinds = "Sequential Adam StepLR Independent Tensor dtype Size device layout Generator TypedStorage Parameter"
for things in (kiln.load("objects.pt", weights_only=False), pickle.load(open("objects.pickle", "rb"))):
    assert [type(t).__name__ for t in things][:12] == kinds.split(), things
    assert isinstance(things[0][3], kiln.nn.Linear) and things[5] is kiln.float32
    assert things[3].log_prob(kiln.zeros(2)).shape == ()
assert "torch" not in sys.modules
"""


def test_classes_say_where_pytorch_has_them(tmp_path: Path) -> None:
    """Their pickles are read with and without its name."""
    (tmp_path / "places.py").write_text(PLACES)
    (tmp_path / "again.py").write_text(AGAIN)
    done = run("places.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = run("again.py", cwd=tmp_path, name="python")
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_that_are_started_have_the_name(tmp_path: Path) -> None:
    text = """
import multiprocessing, torch
def work(x, answers): answers.put((x, torch.__version__, torch.ones(x).sum().item()))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=work, args=(3, answers))
    child.start()
    print(answers.get(timeout=60) == (3, torch.__version__, 3.0))
    child.join()
"""
    (tmp_path / "starts.py").write_text(text)
    done = run("starts.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_pytorch_itself_is_never_loaded(tmp_path: Path) -> None:
    """Whatever lies on the path; and who has loaded it is told."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("real_one = True\n__version__ = '0'\n")
    (tmp_path / "torch" / "sparse.py").write_text("")
    text = "import torch; print(hasattr(torch, 'real_one'))\n"
    text += "try: import torch.sparse\nexcept ImportError: print('no')\n"
    (tmp_path / "asks.py").write_text(text)
    assert run("asks.py", cwd=tmp_path).stdout == "False\nno\n"
    late = "import torch\ntry: import kiln.as_torch\nexcept ImportError as error: print(error)"
    (tmp_path / "late.py").write_text(late)
    told = run("late.py", cwd=tmp_path, name="python").stdout
    assert "PyTorch itself is loaded already" in told and "python -m kiln program.py" in told
