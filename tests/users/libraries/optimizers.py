"""torch_optimizer, pytorch_optimizer and torch_ema: every optimizer that can makes a loss smaller."""

import pytorch_optimizer
import torch
import torch_optimizer
from torch import nn
from torch_ema import ExponentialMovingAverage

torch.manual_seed(0)
x, y = torch.randn(32, 4), torch.randn(32, 1)


def tried(make):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    losses = []
    for _ in range(12):

        def closure():
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        loss = closure()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < losses[0], (optimizer, losses[0], losses[-1])


for name in "AdaBelief AdaBound DiffGrad Lamb RAdam Yogi NovoGrad QHAdam SWATS".split():
    tried(lambda parameters, name=name: getattr(torch_optimizer, name)(parameters, lr=1e-2))
for name in "adan adabelief lion lamb prodigy came ademamix schedulefreeadamw shampoo adopt tiger".split():
    try:
        made = pytorch_optimizer.load_optimizer(name)
    except NotImplementedError:
        continue
    tried(lambda parameters, made=made: made(parameters, lr=1e-2))
model = nn.Linear(2, 1)
average = ExponentialMovingAverage(model.parameters(), decay=0.5)
first = model.weight.detach().clone()
with torch.no_grad():
    model.weight.add_(1)
average.update()
with average.average_parameters():
    assert not torch.equal(model.weight, first) and not torch.equal(model.weight, first + 1)
torch.testing.assert_close(model.weight.detach(), first + 1)
print("ok")
