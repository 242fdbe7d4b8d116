"""Models of timm from their own weights: forward, backward, timm's optimizers and schedules."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

torch.manual_seed(0)
MODELS = {
    "resnet18": {},
    "mobilenetv3_small_050": {},
    "efficientnet_b0": {},
    "convnext_atto": {},
    "vit_tiny_patch16_224": {"img_size": 64},
    "swin_tiny_patch4_window7_224": {"img_size": 56, "depths": (1, 1), "embed_dim": 24, "num_heads": (1, 2)},
}
for name, options in MODELS.items():
    print(name, flush=True)
    model = timm.create_model(name, pretrained=False, num_classes=5, **options)
    size = options.get("img_size", 64)
    images, labels = torch.randn(2, 3, size, size), torch.tensor([1, 3])
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2, warmup_lr_init=1e-5)
    before = [p.detach().clone() for p in model.parameters()]
    for step in range(2):
        loss = LabelSmoothingCrossEntropy(0.1)(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        schedule.step(step + 1)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model.eval()
    with torch.no_grad():
        assert model(images).shape == (2, 5)
        assert model.forward_features(images).shape[0] == 2
features = timm.create_model("resnet18", features_only=True, out_indices=(1, 2))
print([f.shape for f in features(torch.randn(1, 3, 64, 64))])
ema = ModelEmaV3(model, decay=0.9)
ema.update(model)
for opt in ("sgd", "lamb", "lion", "adafactor", "rmsproptf", "nadamw", "lookahead_adamw"):
    weight = torch.nn.Linear(4, 3)
    optimizer = create_optimizer_v2(weight, opt=opt, lr=1e-2)
    weight(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
print("ok")
