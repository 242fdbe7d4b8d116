"""What a type checker says of a user's program."""

from __future__ import annotations

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

PROGRAM = """
import kiln
from kiln import Tensor, nn
from kiln.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("scale", kiln.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x) * self.scale
        return y


net = Net()
optimizer = kiln.optim.Adam(net.parameters(), lr=1e-2)
schedule = kiln.optim.lr_scheduler.StepLR(optimizer, 10)
loader = DataLoader(TensorDataset(kiln.randn(64, 4), kiln.randn(64, 1)), batch_size=16, shuffle=True)


@kiln.compile
def step(x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@kiln.no_grad()
def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


with kiln.profile() as profile:
    total = sum(step(x, y).item() for x, y in loader)
schedule.step()
kiln.save(net.state_dict(), "net.safetensors")
net.load_state_dict(kiln.load("net.safetensors"))
print(scaled(net.body[0].weight, 2.0).shape[0], profile.launches, kiln.float32, kiln.device("cpu"))
"""

MISTAKES = """
scaled(kiln.ones(1), "2")
rows: int = kiln.Tensor().shape
kiln.optim.Adam(net.parameters(), learning_rate=1)
"""


def test_a_program_is_checked(tmp_path: Path) -> None:
    """Everything used is public and typed; three mistakes are found, and nothing else."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + MISTAKES)
    said, trouble, _ = api.run(
        ["--strict", "--no-incremental", "--config-file=", "--follow-imports=silent", str(program)]
    )
    first = PROGRAM.count("\n") + 2
    lines = [int(line.split(":")[1]) for line in said.splitlines() if ": error: " in line]
    assert not trouble and lines == [first, first + 1, first + 2], said
