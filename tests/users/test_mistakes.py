"""Typical mistakes: raised where PyTorch raises, as the same type, in words that name what was given."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from backend import kiln, torch

# (a program of the library, words its message must hold in both libraries)
MISTAKES: list[tuple[str, str]] = [
    ("t.ones(2).view()", "view.* received an invalid combination of arguments - got"),
    ("t.ones(2).reshape()", "reshape.* missing 1 required positional argument"),
    ("nn.LSTM(3, 4)(t.ones(5, 2, 3), (t.ones(1, 2, 4),))", "tuple index out of range"),
    ("nn.LSTM(3, 4)(t.ones(5, 2, 3), (t.ones(1, 2, 4),) * 3)", "lstm expects two hidden states"),
    ("nn.LSTMCell(3, 4)(t.ones(2, 3), (t.ones(2, 4),))", "lstm_cell expects two hidden states"),
    ("nn.LSTMCell(3, 4)(t.ones(2, 3), t.ones(2, 4))", "must be tuple of Tensors, not Tensor"),
    ("nn.LSTMCell(3, 4)(t.ones(1, 2, 3), 5)", "Expected input to be 1D or 2D, got 3D instead"),
    ("nn.GRUCell(3, 4)(t.ones(2, 3), t.ones(4))", "Input batch size 2 doesn't match hidden0 batch size 4"),
    ("t.backends.cuda.enable_math_sdp(1)", "expects a bool, but got int"),
    ("t.backends.cuda.preferred_linalg_library('x')", "Unknown input value. Choose from: default, cusolver"),
    ("t.signal.windows.hann(-1)", "general_cosine requires non-negative window length"),
    ("t.signal.windows.blackman(-1)", "blackman requires non-negative window length"),
    ("t.cuda.manual_seed('a')", "invalid literal for int"),
    ("t.fx.map_arg(1, 2)", "fn must be a callable"),
    ("nn.utils.weight_norm(nn.Linear(2, 2), dim=9)", "Dimension out of range"),
    ("t.distributions.Multinomial(-1, t.ones(3), validate_args=True)", "Expected parameter total_count"),
    ("F.mse_loss(t.ones(2), t.ones(3))", "must match the size of tensor b"),
    ("t.tensor([['a']])", "too many dimensions 'str'"),
    ("t.tensor([1, None])", "Could not infer dtype of NoneType"),
    ("t.tensor([None], dtype=t.float32)", "NoneType"),
    ("F.l1_loss(t.ones(4, 2), t.ones(4, 3))", "non-singleton dimension 1"),
    ("F.binary_cross_entropy_with_logits(t.ones(2), t.ones(2, 1))", "Target size .*2, 1"),
    ("F.binary_cross_entropy_with_logits(t.ones(2), t.ones(3))", "must be the same as input size"),
    ("F.binary_cross_entropy(t.ones(2), t.ones(3))", "[Tt]arget size"),
    ("t.ones(2).masked_fill(t.ones(2), 0)", "only supports boolean masks"),
    ("t.ones(3, 2)[0, 2]", "index 2 is out of bounds for dimension 1 with size 2"),
    ("t.ones(3, 2)[3]", "index 3 is out of bounds for dimension 0 with size 3"),
    ("t.ones(3).tril()", "at least 2 dimensions"),
    ("nn.Linear(3, 4)(t.ones(2, 5))", "mat1 and mat2 shapes cannot be multiplied"),
    ("F.cross_entropy(t.ones(2, 3), t.tensor([0.0, 1.0]))", "expected.*Long"),
    ("F.cross_entropy(t.ones(2, 3), t.tensor([0, 3]))", "Target 3 is out of bounds"),
    ("t.ones(2, requires_grad=True).add_(1)", "leaf Variable that requires grad"),
    ("t.ones(2, requires_grad=True).numpy()", "requires grad"),
    ("t.arange(3).requires_grad_()", "floating point"),
    ("(t.ones(2, requires_grad=True) * 2).backward()", "implicitly created only for scalar outputs"),
    ("bool(t.ones(2) > 0)", "more than one value"),
    ("nn.Linear(2, 2).load_state_dict({'weight': t.ones(2, 2)})", "Missing key.*bias"),
    ("t.ones(2).sum(dimm=0)", "dimm"),
    ("nn.Linear(2, 2, biass=False)", "biass"),
    ("nn.Linear(1, 1).foo", "foo"),
    ("t.zeros(2, dtype=t.bool).fill_('text')", "str"),
    ("t.zeros(2, dtype=t.bool).fill_((1, 2))", "tuple"),
    ("t.zeros(2, 2, dtype=t.bool).fill_diagonal_({})", "dict"),
    ("t.zeros(2, dtype=t.bool).copy_('text')", "str"),
    ("t.tensor({1}, dtype=t.bool)", "set"),
    ("t.tensor(b'12')", "bytes"),
    ("t.ones(2).size(0, 1)", "size.*2 were given"),
    ("t.ones(2).stride(0, 1)", "stride.*2 were given"),
    ("F.layer_norm(t.ones(2, 3), (3,), t.ones(1))", "weight.*normalized_shape"),
    ("F.layer_norm(t.ones(2, 3), (3,), None, t.ones(2, 3))", "bias.*normalized_shape"),
    ("F.rms_norm(t.ones(2, 3), (3,), t.ones(()))", "weight.*normalized_shape"),
    ("nn.init.normal_(t.ones(2), 0.0, -1.0)", "std >= 0.0"),
    ("nn.init.xavier_normal_(t.ones(2, 2), -1.0)", "std >= 0.0"),
    ("nn.init.uniform_(t.ones(2), 1.0, 0.0)", "range"),
    ("t.logsumexp(t.ones(2), 0, len)", "keepdim.*must be bool"),
    ("t.ones(2).requires_grad_('no')", "must be bool"),
    ("t.binomial(t.ones(2), t.ones(2, dtype=t.int64))", "floating-point dtypes for prob"),
    ("F.conv_transpose1d(t.ones(1, 1, 3), t.ones(1, 1, 2), output_padding=-1)", "negative output_padding"),
    ("F.cross_entropy(t.ones(2, 3), t.ones(2, 3, dtype=t.int64))", "Expected floating point type for target"),
    ("F.cross_entropy(t.ones(2, 3), t.tensor([0, 1]), t.ones(2))", "defined either for all 3 classes or no"),
    (
        "F.cross_entropy(t.ones(2, 3), t.ones(2, 3), ignore_index=1)",
        "ignore_index is not supported",
    ),
    ("F.cross_entropy(t.ones(2, 3, 5), t.ones(2, 4, dtype=t.int64))", r"Expected target size \[2, 5\]"),
    (
        "F.batch_norm(t.ones(2, 3), None, None, training=True, eps=0.0)",
        "eps must be positive during",
    ),
    ("F.multi_margin_loss(t.ones(2, 3), t.tensor([0]))", r"Expected target size \[2\], but got \[1\]"),
    ("F.mse_loss(t.ones(2), t.ones(2), reduction='abc')", "abc is not a valid value for reduction"),
    ("F.dropout(t.ones(2), 1.5)", "dropout probability has to be between 0 and 1, but got 1.5"),
    (
        "F.softshrink(t.ones(2), -0.5)",
        r"lambda must be in range \[0,.* dtype Float, but found -0.5",
    ),
    ("F.max_pool1d(t.ones(1, 1, 4), 2, dilation=0)", "dilation must be greater than zero, but got 0"),
    ("F.avg_pool2d(t.ones(1, 0, 4, 4), 2, padding=-1)", "pad must be non-negative, but got pad: -1"),
    ("F.adaptive_avg_pool2d(t.ones(2, 2), (2, 2))", "Input dimension should be at least 3"),
    ("F.conv1d(t.ones(1, 1, 4), t.ones(1, 2))", "weight should have at least three dimensions"),
    (
        "t.ones(2).abs_().acos_().add_(t.ones(3))",
        r"tensor a \(2\) must match the size of tensor b \(3\)",
    ),
    ("t.arange(3).add_(1.5)", "result type Float can't be cast to the desired output type Long"),
    ("t.arange(3).acos_()", "result type Float can't be cast to the desired output type Long"),
    ("t.abs(t.ones(2), 3)", "takes 1 positional argument but 2 were given"),
    ("t.ones(1).view(0, -1)", r"shape '\[0, -1\]' is invalid for input of size 1"),
    ("t.movedim(t.ones(2, 3, 4), (0, 1, -3), (0, 1, 2))", r"repeated dim in `source` \(\[0, 1, -3\]\)"),
    ("t.ones(()).unbind()", "Dimension specified as 0 but tensor has no dimensions"),
    ("t.eye(-1)", "n must be greater or equal to 0, got -1"),
    ("t.linspace(t.ones(2), 1, 3)", "only supports 0-dimensional start and end tensors"),
    ("t.linalg.cross(t.ones(2, 2), t.ones(2, 2))", "inputs dimension -1 must have length 3"),
    (
        "t.dot(t.ones(2), t.ones(2).double())",
        "vectors to have same dtype, but found Float and",
    ),
    (
        "t.addmm(t.ones(2, 2), t.eye(2).double(), t.eye(2))",
        "the same dtype, but got Double and Float",
    ),
    (
        "t.multinomial(t.tensor([-1.0, 1.0]), 2, True)",
        r"multinomial distribution \(encountering prob.* < 0",
    ),
    (
        "t.ones(3, 2).index_add(0, t.tensor([0, 1]), t.ones(2))",
        "source tensor shape must match self",
    ),
    (
        "t.ones(2, 2).scatter(0, t.zeros(1, 1).long(), t.ones(1, 1, 1))",
        "same number of dimensions as src tensor",
    ),
    (
        "t.aminmax(t.ones(0))",
        "cannot compute aminmax over an empty dimension",
    ),
    ("t.hsplit(t.ones(2, 2), 'text')", "received an invalid combination of arguments"),
    ("nn.init.calculate_gain('text')", "Unsupported nonlinearity text"),
    ("nn.ConvTranspose1d(1, 1, 2, padding_mode='reflect')", 'Only "zeros" padding mode is supported'),
    (
        "nn.Embedding(3, 2, _weight=t.ones(2, 2))",
        "Shape of weight does not match num_embeddings",
    ),
    ("nn.Linear(2, 2).register_buffer('a', 3)", "cannot assign 'int' object to buffer 'a'"),
    ("t.optim.lr_scheduler.StepLR(3, 2)", "int is not an Optimizer"),
    (
        "t.distributions.Normal(0.0, 1.0, validate_args=True).log_prob(3)",
        "value argument to log_prob must be a Tensor",
    ),
]

# (a call with True where a number belongs, the same with the number)
FLAGS_AS_NUMBERS = [
    ("t.lerp(x, x + 1, True)", "t.lerp(x, x + 1, 1.0)"),
    ("x.var(0, correction=True)", "x.var(0, correction=1)"),
    ("F.softshrink(x, True)", "F.softshrink(x, 1.0)"),
    ("F.hinge_embedding_loss(x, x, margin=True)", "F.hinge_embedding_loss(x, x, margin=1.0)"),
    ("F.multi_margin_loss(x, i, margin=True)", "F.multi_margin_loss(x, i, margin=1.0)"),
    ("F.cross_entropy(x, i, label_smoothing=True)", "F.cross_entropy(x, i, label_smoothing=1.0)"),
    ("F.max_pool1d(x, True)", "F.max_pool1d(x, 1)"),
]


@pytest.mark.parametrize(("program", "words"), MISTAKES, ids=[p for p, _ in MISTAKES])
def test_a_mistake_is_told_as_in_pytorch(program: str, words: str, answers: Any) -> None:
    def raised(lib: Any) -> type:
        names: dict[str, Any] = {"t": lib, "nn": lib.nn, "F": lib.nn.functional}
        with pytest.raises(Exception) as caught:
            eval(program, names)
        assert caught.match(words)
        return caught.type

    assert raised(kiln) is answers([program, words, raised], lambda: raised(torch))


@pytest.mark.parametrize(("program", "plain"), FLAGS_AS_NUMBERS, ids=[p for p, _ in FLAGS_AS_NUMBERS])
def test_true_is_the_number_one(program: str, plain: str) -> None:
    x = kiln.tensor([[1.0, 2.0], [3.0, -5.0]])
    names: dict[str, Any] = {"t": kiln, "F": kiln.nn.functional, "x": x, "i": kiln.tensor([0, 1])}
    for run in (eval, kiln.compile(lambda text, names: eval(text, names), wait=True)):
        assert run(program, names).tolist() == eval(plain, names).tolist()


def test_a_gradient_wants_a_coordinate_for_each_element() -> None:
    with pytest.raises(RuntimeError, match="a coordinate for each of the 3 elements"):
        kiln.gradient(kiln.ones(3), spacing=[kiln.arange(4.0)])


def test_a_wrong_size_is_told_without_the_frames_of_the_shape_rules() -> None:
    def program() -> Any:
        return kiln.ones(2, 3) @ kiln.ones(2, 3)

    for run in (program, kiln.compile(program)):
        with pytest.raises(RuntimeError, match="2x3 and 2x3") as caught:
            run()
        files = [str(entry.path) for entry in caught.traceback]
        assert len(files[files.index(__file__) :]) <= 5 and "products.py" not in files[-1]


def test_a_place_in_a_notebook_is_told_as_ipython_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"/tmp/ipykernel_7/12.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for file, place in (("/tmp/ipykernel_7/12.py", r"cell In\[3\], line 2"), ("train.py", r"train\.py:2")):
        space: dict[str, Any] = {"kiln": kiln}
        exec(compile("w = kiln.ones(3, requires_grad=True)\ny = w.exp()\ny.add_(1)", file, "exec"), space)
        with pytest.raises(RuntimeError, match=rf"was saved at version 0 \({place}\)"):
            space["y"].sum().backward()
        lines = "a = 1.0\n@kiln.pointwise\ndef f(x):\n    return x * a"
        with pytest.raises(TypeError, match=rf"f \({place}\) reads 'a'"):
            exec(compile(lines, file, "exec"), space)


def test_a_compiled_function_shows_what_it_is() -> None:
    @kiln.compile
    def step(x: Any) -> Any:
        return x

    assert "compiled" in repr(step) and "step" in repr(step)
    assert "Linear(in_features=2" in repr(kiln.compile(kiln.nn.Linear(2, 2)))


def test_messages_of_indexing_name_no_function_of_kilns_inside() -> None:
    """What a user wrote is `x[index]`: the text begins as PyTorch's does."""
    far, x = kiln.tensor([5]), kiln.zeros(2)
    for call in (lambda: x[far], lambda: x.__setitem__(far, 1), lambda: kiln.index_put(x, (far,), x[:1])):
        with pytest.raises(IndexError, match=r"^(index_put: )?index 5 is out of bounds for dimension 0"):
            call()


