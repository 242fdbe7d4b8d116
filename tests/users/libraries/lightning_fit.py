"""A LightningModule trains, is validated, kept in a checkpoint and read again."""

import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
L.seed_everything(0)


class Classifier(L.LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.log("val_loss", nn.functional.cross_entropy(out, y), prog_bar=True)
        self.log("val_acc", (out.argmax(1) == y).float().mean())

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_acc", (self(x).argmax(1) == y).float().mean())

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)]


centres = 2 * torch.randn(4, 16)
labels = torch.arange(4).repeat(60)
points = centres[labels] + torch.randn(240, 16)
order = torch.randperm(240)
points, labels = points[order], labels[order]
train = DataLoader(TensorDataset(points[:160], labels[:160]), batch_size=16, shuffle=True)
held = DataLoader(TensorDataset(points[160:], labels[160:]), batch_size=40)

with tempfile.TemporaryDirectory() as folder:
    keep = ModelCheckpoint(dirpath=folder, monitor="val_loss", save_top_k=1, save_last=True)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=L.pytorch.loggers.CSVLogger(folder),
        callbacks=[keep, EarlyStopping("val_loss", patience=3), LearningRateMonitor()],
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        enable_progress_bar=True,
        enable_model_summary=True,
        default_root_dir=folder,
        log_every_n_steps=1,
    )
    model = Classifier()
    trainer.fit(model, train, held)
    (validated,) = trainer.validate(model, held)
    (tested,) = trainer.test(model, held)
    assert tested["test_acc"] > 0.9, tested
    again = Classifier.load_from_checkpoint(keep.best_model_path)
    assert again.hparams.width == 32
    kept = torch.load(keep.best_model_path, weights_only=False)["state_dict"]
    assert all(torch.equal(value, kept[name]) for name, value in again.state_dict().items())
    predicted = torch.cat(trainer.predict(again, held))
    assert (predicted == labels[160:]).float().mean() > 0.9
    # a second trainer goes on from the file
    more = L.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=folder
    )
    more.fit(Classifier(), train, held, ckpt_path=f"{folder}/last.ckpt")
    assert more.current_epoch == 5 and more.global_step == 45 - 20 + 5, (more.current_epoch, more.global_step)
print("ok")
