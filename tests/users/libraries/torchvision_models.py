"""Transforms and models of torchvision."""

import numpy as np
import torch
from PIL import Image
from torchvision import models, ops, transforms, tv_tensors, utils
from torchvision.transforms import v2

torch.manual_seed(0)
picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
old = transforms.Compose(
    [
        transforms.RandomResizedCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.2, 0.2, 0.2),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.2] * 3),
    ]
)
assert old(picture).shape == (3, 32, 32)
tensor = transforms.ToTensor()(picture)
assert torch.equal(transforms.CenterCrop(20)(tensor), tensor[:, 10:30, 15:35])
for change in (
    transforms.Resize(16, antialias=False), transforms.RandomRotation(20), transforms.GaussianBlur(3),
    transforms.RandomAffine(10, (0.1, 0.1)), transforms.RandomErasing(1.0), transforms.Grayscale(),
    transforms.RandomPerspective(), transforms.ColorJitter(0.2, 0.2, 0.2, 0.1),
):  # fmt: skip
    assert change(tensor).isfinite().all()
new = v2.Compose(
    [v2.ToImage(), v2.RandomCrop(32), v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True),
     v2.Normalize([0.5] * 3, [0.2] * 3)]
)  # fmt: skip
boxes = tv_tensors.BoundingBoxes([[1, 2, 10, 12]], format="XYXY", canvas_size=(40, 50))
image, moved = v2.RandomHorizontalFlip(1.0)(tv_tensors.Image(tensor), boxes)
assert moved.tolist() == [[40, 2, 49, 12]]
assert isinstance(moved, tv_tensors.BoundingBoxes) and isinstance(image, tv_tensors.Image)
assert new(picture).shape == (3, 32, 32)
x, y = v2.MixUp(num_classes=3)(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
assert y.shape == (4, 3)
for build in (models.resnet18, models.mobilenet_v3_small, models.squeezenet1_1, models.shufflenet_v2_x0_5):
    model = build(num_classes=5)
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
assert utils.make_grid(torch.rand(5, 3, 8, 8), nrow=3).shape == (3, 22, 32)
overlap = ops.box_iou(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 1, 3, 3]]))
torch.testing.assert_close(overlap, torch.tensor([[1 / 7]]))
assert ops.sigmoid_focal_loss(torch.randn(4, 3), torch.rand(4, 3), reduction="mean").isfinite()
print("ok")
