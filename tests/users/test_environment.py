"""What a script asks of its surroundings: devices, flags, other processes; as PyTorch on the CPU answers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln

# every line gives in both libraries the same value, or an exception of the same type
DEVICES = """
L.device("cuda:0")
L.device("cuda", 1)
L.device("cuda:0") == L.device("cuda")
L.device(type="xpu", index=0)
L.device(L.device("mps"))
L.device("meta").type
L.device("cpu:1").index
L.device("")
L.device("foo")
L.device("CUDA")
L.device("cuda:x")
L.device("cuda:-1")
L.device("cuda:01")
L.device("cuda:")
L.device("cuda", -1)
L.device("cuda:0", 1)
L.device("cpu", "0")
L.device(0)
L.device(None)
L.device(3.5)
L.device("cpu") == "cpu"
{L.device("cuda:1"): 1}[L.device("cuda", 1)]
L.ones(2).to("cuda")
L.ones(2).to(L.device("cuda:0"))
L.ones(2).to("cuda", L.float64)
L.ones(2).to("foo")
L.ones(2, device="cuda")
L.ones(2, device=L.device("xpu"))
L.randn(2, device="mtia")
L.tensor([1.0], device="cuda")
L.ones(2).cuda()
L.ones(2).cuda(non_blocking=True)
L.ones(2).cuda("foo")
L.ones(2).xpu()
L.ones(2).is_cuda
L.ones(2).pin_memory()
L.ones(2).is_pinned()
L.nn.Linear(1, 1).cuda()
L.nn.Linear(1, 1).to("cuda")
L.nn.Linear(1, 1).xpu()
L.nn.ReLU().cuda()
L.Tensor(3, device="cuda")
L.get_default_device()
"""
ACCELERATORS = """
L.cuda.is_available()
L.cuda.device_count()
L.cuda.current_device()
L.cuda.get_device_name(0)
L.cuda.get_device_properties(0)
L.cuda.synchronize()
L.cuda.memory_allocated()
L.cuda.max_memory_allocated(0)
L.cuda.memory_stats()
L.cuda.empty_cache()
L.cuda.manual_seed(0)
L.cuda.manual_seed_all(0)
L.cuda.seed_all()
L.cuda.initial_seed()
L.cuda.get_rng_state()
L.cuda.get_rng_state_all()
L.cuda.is_initialized()
L.cuda.init()
L.cuda.is_bf16_supported()
L.cuda.get_arch_list()
L.cuda.mem_get_info()
L.cuda.ipc_collect()
L.cuda.Event()
L.cuda.Event(enable_timing=True)
L.cuda.Stream()
L.cuda.CUDAGraph()
L.cuda.current_stream()
L.cuda.stream(None).__enter__()
L.cuda.default_generators
L.cuda.FloatTensor(2)
isinstance(L.ones(1), L.cuda.FloatTensor)
isinstance(L.ones(1), L.cuda.Event)
issubclass(L.cuda.OutOfMemoryError, RuntimeError)
L.cuda.OutOfMemoryError is L.OutOfMemoryError
L.cuda.nvtx.range_push("a")
L.accelerator.is_available()
L.accelerator.current_accelerator()
L.accelerator.device_count()
L.accelerator.synchronize()
L.accelerator.current_device_index()
L.mps.is_available()
L.mps.device_count()
L.mps.empty_cache()
L.mps.manual_seed(0)
L.xpu.is_available()
L.xpu.synchronize()
L.xpu.empty_cache()
L.mtia.is_available()
L.cpu.is_available()
L.cpu.device_count()
L.cpu.current_device()
L.cpu.synchronize()
L.get_device_module("cuda").is_available()
L.get_device_module().__name__.rpartition(".")[2]
L.version.cuda
L.version.hip
"""
FLAGS = """
L.use_deterministic_algorithms(False)
L.set_warn_always(False)
L.backends.cudnn.enabled
L.backends.cudnn.benchmark
L.backends.cudnn.deterministic
L.backends.cudnn.allow_tf32
L.backends.cudnn.is_available()
L.backends.cudnn.version()
setattr(L.backends.cudnn, "benchmark", 3)
setattr(L.backends.cudnn, "enabled", "no")
L.backends.cuda.is_built()
L.backends.cuda.matmul.allow_tf32
setattr(L.backends.cuda.matmul, "allow_tf32", 1)
setattr(L.backends.cuda.matmul, "foo", 1)
L.backends.cuda.flash_sdp_enabled()
L.backends.cuda.math_sdp_enabled()
L.backends.mps.is_available()
L.backends.mps.is_built()
L.backends.opt_einsum.strategy
L.backends.mha.get_fastpath_enabled()
L.get_float32_matmul_precision()
L.set_float32_matmul_precision(1)
L.are_deterministic_algorithms_enabled()
L.use_deterministic_algorithms("a")
L.set_deterministic_debug_mode("foo")
L.set_deterministic_debug_mode(5)
L.get_deterministic_debug_mode()
L.set_num_interop_threads(0)
L.set_flush_denormal("on")
L.is_warn_always_enabled()
L.set_warn_always(1)
L.distributed.is_initialized()
L.distributed.get_rank()
L.distributed.get_world_size()
L.distributed.barrier()
L.jit.is_scripting()
L.jit.is_tracing()
L.jit.annotate(int, 3)
L.onnx.is_in_onnx_export()
L.compiler.is_compiling()
L.overrides.is_tensor_like(L.ones(1))
L.overrides.has_torch_function((L.ones(1),))
L.jit.script(3)
"""


def outcome(library: Any, line: str) -> str:
    """What a line gives, as text, or the builtin type of its exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = eval(line, {"L": library})
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
            return kinds[0]
    return repr(found)


