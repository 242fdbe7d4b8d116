"""Models of transformers with random weights: they train, generate, and are kept in files."""

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    get_cosine_schedule_with_warmup,
    set_seed,
)

set_seed(0)
ENDS = dict(bos_token_id=0, eos_token_id=1, pad_token_id=1)
MODELS = {
    "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4, **ENDS)),
    "llama": LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, **ENDS,
        )
    ),
    "t5": T5ForConditionalGeneration(
        T5Config(
            vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
            eos_token_id=1, pad_token_id=0,
        )
    ),
}  # fmt: skip


def train(model, steps, **batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, steps)
    model.train()
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    assert losses[-1] < 0.8 * losses[0], (type(model).__name__, losses[0], losses[-1])


row = torch.tensor([0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
for name, model in MODELS.items():
    print(name, flush=True)
    if name == "t5":
        train(model, 30, input_ids=row[None].repeat(4, 1), labels=row[None, 1:].repeat(4, 1))
    else:
        train(model, 30, input_ids=row[None].repeat(4, 1), labels=row[None].repeat(4, 1))
    start = row[None, :4]
    greedy = model.generate(start, max_new_tokens=6, do_sample=False)
    assert torch.equal(greedy, model.generate(start, max_new_tokens=6, do_sample=False, use_cache=False))
    beams = model.generate(start, max_new_tokens=6, num_beams=3, num_return_sequences=2)
    assert beams.shape[0] == 2
    set_seed(1)
    sampled = model.generate(start, max_new_tokens=6, do_sample=True, top_k=10, top_p=0.9, temperature=0.8)
    set_seed(1)
    assert torch.equal(
        sampled, model.generate(start, max_new_tokens=6, do_sample=True, top_k=10, top_p=0.9, temperature=0.8)
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder)
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
        assert torch.equal(again.generate(start, max_new_tokens=6, do_sample=False), greedy)

print("bert", flush=True)
small = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=32,
)  # fmt: skip
mask = torch.ones(4, 12, dtype=torch.long)
mask[0, 8:] = 0
words = torch.randint(2, 50, (4, 12))
train(BertForMaskedLM(BertConfig(**small)), 30, input_ids=words, attention_mask=mask, labels=words)
train(
    BertForSequenceClassification(BertConfig(num_labels=3, **small)), 30,
    input_ids=words, attention_mask=mask, labels=torch.tensor([0, 1, 2, 0]),
)  # fmt: skip
print("vit", flush=True)
vit = ViTConfig(
    image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    num_labels=3,
)  # fmt: skip
train(
    ViTForImageClassification(vit),
    30,
    pixel_values=torch.randn(4, 3, 16, 16),
    labels=torch.tensor([0, 1, 2, 0]),
)
print("ok")
