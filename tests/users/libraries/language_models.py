"""peft, sentence_transformers and open_clip on models of random weights."""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=30, n_positions=16, n_embd=24, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
)
base = GPT2LMHeadModel(config)
state = {name: value.clone() for name, value in base.state_dict().items()}
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True))
trained = [p for p in model.parameters() if p.requires_grad]
assert sum(p.numel() for p in trained) == 2 * 4 * (24 + 72)
rows = torch.arange(12).repeat(4, 1)
optimizer = torch.optim.AdamW(trained, lr=1e-2)
losses = []
for _ in range(10):
    loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0]
model.eval()
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    other = GPT2LMHeadModel(config)
    other.load_state_dict(state)
    other = PeftModel.from_pretrained(other, folder).eval()
    torch.testing.assert_close(other(rows).logits, model(rows).logits)
merged = model.merge_and_unload()
torch.testing.assert_close(merged(rows).logits, other(rows).logits, rtol=1e-4, atol=1e-4)
print("peft", flush=True)

from sentence_transformers.util import cos_sim, semantic_search

vectors = torch.randn(6, 8)
torch.testing.assert_close(cos_sim(vectors, vectors).diagonal(), torch.ones(6))
assert [hits[0]["corpus_id"] for hits in semantic_search(vectors[:3], vectors, top_k=1)] == [0, 1, 2]
print("sentence_transformers", flush=True)

import open_clip
from open_clip.model import CLIP

clip = CLIP(
    embed_dim=16, vision_cfg=dict(layers=1, width=16, head_width=8, patch_size=8, image_size=16),
    text_cfg=dict(context_length=8, vocab_size=40, width=16, heads=2, layers=1),
)  # fmt: skip
images, texts = torch.randn(3, 3, 16, 16), torch.randint(1, 40, (3, 8))
seen, said, scale = clip(images, texts)
loss = open_clip.ClipLoss()(seen, said, scale)
loss.backward()
assert loss.isfinite() and clip.token_embedding.weight.grad.any()
print("ok")
