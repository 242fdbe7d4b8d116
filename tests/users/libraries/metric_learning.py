"""pytorch_metric_learning, entmax, segmentation_models_pytorch."""

import segmentation_models_pytorch as smp
import torch
from entmax import entmax15, sparsemax
from pytorch_metric_learning import losses, miners
from torch import nn

torch.manual_seed(0)
embed = nn.Linear(6, 4)
x, labels = torch.randn(20, 6), torch.arange(20) % 4
mine = miners.MultiSimilarityMiner()
for loss in (
    losses.TripletMarginLoss(),
    losses.ContrastiveLoss(),
    losses.NTXentLoss(),
    losses.ArcFaceLoss(4, 4),
    losses.SupConLoss(),
):
    embed.zero_grad()
    out = embed(x)
    value = (
        loss(out, labels, mine(out, labels))
        if not isinstance(loss, losses.ArcFaceLoss)
        else loss(out, labels)
    )
    value.backward()
    assert embed.weight.grad.isfinite().all() and embed.weight.grad.any(), loss
scores = torch.tensor([[2.0, 1.0, -1.0]], requires_grad=True)
torch.testing.assert_close(sparsemax(scores, dim=1), torch.tensor([[1.0, 0.0, 0.0]]))
entmax15(scores, dim=1)[0, 0].backward()
assert scores.grad.isfinite().all()
print("entmax", flush=True)
for kind in (smp.Unet, smp.FPN, smp.DeepLabV3Plus):
    model = kind("resnet18", encoder_weights=None, in_channels=3, classes=2)
    out = model(torch.randn(2, 3, 64, 64))
    assert out.shape == (2, 2, 64, 64)
    smp.losses.DiceLoss("multiclass")(out, torch.randint(0, 2, (2, 64, 64))).backward()
    assert all(p.grad is not None for p in model.encoder.conv1.parameters())
print("ok")
