"""Metrics over batches, against what they are by hand."""

import torch
import torchmetrics as tm

torch.manual_seed(0)
scores, labels = torch.randn(60, 5).softmax(1), torch.randint(0, 5, (60,))
metrics = tm.MetricCollection(
    {
        "accuracy": tm.Accuracy("multiclass", num_classes=5, average="micro"),
        "f1": tm.F1Score("multiclass", num_classes=5, average="macro"),
        "auroc": tm.AUROC("multiclass", num_classes=5),
        "confusion": tm.ConfusionMatrix("multiclass", num_classes=5),
        "ap": tm.AveragePrecision("multiclass", num_classes=5),
        "kappa": tm.CohenKappa("multiclass", num_classes=5),
    }
)
for part in range(0, 60, 20):
    metrics.update(scores[part : part + 20], labels[part : part + 20])
found = metrics.compute()
assert found["accuracy"] == (scores.argmax(1) == labels).float().mean()
table = torch.zeros(5, 5, dtype=torch.long)
table.index_put_((labels, scores.argmax(1)), torch.ones(60, dtype=torch.long), accumulate=True)
assert torch.equal(found["confusion"], table)
hits = table.diagonal()
torch.testing.assert_close(found["f1"], (2 * hits / (table.sum(0) + table.sum(1))).mean())
metrics.reset()

x, y = torch.randn(40), torch.randn(40)
torch.testing.assert_close(tm.MeanSquaredError()(x, y), (x - y).square().mean())
torch.testing.assert_close(tm.PearsonCorrCoef()(x, y), torch.corrcoef(torch.stack([x, y]))[0, 1])
tm.SpearmanCorrCoef()(x, y)
tm.R2Score()(x, y)
mean = tm.MeanMetric()
mean.update(2.0)
mean.update(torch.tensor([4.0, 6.0]))
assert mean.compute() == 4
image = torch.rand(2, 3, 24, 24)
assert tm.image.StructuralSimilarityIndexMeasure(data_range=1.0)(image, image) > 0.999
assert tm.image.PeakSignalNoiseRatio(data_range=1.0)(image, image * 0.9) > 20
assert tm.text.Perplexity()(torch.randn(2, 6, 7), torch.randint(0, 7, (2, 6))) > 1
print("ok")
