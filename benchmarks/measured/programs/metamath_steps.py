"""Steps of huggingface/peft's MetaMathQA comparison with Llama-3.2-3B, in batches of one length.

    python metamath_steps.py full|TYPE LENGTH STEPS [KEY=VALUE ...]

TYPE is an adapter type of peft, such as LORA, and KEY=VALUE its configuration in JSON. A batch has
four rows of LENGTH tokens; the optimizer is AdamW with clipped gradients, and the cache is emptied
every ten steps. Each step prints the allocated and reserved memory after it, less that before the
model was created, as the comparison logs it.
"""

import json
import sys

import torch
from peft import get_peft_config, get_peft_model
from random_checkpoint import checkpoint
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

method, *numbers = sys.argv[1:4]
length, steps = map(int, numbers)
settings = dict(each.split("=", 1) for each in sys.argv[4:])

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    tie_word_embeddings=True,
    rms_norm_eps=1e-5,
)
torch.cuda.reset_peak_memory_stats()
torch.nn.Linear(1, 1).to("cuda")
before = torch.cuda.max_memory_reserved()
with checkpoint(LlamaForCausalLM, config, torch.bfloat16) as folder:
    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map="cuda", torch_dtype=torch.bfloat16
    )
if method != "full":
    values = {key: json.loads(value) for key, value in settings.items()}
    adapters = get_peft_config({"peft_type": method, "task_type": "CAUSAL_LM", **values})
    model = get_peft_model(model, adapters, autocast_adapter_dtype=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
model.train()
for step in range(1, steps + 1):
    ids = torch.randint(0, config.vocab_size, (4, length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch = {name: each.to("cuda") for name, each in batch.items()}
    batch["labels"] = batch["input_ids"].clone()
    n_items = batch["attention_mask"].sum().item()
    optimizer.zero_grad()
    outputs = model(**batch, num_items_in_batch=n_items)
    loss = outputs.loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss.item()
    print(step, torch.cuda.memory_allocated() - before, torch.cuda.memory_reserved() - before)
    if step % 10 == 0:
        torch.cuda.empty_cache()
print(torch.cuda.max_memory_reserved() - before)
