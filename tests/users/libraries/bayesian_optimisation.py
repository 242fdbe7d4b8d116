"""botorch: a Gaussian process fitted to twelve values, the next place by expected improvement, batches too."""

import botorch  # noqa: F401
import torch
from botorch.acquisition import LogExpectedImprovement, qExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

torch.manual_seed(0)
places = torch.rand(12, 2, dtype=torch.float64)
values = -(places - 0.3).pow(2).sum(-1, keepdim=True)
model = SingleTaskGP(places, values)
fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
assert (model.posterior(places).mean - values).abs().max() < 0.05

bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
better = LogExpectedImprovement(model, best_f=values.max())
place, _ = optimize_acqf(better, bounds=bounds, q=1, num_restarts=3, raw_samples=16)
assert (place - 0.3).abs().max() < 0.1, place

several = qExpectedImprovement(model, values.max(), sampler=SobolQMCNormalSampler(torch.Size([32])))
found = several(torch.stack([place, place + 0.4]).view(2, 1, 2))
assert found.shape == (2,) and found[0] > found[1] >= 0
print("ok")
