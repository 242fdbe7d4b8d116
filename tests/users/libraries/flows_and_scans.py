"""normflows, jaxtyping, monai's networks."""

import normflows as nf
import torch
from jaxtyping import Float

torch.manual_seed(0)
base = nf.distributions.DiagGaussian(2, trainable=False)
flows = []
for _ in range(4):
    flows += [
        nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 16, 2], init_zeros=True)),
        nf.flows.Permute(2, mode="swap"),
    ]
flow = nf.NormalizingFlow(base, flows)
x = torch.randn(128, 2) * torch.tensor([2.0, 0.5]) + 1
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = flow.forward_kld(x)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] - 0.3, losses
assert flow.sample(5)[0].shape == (5, 2)
print("normflows", flush=True)
row: Float[torch.Tensor, "a b"] = torch.ones(2, 3)
assert isinstance(row, Float[torch.Tensor, "2 3"]) and not isinstance(row, Float[torch.Tensor, "3 2"])
print("jaxtyping", flush=True)
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

net = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2))
out = net(torch.randn(2, 1, 32, 32))
DiceCELoss(softmax=True, to_onehot_y=True)(out, torch.randint(0, 2, (2, 1, 32, 32))).backward()
print("ok")
