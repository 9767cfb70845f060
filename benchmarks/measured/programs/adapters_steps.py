"""Training steps of LoRA adapters on a language model, its weights in bf16 or quantized to 4 bit.

    python adapters_steps.py 0.5b|1.5b|3b|7b|tiny lora|qlora TOKENS BATCH STEPS RANK [WORD ...]

The model is Qwen2.5 or a tiny GPT-2, with adapters on the projections of attention, paged 8-bit
AdamW, checkpointing, and attention masks of ones. The peaks count from before the model is loaded.

whole: no checkpointing.
windows: attention of PyTorch's builds for Windows, which lack flash attention.
"""

import sys

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from random_checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

size, method, *numbers = sys.argv[1:]
length, batch, steps, rank = map(int, numbers[:4])
is_checkpointed = "whole" not in numbers
if "windows" in numbers:
    torch.backends.cuda.enable_flash_sdp(False)
SHAPES = {  # hidden, intermediate, layers, heads, key-value heads, vocabulary, tied
    "0.5b": (896, 4864, 24, 14, 2, 151936, True),
    "1.5b": (1536, 8960, 28, 12, 2, 151936, True),
    "3b": (2048, 11008, 36, 16, 2, 151936, True),
    "7b": (3584, 18944, 28, 28, 4, 152064, False),
}
if size == "tiny":
    architecture = GPT2LMHeadModel
    config = GPT2Config(n_embd=2, n_layer=2, n_head=2)
    targets = ["c_attn"]
else:
    architecture = Qwen2ForCausalLM
    hidden, intermediate, layers, heads, kv_heads, vocabulary, is_tied = SHAPES[size]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=32768,
        rope_theta=1000000.0,
        tie_word_embeddings=is_tied,
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]

torch.cuda.reset_peak_memory_stats()
given = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
if method == "qlora":
    given["quantization_config"] = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
    )
    given["device_map"] = {"": 0}
with checkpoint(architecture, config, torch.bfloat16) as folder:
    model = AutoModelForCausalLM.from_pretrained(folder, **given)


def say(what):
    print(what, torch.cuda.memory_allocated() / 2**30, torch.cuda.memory_reserved() / 2**30)


if method == "qlora":
    say("loaded")
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=is_checkpointed)
else:
    model = model.to("cuda")
if is_checkpointed and not model.is_gradient_checkpointing:
    model.gradient_checkpointing_enable()
say("after load")
adapters = LoraConfig(
    r=rank,
    lora_alpha=rank,
    lora_dropout=0.0,
    target_modules=targets,
    task_type="CAUSAL_LM",
)
model = get_peft_model(model, adapters)
say("with adapters")
parameters = [each for each in model.parameters() if each.requires_grad]
optimizer = bitsandbytes.optim.PagedAdamW8bit(parameters, lr=2e-4)
model.train()
for step in range(steps):
    ids = torch.randint(0, config.vocab_size, (batch, length))
    labels = ids.clone().to("cuda", non_blocking=True)
    mask = torch.ones_like(ids).to("cuda", non_blocking=True)
    ids = ids.to("cuda", non_blocking=True)
    # On a GPU transformers finds that the mask is all ones and drops it; a phantom reads zeros.
    if architecture is Qwen2ForCausalLM:
        mask = {"full_attention": None}
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels)
    loss = outputs.loss
    loss.detach().to("cpu").item()
    say(f"step {step} forward")
    loss.backward()
    say(f"step {step} backward")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    say(f"step {step}")
print(torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30)