@pytest.mark.parametrize("lines", [DEVICES, ACCELERATORS, FLAGS], ids=["devices", "accelerators", "flags"])
def test_as_pytorch_on_the_cpu(lines: str, answers: Any) -> None:
    wrong = []
    for line in lines.strip().splitlines():
        ours, theirs = answers.both(outcome, line)
        wrong += [] if ours == theirs else [f"{line}: {ours} against {theirs}"]
    assert not wrong, "\n".join(wrong)


def test_without_cuda_in_pytorchs_words() -> None:
    for call in (lambda: kiln.ones(1).cuda(), lambda: kiln.ones(1, device="cuda"), kiln.cuda.synchronize):
        with pytest.raises(
            AssertionError, match="^Torch not compiled with CUDA enabled: kiln runs on the CPU"
        ):
            call()
    with pytest.raises(NotImplementedError, match="ones: expected device 'cpu', got 'meta'"):
        kiln.ones(1, device="meta")
    with pytest.raises(AssertionError), kiln.device("cuda"):
        pass
    with kiln.device("cpu") as device:
        assert kiln.ones(1).device == device


def test_devices_pickle() -> None:
    for device in (kiln.device("cpu"), kiln.device("cuda:1")):
        again = pickle.loads(pickle.dumps(device))
        assert again == device and hash(again) == hash(device)


def test_flags_are_kept_and_restored() -> None:
    cudnn, cuda = kiln.backends.cudnn, kiln.backends.cuda
    with cudnn.flags(enabled=False, benchmark=True, deterministic=True):
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (False, True, True)
    assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (True, False, False)
    with pytest.raises(ZeroDivisionError), cudnn.flags(enabled=False):
        raise ZeroDivisionError
    assert cudnn.enabled
    with cuda.sdp_kernel(enable_flash=False):
        assert not cuda.flash_sdp_enabled() and cuda.math_sdp_enabled()
    assert cuda.flash_sdp_enabled()
    try:
        cuda.matmul.allow_tf32 = True
        assert kiln.get_float32_matmul_precision() == "high"
        kiln.set_float32_matmul_precision("highest")
        assert not cuda.matmul.allow_tf32
        kiln.use_deterministic_algorithms(True, warn_only=True)
        assert kiln.is_deterministic_algorithms_warn_only_enabled()
    finally:
        cuda.matmul.fp32_precision = "none"
        kiln.use_deterministic_algorithms(False)
    with pytest.warns(UserWarning, match="'highest', 'high', or 'medium'"):
        kiln.set_float32_matmul_precision("foo")
    assert kiln.get_float32_matmul_precision() == "highest"