def test_a_hook_called_with_other_arguments_is_named() -> None:
    layer = kiln.nn.Linear(1, 1)

    def hook(module: Any, args: Any) -> None: ...

    layer.register_forward_pre_hook(hook, with_kwargs=True)
    with pytest.raises(TypeError, match=r"hook\(\) takes 2 positional arguments but 3 were given"):
        layer(kiln.ones(1))


def test_lists_of_tensors_refuse_what_pytorch_refuses() -> None:
    pair = [kiln.ones(2), kiln.ones(3)]
    with pytest.raises(RuntimeError, match="to be of dimension 1. Got 0 instead"):
        kiln._foreach_addcmul(pair, pair, pair, kiln.tensor(1.0))
    with pytest.raises(TypeError, match="'ord' .* must be Number"):
        kiln._foreach_norm(pair, "fro")


@pytest.mark.filterwarnings("ignore:This overload")
def test_numbers_in_the_order_before_keywords() -> None:
    x = kiln.ones(2)
    assert x.add_(2, 3).tolist() == [7.0, 7.0]
    assert kiln.sub(x, 2, 3).tolist() == [1.0, 1.0]


def test_what_a_call_raises_does_not_depend_on_how_often_it_ran() -> None:
    """The interpreter adapts the code of what runs often, which moves where an error is said to be raised."""
    said = []
    for _ in range(50):
        with pytest.raises(ValueError, match="could not convert string to float") as caught:
            kiln.nn.utils.clip_grad_norm_([], 1.0, "text")
        said.append(str(caught.value))
    assert len(set(said)) == 1
