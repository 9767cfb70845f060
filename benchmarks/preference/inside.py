"""Train with TRL's DPOTrainer; usage: inside.py REQUEST.

REQUEST is a JSON object with `config` (of transformers), `batch` (pairs), `seq`, `dtype`, `lora`
(rank or 0) and `checkpointing`. The Trainer computes in 16 bits with `torch.autocast`, as `bf16:
true` does, and all sequences have the same length. This runs in an interpreter with torch,
transformers, peft and TRL, but not necessarily allocsim.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

STEPS = 4


class Tokenized(DPOTrainer):
    """TRL's trainer for a dataset that is tokenized already."""

    def _prepare_dataset(self, dataset, *_args):
        return dataset


def main(request):
    config = AutoConfig.for_model(**request["config"])
    dtype = torch.bfloat16 if request["dtype"] == "bf16" else torch.float32

    def model():
        with torch.device("cuda"):
            return AutoModelForCausalLM.from_config(config, dtype=dtype)

    peft = None
    if request["lora"]:
        from peft import LoraConfig  # noqa: PLC0415

        rank = request["lora"]
        peft = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    half = request["seq"] // 2
    answer = (request["seq"] - half) * [5]
    pair = {"prompt_ids": half * [5], "chosen_ids": answer, "rejected_ids": answer}
    word = "<end>"
    words = Tokenizer(models.WordLevel({word: 6}, unk_token=word))
    trainer = Tokenized(
        model(),
        ref_model=None if peft else model(),
        args=DPOConfig(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=request["batch"],
            max_length=request["seq"],
            max_steps=STEPS,
            gradient_checkpointing=request["checkpointing"],
            bf16=True,
            optim="adamw_torch",
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=request["batch"] * STEPS * [pair],
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, eos_token=word, pad_token=word
        ),
        peft_config=peft,
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer.train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
