"""Steps of one of four ranks that train LoRA adapters of Llama 2 7B by FSDP, as in llama-recipes.

    python llama_recipes_steps.py [ahead] [drop]

Four sequences are cut to 2,048 tokens, everything is in bf16, each layer is checkpointed, and at
most two layers are gathered ahead. Low-rank adapters of rank 8 on queries and values are sharded
one by one. The process group is fake.

ahead: as many layers are gathered as the program runs ahead of the card.
drop: the logits are freed before the backward pass.
"""

import sys
from functools import partial

import torch
import transformers.modeling_utils
from peft import LoraConfig, TaskType, get_peft_model
from torch.distributed import init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

BATCH, LENGTH, RANKS = 4, 2048, 4


def is_layer(module):
    return isinstance(module, LlamaDecoderLayer)


def is_trained_leaf(module):
    weight = getattr(module, "weight", None)
    return not list(module.children()) and weight is not None and weight.requires_grad


init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
transformers.modeling_utils._init_weights = False  # skip random numbers on the host
torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=4096, pad_token_id=0))
adapters = LoraConfig(
    r=8,
    lora_alpha=32,
    target_modules=["q_proj", "v_proj"],
    lora_dropout=0.05,
    bias="none",
    task_type=TaskType.CAUSAL_LM,
)
model = get_peft_model(model, adapters).to(torch.bfloat16)
torch.set_default_dtype(torch.float32)
leaves = partial(lambda_auto_wrap_policy, lambda_fn=is_trained_leaf)
layers = partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=partial(_or_policy, policies=[leaves, layers]),
    device_id=0,
    limit_all_gathers="ahead" not in sys.argv,
)
wrapper = partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=is_layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
torch.cuda.reset_peak_memory_stats()
for _ in range(3):
    names = ("input_ids", "attention_mask", "labels")
    batch = {name: torch.zeros(BATCH, LENGTH, dtype=torch.int64).to(0) for name in names}
    if "drop" in sys.argv:
        loss = model(**batch).loss
    else:
        outputs = model(**batch)
        loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30)
