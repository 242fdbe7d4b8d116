"""torchdiffeq and torchsde: solutions and their gradients."""

import torch
import torchsde
from torch import nn
from torchdiffeq import odeint, odeint_adjoint, odeint_event

torch.manual_seed(0)
times = torch.linspace(0, 1, 5, dtype=torch.float64)
start = torch.tensor([1.0, 2.0], dtype=torch.float64)
for method in ("dopri5", "rk4", "adaptive_heun", "midpoint", "implicit_adams"):
    found = odeint(
        lambda t, y: -y,
        start,
        times,
        method=method,
        options={"step_size": 0.05} if method in ("rk4", "midpoint") else None,
    )
    torch.testing.assert_close(found, start * torch.exp(-times)[:, None], rtol=2e-3, atol=1e-4)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, t, y):
        return -self.rate * y


field = Field()
grads = []
for solve in (odeint, odeint_adjoint):
    field.zero_grad()
    solve(field, start, times, rtol=1e-8, atol=1e-8)[-1].sum().backward()
    grads.append(field.rate.grad.clone())
torch.testing.assert_close(
    grads[0], -start.sum() * torch.exp(-torch.tensor(0.5, dtype=torch.float64)), rtol=1e-5, atol=0
)
torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=0)
when, _ = odeint_event(lambda t, y: -y, start, times[0], event_fn=lambda t, y: y[0] - 0.5)
torch.testing.assert_close(when, torch.tensor(2.0, dtype=torch.float64).log(), rtol=1e-4, atol=0)


class Noisy(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5))

    def f(self, t, y):
        return -self.rate * y

    def g(self, t, y):
        return 0.1 * torch.ones_like(y)


noisy = Noisy()
found = torchsde.sdeint(noisy, torch.ones(200, 1), torch.linspace(0, 1, 3), dt=0.05)
assert abs(found[-1].mean().item() - 0.607) < 0.03
torchsde.sdeint_adjoint(noisy, torch.ones(20, 1), torch.linspace(0, 1, 3), dt=0.1)[-1].sum().backward()
assert noisy.rate.grad < 0
print("ok")
