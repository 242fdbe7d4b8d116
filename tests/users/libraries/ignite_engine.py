"""ignite's engines: training, metrics, checkpoints, early stopping."""

import tempfile

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.handlers.param_scheduler import LinearCyclicalScheduler
from ignite.metrics import Accuracy, ConfusionMatrix, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
metrics = {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss()), "table": ConfusionMatrix(3)}
evaluator = create_supervised_evaluator(model, metrics)
schedule = LinearCyclicalScheduler(optimizer, "lr", 0.02, 0.005, 50)
trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
seen = []
with tempfile.TemporaryDirectory() as folder:
    keep = Checkpoint({"model": model, "optimizer": optimizer}, DiskSaver(folder), n_saved=2)

    @trainer.on(Events.EPOCH_COMPLETED)
    def check(engine):
        evaluator.run(loader)
        seen.append(evaluator.state.metrics["accuracy"])

    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=5), keep)
    evaluator.add_event_handler(
        Events.COMPLETED, EarlyStopping(20, lambda e: e.state.metrics["accuracy"], trainer)
    )
    trainer.run(loader, max_epochs=20)
    assert seen[-1] > 0.9 and abs(seen[-1] - (model(x).argmax(1) == y).float().mean().item()) < 1e-6, seen
    assert evaluator.state.metrics["table"].sum() == 120
    again = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    Checkpoint.load_objects({"model": again}, torch.load(f"{folder}/{keep.last_checkpoint.name}"))
    assert torch.equal(again[0].weight, model[0].weight)
print("ok")
