"""captum: attributions of a linear model are its weights times its inputs."""

import torch
from captum.attr import (
    DeepLift,
    FeatureAblation,
    GradientShap,
    IntegratedGradients,
    LayerGradCam,
    Occlusion,
    Saliency,
)
from torch import nn

torch.manual_seed(0)
linear = nn.Linear(4, 2)
x = torch.randn(3, 4)
expected = linear.weight[1] * x
torch.testing.assert_close(IntegratedGradients(linear).attribute(x, target=1).float(), expected)
torch.testing.assert_close(FeatureAblation(linear).attribute(x, target=1), expected)
torch.testing.assert_close(Saliency(linear).attribute(x, target=1), linear.weight[1].abs().expand(3, 4))
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
image = torch.randn(2, 1, 6, 6)
given, gap = IntegratedGradients(net).attribute(image, target=0, n_steps=40, return_convergence_delta=True)
assert gap.abs().max() < 0.02
lifted = DeepLift(net).attribute(image, target=0)
torch.testing.assert_close(lifted.sum((1, 2, 3)), (net(image) - net(image * 0))[:, 0], rtol=1e-3, atol=1e-4)
assert LayerGradCam(net, net[0]).attribute(image, target=0).shape == (2, 1, 6, 6)
assert Occlusion(net).attribute(image, (1, 2, 2), target=0).shape == image.shape
assert GradientShap(net).attribute(image, baselines=torch.zeros(3, 1, 6, 6), target=0).shape == image.shape
print("ok")
