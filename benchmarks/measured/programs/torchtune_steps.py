"""Two steps of torchtune's own recipes for Llama 3.2 3B, two samples packed to 4,096 tokens each.

    python torchtune_steps.py packed|compile|chunked|checkpointing|in-backward|offloading|8bit
    python torchtune_steps.py lora|qlora

Each option of the first line includes those before it. The configurations are torchtune's, with the
changes of the table in its README. Weights are not loaded, and texts are random.
"""

import importlib.util
import sys
from pathlib import Path
from tempfile import mkdtemp

import torch
import torchtune
from omegaconf import OmegaConf
from torchtune import training
from torchtune.datasets import PackedDataset
from torchtune.modules import TransformerDecoder

LENGTH, BATCH, VOCABULARY, TEXT = 4096, 2, 128_256, 128
STEPS = ["packed", "compile", "chunked", "checkpointing", "in-backward", "offloading", "8bit"]
SHARED = {
    "batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "max_steps_per_epoch": 2,
    "output_dir": mkdtemp(),
    "dataset": {"_component_": "__main__.packed_texts", "packed": True},
    "tokenizer": {"_component_": "__main__.Tokenizer"},
    "log_peak_memory_stats": False,
}


class Tokenizer:
    pad_id, max_seq_len = 0, LENGTH

    def __init__(self, **_):
        """Skip the missing file."""


def packed_texts(tokenizer, **_):
    ids = torch.randint(VOCABULARY, (TEXT,)).tolist()
    texts = [{"tokens": ids, "labels": ids}] * (3 * BATCH * LENGTH // TEXT)
    return PackedDataset(texts, max_seq_len=tokenizer.max_seq_len)


def full(step):
    """Return the options of `step` and of the steps before it."""
    has = STEPS[: STEPS.index(step) + 1]
    chunked = "torchtune.modules.loss.CEWithChunkedOutputLoss"
    eight_bits = "torchao.prototype.low_bit_optim.AdamW8bit"
    return {
        "compile": "compile" in has,
        "loss": {"_component_": chunked if "chunked" in has else "torch.nn.CrossEntropyLoss"},
        "enable_activation_checkpointing": "checkpointing" in has,
        "optimizer_in_bwd": "in-backward" in has,
        "enable_activation_offloading": "offloading" in has,
        "optimizer": {"_component_": eight_bits, "lr": 2e-5}
        if "8bit" in has
        else {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-5},
    }


def adapters():
    return {
        "compile": True,
        "enable_activation_checkpointing": True,
        "enable_activation_offloading": True,
    }


def recipe(name):
    """Return the module of a recipe, which is not in a package."""
    path = Path(torchtune.__file__).parent.parent / "recipes" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_weights(of):
    """Return the recipe without reading and writing checkpoints."""

    class Hollow(of):
        def load_checkpoint(self, *_):
            return {training.MODEL_KEY: {}}

        def save_checkpoint(self, **_):
            pass

    return Hollow


TransformerDecoder.load_state_dict = lambda *_, **__: ((), ())
what = sys.argv[1]
if what in STEPS:
    config, options = "3B_full_single_device", full(what)
    made = recipe("full_finetune_single_device").FullFinetuneRecipeSingleDevice
else:
    config, options = f"3B_{what}_single_device", adapters()
    made = recipe("lora_finetune_single_device").LoRAFinetuneRecipeSingleDevice
folder = Path(torchtune.__file__).parent.parent / "recipes" / "configs" / "llama3_2"
asked = OmegaConf.merge(OmegaConf.load(folder / f"{config}.yaml"), SHARED)
for key, value in options.items():  # they replace existing options and are not merged
    asked[key] = value
run = without_weights(made)(cfg=asked)
run.setup(cfg=asked)
run.train()
print(torch.cuda.memory_stats()["active_bytes.all.peak"] / 2**30)