REFUSED = {
    "kiln.distributed.init_device_mesh('cpu', (2,))": "distributed.init_device_mesh: kiln has collectives",
    "kiln.hub.load('a/b', 'c')": "hub: expected source='local', got source='github'; clone",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_cannot_be_done_says_so(call: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        eval(call, {"kiln": kiln})
    assert str(caught.value).startswith(REFUSED[call])


def test_decorators_of_scripts() -> None:
    @kiln.jit.script
    def twice(x: Any) -> Any:
        return x * 2

    class Net(kiln.jit.ScriptModule):
        @kiln.jit.script_method
        def forward(self, x: Any) -> Any:
            return twice(x)

        @kiln.jit.ignore
        def a(self) -> int:
            return 1

        @kiln.jit.ignore(drop=True)
        def b(self) -> int:
            return 2

    net = Net()
    assert net(kiln.ones(1)).item() == 2 and (net.a(), net.b()) == (1, 2)
    assert isinstance(net, kiln.nn.Module) and not isinstance(kiln.nn.ReLU(), kiln.jit.ScriptModule)
    step = kiln.compile(twice, mode="reduce-overhead", backend="inductor", dynamic=False)
    assert step(kiln.ones(1)).item() == 2
    assert kiln.compile(twice, disable=True) is twice
    assert kiln.compiler.disable(twice) is twice and kiln.compiler.disable(recursive=False)(twice) is twice


def test_operators_of_a_programs_own() -> None:
    @kiln.library.custom_op("mine::cube", mutates_args=())
    def cube(x: Any) -> Any:
        return x**3

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    cube.register_autograd(lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2, setup_context=setup)
    cube.register_fake(lambda x: kiln.empty_like(x))
    x = kiln.tensor([2.0], requires_grad=True)
    y = cube(x)
    y.backward()
    assert y.item() == 8 and x.grad.item() == 12
    with pytest.raises(ValueError, match="mine::twice"):
        kiln.library.custom_op("cube", mutates_args=())


def test_trees(answers: Any) -> None:
    from kiln.utils import _pytree

    def told(library: Any) -> Any:
        # imported here: what a function refers to from outside is part of its answer's name
        trees = import_module(f"{library.__name__}.utils._pytree")
        from collections import OrderedDict, namedtuple

        pair = namedtuple("pair", "x y")
        tree = {"a": [1, (2, None)], "b": OrderedDict(c=pair(3, [])), "d": {}}
        leaves, spec = trees.tree_flatten(tree)
        back = trees.tree_unflatten([str(x) for x in leaves], spec)
        return [leaves, repr(back), spec.num_leaves, repr(trees.tree_map_only(int, lambda x: -x, tree))]

    ours, theirs = answers.both(told)
    assert ours == theirs

    class Box:
        def __init__(self, x: Any) -> None:
            self.x = x

    _pytree.register_pytree_node(Box, lambda box: ([box.x], None), lambda xs, _: Box(*xs))
    try:
        assert _pytree.tree_map(lambda x: x + 1, Box([1, 2])).x == [2, 3]
        with pytest.raises(ValueError, match="already registered"):
            _pytree.register_pytree_node(Box, lambda box: ([], None), lambda xs, _: Box(0))
    finally:
        del _pytree.SUPPORTED_NODES[Box]
    with pytest.raises(ValueError, match="expected 2 leaves, got 1"):
        _pytree.tree_unflatten([1], _pytree.tree_structure((1, 2)))


def test_models_of_a_folder_and_files_of_an_address(tmp_path: Path) -> None:
    conf = (
        "dependencies = ['torch', 'math']\ndef net(n, bias=True):\n    'A net.'\n    return n, bias\n_x = 1\n"
    )
    (tmp_path / "hubconf.py").write_text(conf)
    folder = str(tmp_path)
    assert kiln.hub.list(folder, source="local") == ["net"]
    assert kiln.hub.help(folder, "net", source="local") == "A net."
    assert kiln.hub.load(folder, "net", 3, source="local", bias=False, trust_repo=True) == (3, False)
    assert folder not in sys.path
    with pytest.raises(RuntimeError, match="Cannot find callable mat in hubconf"):
        kiln.hub.load(folder, "mat", source="local")
    with pytest.raises(FileNotFoundError):
        kiln.hub.load(str(tmp_path / "no"), "net", source="local")
    (tmp_path / "hubconf.py").write_text("dependencies = ['no_such_package']\ndef net(): pass\n")
    with pytest.raises(RuntimeError, match="Missing dependencies: no_such_package"):
        kiln.hub.load(folder, "net", source="local")

    kiln.save({"w": kiln.ones(2)}, tmp_path / "w.safetensors")
    address = (tmp_path / "w.safetensors").as_uri()
    for _ in range(2):  # downloaded once
        found = kiln.hub.load_state_dict_from_url(address, model_dir=str(tmp_path / "kept"), progress=False)
        assert found["w"].tolist() == [1, 1]
        (tmp_path / "w.safetensors").write_bytes(b"")
    with pytest.raises(RuntimeError, match="invalid hash value"):
        kiln.hub.download_url_to_file(address, str(tmp_path / "other"), "0123")
    assert not (tmp_path / "other").exists()


def test_tensorboard_where_it_is_not_installed() -> None:
    """A sentence that says what to install."""
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "try: from kiln.utils.tensorboard import SummaryWriter\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("the package tensorboard is not installed; pip install tensorboard")


def test_what_tensorboard_reads(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from kiln.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        for step in range(3):
            writer.add_scalar("loss", kiln.tensor(1.0 / (step + 1)), step)
        writer.add_histogram("weights", kiln.linspace(-1, 1, 100), 0)
        writer.add_image("picture", kiln.rand(3, 4, 5))
        writer.add_text("note", "hello")
        writer.add_hparams({"lr": 0.1, "name": "sgd", "fast": True}, {"loss": 0.5}, run_name="run")
        with pytest.raises(ValueError):
            writer.add_scalar("loss", kiln.ones(2), 0)
    found = reader.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(e.step, round(e.value, 4)) for e in found.Scalars("loss")] == [(0, 1), (1, 0.5), (2, 0.3333)]
    values = found.Histograms("weights")[0].histogram_value
    assert (values.num, sum(values.bucket), values.min, values.max) == (100, 100, -1, 1)
    picture = found.Images("picture")[0]
    assert (picture.width, picture.height) == (5, 4) and picture.encoded_image_string[1:4] == b"PNG"
    assert (tmp_path / "run").is_dir()


def test_ways_to_compile_that_pytorch_has_not() -> None:
    for options in ({"mode": "foo"}, {"backend": "foo"}, {"mode": "default", "options": {}}):
        with pytest.raises(RuntimeError):
            kiln.compile(abs, **options)


def test_keywords_that_choose_nothing_and_old_names_of_arguments() -> None:
    chosen = {"name": "f", "recompile_limit": 4, "isolate_recompiles": True, "shapes_spec": None}
    x = kiln.arange(4.0)
    assert kiln.compile(lambda x: x + 1, **chosen)(x).tolist() == [1, 2, 3, 4]
    assert kiln.compile(**chosen)(lambda x: x * 2)(x).tolist() == [0, 2, 4, 6]
    model = kiln.nn.Sequential().extend(sequential=[kiln.nn.RMSNorm(4, elementwise_affine=False)])
    expected = model(x).tolist()
    model.compile(**chosen)
    assert model(x).tolist() == expected == model[0](x=x).tolist()
    assert [p.tolist() for p in kiln.split(tensor=x, split_size_or_sections=3)] == [[0, 1, 2], [3]]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        kiln.split(split_size_or_sections=3)
    assert kiln.FloatTensor.add(x, 1).tolist() == [1, 2, 3, 4]


def test_writes_through_storages() -> None:
    x = kiln.arange(4.0)
    x.untyped_storage().fill_(0)
    x.untyped_storage()[3], x.untyped_storage()[2] = 63, 128  # the bytes of 1.0
    assert x.tolist() == [1, 0, 0, 0]
    numbers = x[1:].storage()
    numbers[1] = 5
    assert x.tolist() == [1, 5, 0, 0]
    numbers.copy_(kiln.full((4,), 7.0).storage())
    assert x.tolist() == [7] * 4 and numbers.get_device() is None
    assert numbers.fill_(2) is numbers and x.tolist() == [2] * 4
    with pytest.raises(RuntimeError, match="expected a storage of 4 elements, got 3"):
        numbers.copy_(kiln.ones(3).storage())


def test_what_copies_of_programs_ask_for_by_the_way() -> None:
    images = kiln.ones(1, 2, 2, 2)
    for make in (kiln.rand_like, kiln.randn_like, lambda x, **k: kiln.randint_like(x, 3, **k)):
        assert make(images, memory_format=kiln.channels_last).stride() == (8, 1, 4, 2)
    narrow, first = kiln.ones(2, 2, dtype=kiln.bfloat16), kiln.tensor([0])
    with kiln.autocast("cpu"):
        assert kiln.zeros(2, 2).index_copy(0, first, narrow[:1]).dtype is kiln.float32
        assert narrow.index_copy(0, first, narrow[:1]).dtype is kiln.bfloat16
    assert bool(kiln.jit.script(kiln.nn.Linear(1, 1))) and "scatter_gather" in dir(kiln.nn.parallel)
    with pytest.raises(TypeError, match="got str"):
        images["a"]
    told: list[str] = []
    model = kiln.nn.Sequential(kiln.nn.ReLU(), kiln.nn.Tanh(), kiln.nn.ELU())
    registering = kiln.nn.modules.module.register_module_module_registration_hook
    handle = registering(lambda module, name, child: told.append(name))
    del model[0]
    model.insert(0, kiln.nn.Identity())
    handle.remove()
    assert not told and [str(m) for m in model] == ["Identity()", "Tanh()", "ELU(alpha=1.0)"]
    assert model[2] is getattr(model, "2") and list(model._modules) == ["0", "1", "2"]


def test_any_module_may_be_the_first_that_a_program_imports() -> None:
    program = """
import importlib, os, sys, traceback
import kiln
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module("kiln." + path)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, path
"""
    paths = (
        "nn.utils nn.utils.rnn nn.utils.prune nn.modules nn.modules.module nn.functional nn.init nn.parallel "
        "nn.attention nn.convolutions nn.layers nn.losses nn.multihead nn.pooling serialization optim"
    )
    done = subprocess.run([sys.executable, "-c", program, *paths.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
