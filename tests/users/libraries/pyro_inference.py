"""pyro: variational inference and Hamiltonian Monte Carlo of a normal mean, which is known."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam

pyro.set_rng_seed(0)
data = 1.5 + 0.5 * torch.randn(50)


def model(data=None):
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    with pyro.plate("rows", 50):
        return pyro.sample("x", dist.Normal(mean, 0.5), obs=data)


guide = AutoNormal(model)
svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
losses = [svi.step(data) for _ in range(200)]
assert losses[-1] < 0.5 * losses[0]
assert abs(guide.median()["mean"].item() - data.mean().item()) < 0.1
assert Predictive(model, guide=guide, num_samples=4)()["x"].shape[0] == 4
print("svi", flush=True)
mcmc = MCMC(NUTS(model), num_samples=60, warmup_steps=40, disable_progbar=True)
mcmc.run(data)
draws = mcmc.get_samples()["mean"]
assert abs(draws.mean().item() - data.mean().item()) < 0.1 and 0.02 < draws.std() < 0.2
print("ok")
