"""Two generated tokens of Qwen3-8B after a prompt of nine.

    python qwen3_answer.py

The model uses bf16 and sdpa and is loaded directly to the device; the peaks count from then on.
"""

import torch
from random_checkpoint import checkpoint
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

PROMPT = 9
config = Qwen3Config(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rope_theta=1000000.0,
    tie_word_embeddings=False,
)
with checkpoint(Qwen3ForCausalLM, config, torch.bfloat16) as folder:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="cuda:0", attn_implementation="sdpa"
    )
model.eval()
print(torch.cuda.memory_allocated())
torch.cuda.reset_peak_memory_stats()
ids = torch.randint(config.vocab_size, (1, PROMPT)).to("cuda")
mask = torch.ones_like(ids)
with torch.inference_mode():
    outputs = model(input_ids=ids, attention_mask=mask, use_cache=True)
    token = outputs.logits[:, -1, :].argmax(-1, keepdim=True)
    token.item()
    mask = torch.cat([mask, torch.ones_like(token)], dim=1)
    outputs = model(
        input_ids=token,
        attention_mask=mask,
        past_key_values=outputs.past_key_values,
        use_cache=True,
    )
    outputs.logits[:, -1, :].argmax(-1, keepdim=True).item()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
