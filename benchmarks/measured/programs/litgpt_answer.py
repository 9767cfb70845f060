"""Answer of a LitGPT model, as its `generate` computes it.

    python litgpt_answer.py MODEL bf16|nf4|nf4-dq PROMPT NEW

The weights are in bf16 by Lightning Fabric, or in 4 bit, quantized while they are loaded. The cache
has room for PROMPT and NEW tokens.
"""

import importlib.util
import sys
import types

import lightning
import torch
from lightning.fabric.plugins import BitsandbytesPrecision

if lightning.__version__ < "2.5":  # older than LitGPT requires, but not for these models
    found = importlib.util.find_spec("litgpt")
    sys.modules["litgpt"] = package = types.ModuleType("litgpt")
    package.__path__ = list(found.submodule_search_locations)

from litgpt.model import GPT, Config

name, weights, *numbers = sys.argv[1:]
prompt, new = map(int, numbers)
if weights == "bf16":
    fabric = lightning.Fabric(devices=1, precision="bf16-true")
else:
    fabric = lightning.Fabric(devices=1, plugins=BitsandbytesPrecision(weights, torch.bfloat16))
config = Config.from_name(name)
with fabric.init_module(empty_init=True):
    model = GPT(config)
with fabric.init_tensor():
    model.max_seq_length = prompt + new
    model.set_kv_cache(batch_size=1)
model.eval()
model = fabric.setup_module(model)
ids = torch.randint(config.vocab_size, (1, prompt)).to("cuda")
at = torch.arange(prompt, device="cuda")
with torch.inference_mode():
    for _ in range(new):
        logits = model(ids, at)[0, -1]
        best, _ = torch.topk(logits, 50)
        logits = torch.where(logits < best[[-1]], -torch.inf, logits)
        chances = torch.softmax(logits / 0.8, dim=-1)
        ids = torch.multinomial(chances, num_samples=1).view(1, 1)
        at = at[-1:] + 1
print(torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9)
