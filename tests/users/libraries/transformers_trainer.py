"""The Trainer of transformers, by way of accelerate: it trains, evaluates, keeps checkpoints and goes on from one."""

import os
import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
ENDS = dict(bos_token_id=0, eos_token_id=1, pad_token_id=1)
config = GPT2Config(vocab_size=30, n_positions=16, n_embd=24, n_layer=1, n_head=2, **ENDS)


class Counting(Dataset):
    """Rows that count on from a start."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        row = (torch.arange(12) + index) % 28 + 2
        return {"input_ids": row, "labels": row}


with tempfile.TemporaryDirectory() as folder:
    options = dict(
        output_dir=folder, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=4, report_to=[],
        save_strategy="epoch", eval_strategy="epoch", use_cpu=True, seed=0, disable_tqdm=True,
        gradient_accumulation_steps=2, max_grad_norm=1.0,
    )  # fmt: skip
    trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(num_train_epochs=4, **options),
        train_dataset=Counting(),
        eval_dataset=Counting(),
    )
    before = trainer.evaluate()["eval_loss"]
    result = trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < 0.8 * before, (before, after)
    assert result.global_step == 8
    assert os.path.exists(f"{folder}/checkpoint-8/model.safetensors")
    more = Trainer(
        GPT2LMHeadModel(config), TrainingArguments(num_train_epochs=6, **options), train_dataset=Counting(),
        eval_dataset=Counting(),
    )  # fmt: skip
    assert more.train(resume_from_checkpoint=f"{folder}/checkpoint-8").global_step == 12
    assert more.evaluate()["eval_loss"] < after

# the same by hand, with accelerate's own loop
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Counting(), batch_size=4))
losses = []
for _ in range(4):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).item())
assert losses[-1] < 0.8 * losses[0]
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    torch.nn.init.zeros_(model.transformer.wpe.weight)
    accelerator.load_state(folder)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
print("ok")
