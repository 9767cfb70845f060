"""Run many small programs, each in a separate process that has already imported PyTorch.

    python forked.py JOBS.json

JOBS.json is a list of {"program": its text, "out": file of its recording}. With "counts": true,
the file gets the peaks of torch.cuda.memory_stats() as JSON instead. `recorded.py` starts
this in the environment of `allocsim record`. A program takes a fifth of a second here; with its own
imports it would take some seconds.

Rule: CUDA is not used before the fork.
"""

import json
import os
import sys

sys.modules["bitsandbytes"] = None  # peft would import it, and it uses CUDA

import peft  # noqa: F401  (imported once, for all)
import sitecustomize  # the hook of `allocsim record`
import torch  # noqa: F401
import torch._dynamo
import torch.utils.checkpoint
import torchvision  # noqa: F401
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache  # noqa: F401
from transformers.models.bert import modeling_bert  # noqa: F401
from transformers.models.gemma2 import modeling_gemma2  # noqa: F401
from transformers.models.glm4 import modeling_glm4  # noqa: F401
from transformers.models.gpt2 import modeling_gpt2  # noqa: F401
from transformers.models.llama import modeling_llama  # noqa: F401
from transformers.models.mistral import modeling_mistral  # noqa: F401
from transformers.models.mixtral import modeling_mixtral  # noqa: F401
from transformers.models.phi3 import modeling_phi3  # noqa: F401
from transformers.models.qwen2 import modeling_qwen2  # noqa: F401
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401
from transformers.models.vit import modeling_vit  # noqa: F401


def run(program, out, counts):
    """Run one program in this process and write its recording, or its peaks; never return."""
    recorder, code = sitecustomize.recorder, 1
    log = os.open(out + ".log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if counts:  # the history would take most of the time
        torch.cuda.memory._record_memory_history = lambda *_, **__: None
    recorder.pid, recorder.folder = os.getpid(), out + ".parts"
    os.makedirs(recorder.folder)
    try:
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})  # noqa: S102
        code = 0
    except BaseException as error:  # reported in its log
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    if counts:
        stats = torch.cuda.memory_stats()
        found = {name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")}
        with open(out + ".part", "w") as file:
            json.dump({**found, "ooms": stats["num_ooms"], "code": code}, file)
        os.replace(out + ".part", out)
        sys.stderr.flush()
        os._exit(code)
    recorder.at_exit()
    for name in os.listdir(recorder.folder):
        if name.endswith(".pickle"):
            os.replace(os.path.join(recorder.folder, name), out)
    sys.stderr.flush()
    os._exit(code)


with open(sys.argv[1]) as file:
    jobs = json.load(file)
for job in jobs:
    pid = os.fork()
    if pid == 0:
        run(job["program"], job["out"], job.get("counts", False))
    os.waitpid(pid, 0)
