"""What libraries read in `torch._utils`, and small things that programs ask PyTorch for."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from backend import kiln, needs_kiln

from kiln import _utils

pytestmark = needs_kiln

nn = kiln.nn


def test_tensors_as_one() -> None:
    parts = [kiln.arange(4.0).reshape(2, 2), kiln.zeros(0, 3), kiln.ones(3) * 5]
    flat = _utils._flatten_dense_tensors(parts)
    assert flat.tolist() == [0, 1, 2, 3, 5, 5, 5]
    again = _utils._unflatten_dense_tensors(flat, parts)
    assert all(kiln.equal(a, b) for a, b in zip(again, parts, strict=True))
    again[0][0, 0] = 7  # views, where there are elements
    assert flat[0] == 7
    with pytest.raises((RuntimeError, ValueError), match="non-empty list"):
        _utils._flatten_dense_tensors([])


def test_tensors_in_parts() -> None:
    a, b, c, d = kiln.ones(3), kiln.ones(2).double(), kiln.ones(4), kiln.ones(1)
    parts = list(_utils._take_tensors([a, b, c, d], 16))
    assert [[x.numel() for x in part] for part in parts] == [[3], [4], [1], [2]]
    flat = [x for part in parts for x in part]
    assert [x.numel() for x in _utils._reorder_tensors_as(flat, [a, b, c, d])] == [3, 2, 4, 1]


def test_numbers_of_devices() -> None:
    index = _utils._get_device_index
    assert (index(2), index("cuda:1"), index("cpu", allow_cpu=True), index(None, optional=True)) == (
        2,
        1,
        -1,
        None,
    )
    for device, said in (
        ("cpu", "Expected a non cpu device"),
        ("cuda", "specified index"),
        (None, "specified index"),
    ):
        with pytest.raises(ValueError, match=said):
            index(device)


class Wide(Exception):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first, second)


@pytest.mark.parametrize(("error", "kind"), [(KeyError("k"), KeyError), (Wide(1, 2), RuntimeError)])
def test_an_error_of_elsewhere(error: Exception, kind: type[Exception]) -> None:
    try:
        error.add_note("while it was read")
        raise error
    except Exception:
        wrapped = _utils.ExceptionWrapper(where="in thread 3")
    with pytest.raises(kind) as caught:
        wrapped.reraise()
    text = str(caught.value)
    kept = f"Caught {type(error).__name__} in thread 3.\nwhile it was read\nOriginal Traceback"
    assert text.startswith(kept)
    shown = traceback.format_exception_only(caught.value)[-1]  # its last line is the error's own
    assert shown.strip().endswith(("KeyError: 'k'", "Wide: (1, 2)")) and "\\n" not in shown


class Broken:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, k: int) -> Any:
        return {}["no such key"]


def test_a_worker_s_key_error_ends_with_the_key() -> None:
    with pytest.raises(KeyError) as caught:
        list(kiln.utils.data.DataLoader(Broken(), num_workers=1))
    said = traceback.format_exception_only(caught.value)[-1].strip().splitlines()
    assert said[0] == "KeyError: Caught KeyError in DataLoader worker process 0."
    assert said[-1] == "KeyError: 'no such key'"


def test_a_generator_that_was_given_no_seed() -> None:
    made, told = kiln.Generator(), kiln.Generator().manual_seed(67280421310721)
    assert made.initial_seed() == 67280421310721
    assert kiln.equal(kiln.rand(3, generator=made), kiln.rand(3, generator=told))


def test_devices_and_backends_that_are_not_here() -> None:
    for move in (lambda: kiln.ones(1).to("mps"), lambda: nn.Linear(1, 1).to("xla")):
        with pytest.raises(RuntimeError, match="PyTorch is not linked with support for (mps|xla) devices"):
            move()
    from kiln.capture.compile import InvalidBackend

    with pytest.raises(InvalidBackend, match="Invalid backend: 'nope'"):
        kiln.compile(lambda x: x, backend="nope")
    with pytest.raises(AttributeError, match="copy"):
        kiln.optim.SGD([kiln.ones(1)]).load_state_dict(None)  # type: ignore[arg-type]


def test_flags_of_attention() -> None:
    from kiln.nn.attention import SDPAParams, SDPBackend, sdpa_kernel

    cuda = kiln.backends.cuda

    def flags() -> tuple[bool, ...]:
        return (
            cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        )  # fmt: skip

    with sdpa_kernel(SDPBackend.MATH):
        assert flags() == (False, True, False, False)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert flags() == (True, True, False, False)
    assert flags() == (True, True, True, True)
    x = kiln.ones(1, 1, 2, 2)
    params = SDPAParams(x, x, x, None, 0.0, True, False)
    assert params.is_causal and not cuda.can_use_flash_attention(params)


def test_flat_weights_of_recurrent_layers() -> None:
    layer = nn.LSTM(2, 3, 2, bidirectional=True, proj_size=1)
    names = layer._flat_weights_names
    assert names[:6] == [
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0", "weight_ih_l0_reverse",
    ]  # fmt: skip
    assert [n for part in layer._all_weights for n in part] == names and len(names) == 20
    assert all(w is getattr(layer, n) for n, w in zip(names, layer._flat_weights, strict=True))
    layer._flat_weights = [nn.Parameter(w.detach() * 0) for w in layer._flat_weights]
    assert layer(kiln.ones(1, 1, 2))[0].abs().sum() == 0


def test_rows_of_bags_scaled_by_how_often_they_are_named() -> None:
    places, starts = kiln.tensor([0, 1, 1, 3, 1, 0]), kiln.tensor([0, 3])
    bag = nn.EmbeddingBag(4, 1, mode="sum", scale_grad_by_freq=True)
    (bag(places, starts) * kiln.tensor([[1.0], [3.0]])).sum().backward()
    assert bag.weight.grad.flatten().tolist() == pytest.approx([4 / 2, 5 / 3, 0, 3])
    with pytest.raises(ValueError, match="max mode does not support scaling the gradient"):
        nn.functional.embedding_bag(places, bag.weight, starts, None, 2.0, True, "max")
