"""Start vLLM several times on a GPU, and write what it printed and allocated.

    engines.py STARTS OUT

STARTS is a file with a JSON list; each item has the name of a start, the folder of the model's
config.json, the requests to play, the arguments of `vllm serve`, the folder of the caches of
compiled kernels, and a limit in seconds.  OUT/NAME.txt gets the log, OUT/NAME.pickle a snapshot.

Each start runs in a process forked after the import of vLLM and before any use of the GPU, because
the import takes as long as the start.
"""

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__)
START = HERE.parents[3] / "allocsim" / "phantom" / "start_vllm.py"


def starter(path: Path) -> Any:
    """Return the module of the program that starts vLLM, which is no part of a package here."""
    spec = importlib.util.spec_from_file_location("start_vllm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Memory:
    """Memory of the card, by the names that the stubs of a phantom GPU use.

    peak: most bytes in use at any call, because the driver does not count a peak.
    """

    def __init__(self) -> None:
        self.peak = 0

    def __call__(self, name: str) -> int:
        import torch

        free, total = torch.cuda.mem_get_info()
        self.peak = max(self.peak, total - free)
        return {"capacity": total, "free_bytes": free, "peak_bytes": self.peak}[name]


def run(each: dict[str, Any], out: Path) -> None:
    """Start the engine in this process."""
    log = os.open(out / f"{each['name']}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for variable, folder in (
        ("VLLM_CACHE_ROOT", "vllm"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
    ):
        os.environ[variable] = f"{each['caches']}/{folder}"
    import torch

    program = starter(START)
    program._bytes = Memory()
    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    try:
        program.main(each["folder"], each["requests"], each["arguments"])
    finally:
        torch.cuda.memory._dump_snapshot(str(out / f"{each['name']}.pickle"))


def wait(child: int, limit: float) -> int:
    """Return the exit code of a process; kill its group after `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def main() -> None:
    starts, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    program = starter(START)
    for name in program._PLACES:
        program._find(name)
    print(f"imported in {time.monotonic() - began:.0f} s", flush=True)
    for each in starts:
        began = time.monotonic()
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            code = 1
            try:
                run(each, out)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = wait(child, each["limit"])
        print(f"{each['name']}: {code}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
