"""Attention of several heads and the transformer's layers beside PyTorch's."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from backend import filled, kiln, torch
from test_recurrent import equal

# settings, options of the call, how arrays come
HEADS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "self"),
    ({"batch_first": True}, {"attn_mask": "causal", "is_causal": True, "need_weights": False}, "self"),
    ({}, {"attn_mask": "causal", "is_causal": True}, "self"),
    ({"bias": False}, {"key_padding_mask": "bool", "need_weights": False}, "memory"),
    ({}, {"key_padding_mask": "bool", "attn_mask": "bool", "average_attn_weights": False}, "three"),
    ({"kdim": 3, "vdim": 5}, {"attn_mask": "heads"}, "three"),
    (
        {"add_bias_kv": True, "add_zero_attn": True},
        {"attn_mask": "float", "key_padding_mask": "float"},
        "three",
    ),
    (
        {"add_zero_attn": True, "batch_first": True},
        {"key_padding_mask": "bool", "need_weights": False},
        "memory",
    ),
    ({}, {"attn_mask": "float", "key_padding_mask": "float"}, "unbatched"),
    ({}, {"need_weights": False}, "unbatched self"),
]


def masks(call: dict[str, Any], length: int, keys: int, batch: int, heads: int, rng: Any) -> dict[str, Any]:
    """The options of a call with masks, as arrays, in place of their names."""
    found = dict(call)
    hidden = rng.random((length, keys)) < 0.3
    hidden[:, 0] = False
    match call.get("attn_mask"):
        case "causal":
            found["attn_mask"] = np.triu(np.full((length, keys), -np.inf), 1)
        case "bool":
            found["attn_mask"] = hidden
        case "float":
            found["attn_mask"] = rng.normal(size=(length, keys))
        case "heads":
            found["attn_mask"] = rng.normal(size=(batch * heads, length, keys))
    rows = np.array([[False] * (keys - 1 - k) + [True] * (k + 1) for k in range(batch)])
    match call.get("key_padding_mask"):
        case "bool":
            found["key_padding_mask"] = rows
        case "float":
            found["key_padding_mask"] = rng.normal(size=(batch, keys))
    return found


def made(k: Any, layer: str, *args: Any, **settings: Any) -> Any:
    """A layer with drawn weights, its text, and the names of what it holds."""
    model = getattr(k.nn, layer)(*args, dtype=k.float64, **settings)
    return filled(k, model), [repr(model), list(model.state_dict())]


def gradients(model: Any, found: Any, leaves: Any) -> Any:
    total = sum((y**3).sum() for y in found if y is not None)
    total.backward()
    return [y for y in found if y is not None], [x.grad for x in leaves], [p.grad for p in model.parameters()]


def heads_of(k: Any, settings: dict[str, Any], arrays: list[Any], which: Any, options: dict[str, Any]) -> Any:
    """What attention gives of query, key and value: of `arrays` those of the places `which`."""
    model, shown = made(k, "MultiheadAttention", 4, 2, **settings)
    leaves = [k.tensor(x, requires_grad=True) for x in arrays]
    more = {n: k.tensor(v) if isinstance(v, np.ndarray) else v for n, v in options.items()}
    return shown, gradients(model, model(*[leaves[n] for n in which], **more), leaves)


@pytest.mark.parametrize(("settings", "call", "form"), HEADS)
def test_attention_of_several_heads(
    settings: dict[str, Any], call: dict[str, Any], form: str, answers: Any
) -> None:
    rng = np.random.default_rng(1)
    batch = 1 if "unbatched" in form else 2
    keys = 3 if "self" in form else 5

    def array(length: int, width: int) -> Any:
        shape = (batch, length) if settings.get("batch_first") else (length, batch)
        return rng.normal(size=(*(shape if "unbatched" not in form else (length,)), width))

    arrays, which = [array(3, 4)], [0, 0, 0]
    if "self" not in form:
        arrays.append(array(keys, settings.get("kdim", 4)))
        which = [0, 1, 1]
        if form != "memory":
            arrays.append(array(keys, settings.get("vdim", 4)))
            which = [0, 1, 2]
    options = masks(call, 3, keys, batch, 2, rng)
    if "unbatched" in form and "key_padding_mask" in options:
        options["key_padding_mask"] = options["key_padding_mask"][0]
    (shown, mine), (wanted, theirs) = answers.both(heads_of, settings, arrays, which, options)
    assert shown == wanted
    equal(mine, theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm_first": True, "activation": "gelu", "batch_first": True},
        {"bias": False, "layer_norm_eps": 1e-3},
    ],
)
def test_transformer(settings: dict[str, Any], answers: Any) -> None:
    rng = np.random.default_rng(1)
    first = settings.get("batch_first", False)
    arrays = [rng.normal(size=(*((2, n) if first else (n, 2)), 8)) for n in (5, 3)]

    def run(k: Any, settings: dict[str, Any], arrays: list[Any]) -> Any:
        model, shown = made(k, "Transformer", 8, 2, 2, 1, 12, 0.0, **settings)
        causal = model.generate_square_subsequent_mask(3, dtype=k.float64)
        padding = k.tensor([[False] * 5, [False] * 3 + [True] * 2])
        src, tgt = leaves = [k.tensor(x, requires_grad=True) for x in arrays]
        options = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": causal}
        found = [model(src, tgt, **options), model(src, tgt, tgt_mask=causal, tgt_is_causal=True)]
        return shown, causal, gradients(model, found, leaves)

    (shown, causal, mine), (wanted, mask, theirs) = answers.both(run, settings, arrays)
    assert shown == wanted
    equal(causal, mask, 0.0)
    equal(mine, theirs)


def test_layers_hold_functions_that_can_be_copied() -> None:
    for activation in (kiln.nn.functional.relu, kiln.tanh, kiln.nn.functional.gelu):
        layer = kiln.nn.TransformerEncoderLayer(4, 2, 8, activation=activation)
        assert copy.deepcopy(layer).activation is activation
        assert pickle.loads(pickle.dumps(activation)) is activation


def test_dropout_of_weights() -> None:
    kiln.manual_seed(0)
    layer, x = kiln.nn.MultiheadAttention(4, 2, dropout=0.5), kiln.randn(6, 3, 4)
    weights = layer(x, x, x, average_attn_weights=False)[1]
    assert 0.3 < float((weights == 0).float().mean()) < 0.7
    layer.eval()
    assert (layer(x, x, x)[1] > 0).all()


MISTAKES = """
k.nn.MultiheadAttention(5,2)
k.nn.MultiheadAttention(0,2)
m(z(3,1,5),z(3,1,5),z(3,1,5))
m(z(3,1,4),z(3,1,4),z(2,1,4))
m(z(3,1,4),z(3,4),z(2,1,4))
m(z(4),z(3,4),z(2,4))
m(z(3,1,4),z(2,1,4),z(2,1,4),attn_mask=z(3,3))
m(z(3,1,4),z(2,1,4),z(2,1,4),attn_mask=z(1,3,2))
m(z(3,1,4),z(2,1,4),z(2,1,4),attn_mask=z(3,2).int())
m(z(3,1,4),z(2,1,4),z(2,1,4),attn_mask=z(3))
m(z(3,1,4),z(2,1,4),z(2,1,4),is_causal=True)
m(z(3,1,4),z(2,1,4),z(2,1,4),key_padding_mask=z(2,2).bool())
m(z(3,1,4),z(2,1,4),z(2,1,4),key_padding_mask=z(2).bool())
m(z(3,4),z(2,4),z(2,4),key_padding_mask=z(3).bool())
m(z(3,4),z(2,4),z(2,4),attn_mask=z(1,3,2))
k.nn.MultiheadAttention(4,2,kdim=3)(z(3,1,4),z(2,1,3),z(3,1,4))
k.nn.Transformer(8,2,1,1,8)(z(3,1,8),z(3,2,8))
k.nn.Transformer(8,2,1,1,8)(z(3,1,7),z(3,1,8))
k.nn.TransformerEncoderLayer(8,2,activation="x")
k.nn.TransformerEncoderLayer(8,2,16)(z(3,1,8),is_causal=True)
"""


@pytest.mark.parametrize("call", MISTAKES.strip().split("\n"))
def test_mistakes(call: str, answers: Any) -> None:
    """What PyTorch refuses is refused in its words."""

    def outcome(k: Any) -> Any:
        try:
            eval(call, {"k": k, "z": k.zeros, "m": k.nn.MultiheadAttention(4, 2)})
        except Exception as error:
            text = re.sub(r"^(MultiheadAttention|Transformer\w*): ", "", str(error))  # kiln names the layer
            return type(error), re.sub(r"torch|kiln", "", text)
        return None

    assert outcome(kiln) == answers(call, lambda: outcome(torch)) is not None
