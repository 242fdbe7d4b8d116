"""torchinfo's table of a model."""

import torch
from torch import nn
from torchinfo import summary

net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5)
)
found = summary(
    net,
    input_size=(2, 3, 8, 8),
    verbose=0,
    col_names=("input_size", "output_size", "num_params", "mult_adds"),
)
assert found.total_params == sum(p.numel() for p in net.parameters())
assert found.total_mult_adds == 2 * (224 * 64 + 512 * 5 + 5) + 2 * 16 or found.total_mult_adds > 30000
assert "Conv2d" in str(found) and "[2, 8, 8, 8]" in str(found)
rnn = nn.LSTM(4, 6, batch_first=True)
assert "LSTM" in str(summary(rnn, input_data=torch.randn(2, 5, 4), verbose=0))
print("ok")
