"""Layers and functions of einops."""

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
    EinMix("b t f -> b t g", weight_shape="f g", bias_shape="g", f=48, g=8),
    nn.GELU(),
    Reduce("b t g -> b g", "mean"),
    nn.Linear(8, 2),
)
images = torch.randn(3, 3, 8, 8)
out = net(images)
assert out.shape == (3, 2)
out.sum().backward()
assert all(p.grad is not None for p in net.parameters())
assert torch.equal(rearrange(images, "b c h w -> (b h) w c"), images.permute(0, 2, 3, 1).reshape(24, 8, 3))
assert torch.equal(reduce(images, "b c (h 2) w -> b c h w", "max"), images.view(3, 3, 4, 2, 8).amax(3))
assert torch.equal(repeat(images[0], "c h w -> c (h 2) w"), images[0].repeat_interleave(2, 1))
packed, shapes = pack([images, images[:, :, 0]], "b * w")
assert [t.shape for t in unpack(packed, shapes, "b * w")] == [(3, 3, 8, 8), (3, 3, 8)]
a, b = torch.randn(2, 3), torch.randn(3, 4)
torch.testing.assert_close(einsum(a, b, "i j, j k -> i k"), a @ b)
print("ok")
