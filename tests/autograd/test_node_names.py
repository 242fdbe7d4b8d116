"""`grad_fn` of layers and functions that are one op in PyTorch too: its names, which programs look for."""

from __future__ import annotations

from typing import Any

import pytest
from backend import needs_kiln, needs_torch, torch

import kiln

pytestmark = needs_kiln

# of the functions of `nn.functional`, tensors' methods and `linalg`: x of one row, two channels and 4 x 4
NAMES = {
    "F.conv2d(x, torch.ones(3, 2, 2, 2))": "ConvolutionBackward0",
    "F.conv_transpose2d(x, torch.ones(2, 3, 2, 2))": "ConvolutionBackward0",
    "F.max_pool2d(x, 2)": "MaxPool2DWithIndicesBackward0",
    "F.avg_pool2d(x, 2)": "AvgPool2DBackward0",
    "F.avg_pool3d(x, 2)": "AvgPool3DBackward0",
    "F.adaptive_avg_pool2d(x, 3)": "AdaptiveAvgPool2DBackward0",
    "F.adaptive_max_pool2d(x, 3)": "AdaptiveMaxPool2DBackward0",
    "F.pad(x, (1, 1, 1, 1), mode='reflect')": "ReflectionPad2DBackward0",
    "F.pad(x[0], (1, 1), mode='replicate')": "ReplicationPad1DBackward0",
    "F.batch_norm(x, None, None, training=True)": "NativeBatchNormBackward0",
    "F.group_norm(x, 2)": "NativeGroupNormBackward0",
    "F.hardtanh(x)": "HardtanhBackward0",
    "F.glu(x, 1)": "GluBackward0",
    "F.celu(x)": "CeluBackward0",
    "F.prelu(x, torch.ones(1))": "PreluKernelBackward0",
    "F.softshrink(x)": "SoftshrinkBackward0",
    "F.fold(x.view(1, 8, 4), 3, 2)": "Col2ImBackward0",
    "x.index_add(0, torch.tensor([0]), x)": "IndexAddBackward0",
    "x.scatter(0, torch.zeros(1, 2, 4, 4).long(), x)": "ScatterBackward0",
    "x.diag_embed()": "DiagEmbedBackward0",
    "x.masked_select(x > 0)": "MaskedSelectBackward0",
    "x.median()": "MedianBackward0",
    "x.nan_to_num()": "NanToNumBackward0",
    "torch.cdist(x, x)": "CdistBackward0",
    "torch.linalg.det(x)": "LinalgDetBackward0",
    "torch.linalg.vector_norm(x, dim=1)": "LinalgVectorNormBackward0",
}


def name_of(lib: Any, expression: str) -> Any:
    x = (lib.arange(32.0).view(1, 2, 4, 4) % 7 / 8).requires_grad_()
    return eval(expression, {"torch": lib, "F": lib.nn.functional, "x": x}).grad_fn.name()


@pytest.mark.parametrize("expression", NAMES)
def test_names_are_pytorchs(expression: str) -> None:
    assert name_of(kiln, expression) == NAMES[expression]


def test_a_node_requires_a_gradient(answers: Any) -> None:
    """Of an op, of a leaf, of a function of the program's own."""

    def found(lib: Any) -> list[bool]:
        class Double(lib.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

        x = lib.ones(1, requires_grad=True)
        node = (x * 2).grad_fn
        nodes = (node, node.next_functions[0][0], Double.apply(x).grad_fn)
        return [each.requires_grad for each in nodes]

    ours, theirs = answers.both(found)
    assert ours == theirs == [True, True, True]


@needs_torch
@pytest.mark.parametrize("expression", NAMES)
def test_pytorch_says_so(expression: str) -> None:
    assert name_of(torch, expression) == NAMES[expression]
