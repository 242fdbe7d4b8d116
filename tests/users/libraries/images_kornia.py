"""kornia: filters, colours, warps and augmentations, with gradients."""

import kornia
import kornia.augmentation as A
import torch

torch.manual_seed(0)
images = torch.rand(2, 3, 16, 16, requires_grad=True)
grey = kornia.color.rgb_to_grayscale(images)
torch.testing.assert_close(
    kornia.color.hsv_to_rgb(kornia.color.rgb_to_hsv(images)), images, rtol=1e-3, atol=1e-3
)
edges = kornia.filters.sobel(grey)
kornia.filters.gaussian_blur2d(edges, (3, 3), (1.0, 1.0)).sum().backward()
assert images.grad.isfinite().all()
turned = kornia.geometry.transform.rotate(images, torch.tensor([90.0, 90.0]))
torch.testing.assert_close(turned, torch.rot90(images, 1, (2, 3)), rtol=1e-3, atol=1e-3)
augment = A.AugmentationSequential(
    A.RandomHorizontalFlip(p=1.0),
    A.RandomAffine(10.0, p=1.0),
    A.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0),
    data_keys=["input", "mask"],
)
out, mask = augment(images.detach(), torch.ones(2, 1, 16, 16))
assert out.shape == images.shape and mask.shape == (2, 1, 16, 16)
torch.testing.assert_close(
    kornia.geometry.linalg.transform_points(torch.eye(3)[None], torch.ones(1, 2, 2)), torch.ones(1, 2, 2)
)
assert kornia.losses.ssim_loss(images, images, 5) < 1e-4
print("ok")
