"""One optimizer step of a Qwen3.5 text model: all parameters, or LoRA adapters on linear layers.

    python qwen35_steps.py 0.8b|2b full|lora TOKENS [MICRO_BATCHES] [checkpointing]

The step has bf16 weights, one sequence with half of its labels masked, AdamW tensor by tensor, and
no cache. The model is loaded on the CPU and moved; the peaks count from the first forward pass.
"""

import sys

import torch
from random_checkpoint import checkpoint
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

size, method, length, *rest = sys.argv[1:]
is_checkpointed = "checkpointing" in rest
n_micro_batches = next((int(each) for each in rest if each.isdigit()), 1)
hidden, intermediate = {"0.8b": (1024, 3584), "2b": (2048, 6144)}[size]
config = Qwen3_5TextConfig(
    vocab_size=248320,
    hidden_size=hidden,
    intermediate_size=intermediate,
    num_hidden_layers=24,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=16,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    tie_word_embeddings=True,
)
with checkpoint(Qwen3_5ForCausalLM, config, torch.bfloat16) as folder:
    model = Qwen3_5ForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
model.config.use_cache = False
if method == "lora":
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, adapters)
if is_checkpointed:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if method == "lora":
        model.enable_input_require_grads()
model.train()
model.to("cuda")


def batch():
    ids = torch.randint(100, config.vocab_size, (1, int(length)))
    labels = ids.clone()
    labels[:, : int(length) // 2] = -100
    positions = torch.arange(int(length)).view(1, 1, -1).expand(3, 1, -1).clone()
    made = {"input_ids": ids, "labels": labels, "position_ids": positions}
    return {name: each.to("cuda") for name, each in made.items()}


batches = [batch() for _ in range(n_micro_batches)]
parameters = [each for each in model.parameters() if each.requires_grad]
optimizer = torch.optim.AdamW(parameters, lr=1e-5, foreach=False)
torch.cuda.reset_peak_memory_stats()
for at, each in enumerate(batches):
    outputs = model(**each, use_cache=False)
    loss = outputs.loss / n_micro_batches
    loss.backward()
    loss.detach().float().cpu()
    if at + 1 < n_micro_batches:
        del outputs, loss
optimizer.step()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
