"""diffusers: a small UNet, schedules, a step of training and a pipeline."""

import tempfile

import torch
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, DPMSolverMultistepScheduler, UNet2DModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
)  # fmt: skip
schedule = DDPMScheduler(num_train_timesteps=50)
images = torch.rand(4, 1, 16, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(6):
    torch.manual_seed(1)
    noise = torch.randn_like(images)
    times = torch.randint(0, 50, (4,))
    loss = torch.nn.functional.mse_loss(model(schedule.add_noise(images, noise, times), times).sample, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0]
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    again = UNet2DModel.from_pretrained(folder, low_cpu_mem_usage=False)
    assert all(torch.equal(v, again.state_dict()[n]) for n, v in model.state_dict().items())
for kind in (DDIMScheduler, DPMSolverMultistepScheduler):
    steps = kind(num_train_timesteps=50)
    steps.set_timesteps(4)
    x = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        for t in steps.timesteps:
            x = steps.step(model(x, t).sample, t, x).prev_sample
    assert x.isfinite().all()
pipe = DDPMPipeline(model, schedule)
pipe.set_progress_bar_config(disable=True)
found = pipe(
    batch_size=1, num_inference_steps=3, output_type="np", generator=torch.Generator().manual_seed(0)
).images
assert found.shape == (1, 16, 16, 1)
print("ok")
