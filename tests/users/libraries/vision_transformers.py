"""vit_pytorch, x_transformers, denoising_diffusion_pytorch, lion_pytorch, ema_pytorch: each trains for a few steps."""

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet
from ema_pytorch import EMA
from lion_pytorch import Lion
from vit_pytorch import SimpleViT, ViT
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
images = torch.rand(4, 3, 16, 16)
labels = torch.tensor([0, 1, 2, 0])
sizes = dict(image_size=16, patch_size=4, num_classes=3, dim=32, depth=2, heads=2, mlp_dim=32)
for kind in (ViT, SimpleViT):
    model = kind(**sizes)
    ema = EMA(model, beta=0.9, update_every=1)
    optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=1e-2)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], losses
    assert ema(images).shape == (4, 3)
print("vit", flush=True)
text = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=20, max_seq_len=16, attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    )
)
rows = torch.arange(12).repeat(4, 1)
optimizer = torch.optim.Adam(text.parameters(), lr=1e-2)
losses = []
for _ in range(15):
    loss = text(rows)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
assert text.generate(rows[:, :3], 5).shape == (4, 5)
print("x_transformers", flush=True)
diffusion = GaussianDiffusion(
    Unet(dim=16, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=20, sampling_timesteps=4
)
loss = diffusion(images)
loss.backward()
assert all(p.grad is None or p.grad.isfinite().all() for p in diffusion.parameters())
assert diffusion.sample(batch_size=2).shape == (2, 3, 16, 16)
print("ok")
