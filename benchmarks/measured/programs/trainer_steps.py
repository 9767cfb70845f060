"""Five steps of transformers' Trainer on a model of random weights.

    python trainer_steps.py vit|bert [eager|sdpa]

The training is in fp32 with AdamW, clipped gradients, and two samples at a time: images of 224 x
224, or 16 tokens. The model is created on the device; the peaks count from before the Trainer is
created.
"""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    default_data_collator,
)

kind = sys.argv[1]
attention = sys.argv[2] if len(sys.argv) > 2 else "eager"
LENGTH, VOCABULARY = 16, 30522


def image():
    return {"pixel_values": torch.rand(3, 224, 224), "labels": torch.randint(1000, ())}


def text():
    ids = torch.randint(VOCABULARY, (LENGTH,))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(LENGTH),
        "labels": ids.clone(),
    }


of_kind = {
    "vit": (ViTForImageClassification, ViTConfig(num_labels=1000), image),
    "bert": (BertForMaskedLM, BertConfig(vocab_size=VOCABULARY), text),
}
architecture, config, sample = of_kind[kind]
with torch.device("cuda"):
    model = architecture._from_config(config, attn_implementation=attention)
model.eval()
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()

with TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        max_steps=5,
        optim="adamw_torch",
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[sample() for _ in range(500)],
        data_collator=default_data_collator,
    )
    trainer.train()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
