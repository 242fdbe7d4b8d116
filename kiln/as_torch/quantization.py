"""`torch.ao.quantization`, as models name it that may be quantized: they are not, and compute in floats."""

from __future__ import annotations

from typing import Any, NoReturn

from kiln import Tensor, absent, nn

__all__ = ["DeQuantStub", "QuantStub", "QuantWrapper"]


class QuantStub(nn.Module):
    """Where a quantized model would quantize: passes its input on, as PyTorch's before that."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        self.qconfig = qconfig

    def forward(self, x: Tensor) -> Tensor:
        """The input."""
        return x


class DeQuantStub(QuantStub):
    """Where a quantized model would give floats: passes its input on."""


class QuantWrapper(nn.Module):
    """A module between the two."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.quant, self.module, self.dequant = QuantStub(), module, DeQuantStub()

    def forward(self, x: Tensor) -> Any:
        """What the module gives."""
        return self.dequant(self.module(self.quant(x)))


def __getattr__(name: str) -> NoReturn:
    absent.no_attribute(__name__, name, "ao.quantization")
