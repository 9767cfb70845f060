"""Runs op scripts through the PyTorch of the interpreter that executes this file.

Rule: each script meets an allocator that nobody used before.  torch is imported once, CUDA is not
touched, and every script runs in a fork of that process, with its own option string in the
environment.  A context is slow on a real GPU, so some forks start before their scripts and make
their context through the driver only: PyTorch's own state is untouched until the script begins.

It needs nothing but torch: the interpreter may know nothing of allocsim.  Requests come as
lines of JSON on standard input, [script file, result file]; each is answered by a line with
the fork's exit status.  The argument is the number of forks to make ahead.  `installed.py` is the
other end.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import sys
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

REFUSAL = "CUDA driver error: invalid argument"
"""The error after which a script goes on, as after an out-of-memory one."""

REFUSED = 3
"""Exit code of a fork in which PyTorch refused its settings before the first op."""


NO_CONTEXT = 4
"""Exit code of a fork in which the driver makes no context."""


class PhantomWork:
    """Streams and their work over the phantom GPU: external handles, done when a script says so."""

    def __init__(self, torch: Any, script: dict[str, Any]) -> None:
        self._torch = torch
        self._device = ctypes.CDLL(None)
        policy = {"bump": 0, "firstfit": 1}[script["address_policy"]]
        memory, base = (ctypes.c_size_t(script[key]) for key in ("device_memory", "base"))
        self._device.device_configure(memory, policy, base)
        self._handles = dict(script["handles"])

    def stream(self, number: int) -> Any:
        cuda = self._torch.cuda
        if not number:
            return cuda.default_stream(0)
        return cuda.ExternalStream(self._handles[number], device=0)

    def finish(self, stream: Any) -> None:
        self._device.device_finish(ctypes.c_size_t(stream.cuda_stream))

    def finish_all(self) -> None:
        self._device.device_finish_all()


class RealWork:
    """Streams and their work on a GPU that is there.

    A stream of PyTorch's own is given again by its handle, as an external one: the order in
    which queues of events are polled depends on a number that only then is the handle.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._owned: list[Any] = []

    def stream(self, number: int) -> Any:
        cuda = self._torch.cuda
        if not number:
            return cuda.default_stream(0)
        self._owned.append(cuda.Stream(device=0))
        return cuda.ExternalStream(self._owned[-1].cuda_stream, device=0)

    def finish(self, stream: Any) -> None:
        stream.synchronize()

    def finish_all(self) -> None:
        self._torch.cuda.synchronize()


def _first_of(module: Any, *names: str) -> Any:
    """The function by the first of its names that this release has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


class Player:
    """One script on this process's PyTorch."""

    def __init__(self, torch: Any, work: Any, ops: list[list[Any]]) -> None:
        self.torch = torch
        self.work = work
        numbers = {0} | {op[-1] for op in ops if op[0] in "ars"}
        self.streams = {n: work.stream(n) for n in sorted(numbers)}
        self.current = 0
        self.live: dict[Any, Any] = {}
        self.addresses: list[int | None] = []
        self.messages: list[str] = []
        c = torch._C
        self.begin = _first_of(
            c, "_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateToPool"
        )
        self.end = _first_of(c, "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
        self.set = _first_of(
            c,
            "_accelerator_setAllocatorSettings",
            "_cuda_cudaCachingAllocator_set_allocator_settings",
        )

    def step(self, op: list[Any]) -> None:
        """One op; the letters are explained in script.py."""
        letter, cuda = op[0], self.torch.cuda
        if letter == "a":
            self.allocate(*op[1:])
        elif letter == "f":
            self.live.pop(op[1], None)
        elif letter == "r":
            if op[1] in self.live:
                self.live[op[1]].record_stream(self.streams[op[2]])
        elif letter == "s":
            self.work.finish(self.streams[op[1]])
        elif letter == "S":
            self.work.finish_all()
        elif letter == "m":
            cuda.set_per_process_memory_fraction(float(op[1]))
        elif letter == "c":
            self.set(op[1])
        elif letter == "P":
            release = self.torch._C._cuda_releasePool
            {"b": self.begin, "e": self.end, "r": release}[op[1]](0, (0, op[2]))
        else:
            plain = {
                "e": cuda.empty_cache,
                "k": cuda.reset_peak_memory_stats,
                "K": cuda.reset_accumulated_memory_stats,
            }
            plain[letter]()

    def allocate(self, name: Any, size: int, stream: int) -> None:
        """A tensor of `size` bytes."""
        torch = self.torch
        self.live.pop(name, None)
        if stream != self.current:
            torch.cuda.set_stream(self.streams[stream])
            self.current = stream
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
            text = str(error)
            if not isinstance(error, torch.cuda.OutOfMemoryError):
                if not text.startswith(REFUSAL):
                    raise
                text = REFUSAL
            self.messages.append(text)
            self.addresses.append(None)
            return
        if size:
            self.live[name] = tensor
        self.addresses.append(tensor.data_ptr() if size else None)


def play(torch: Any, script: dict[str, Any]) -> dict[str, Any]:
    """The results of one script, as PyTorch tells them."""
    work = PhantomWork(torch, script) if script["is_phantom"] else RealWork(torch)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info(0)
    player = Player(torch, work, script["ops"])
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1 << 40)
    stopped = None
    for number, op in enumerate(script["ops"]):
        try:
            player.step(op)
        except (RuntimeError, ValueError) as error:
            stopped = [number, str(error)]
            break
    # A snapshot's own entry is in the trace of the next one.
    before = torch.cuda.memory._snapshot()
    after = torch.cuda.memory._snapshot()
    return {
        "addresses": player.addresses,
        "messages": player.messages,
        "stopped": stopped,
        "stats": dict(torch.cuda.memory_stats()),
        "segments": [_plain(segment) for segment in before["segments"]],
        "trace": [
            [
                e["action"],
                e["device_free" if e["action"] == "oom" else "addr"],
                e["size"],
                e["stream"],
            ]
            for e in after["device_traces"][0]
        ],
        "handles": {n: stream.cuda_stream for n, stream in player.streams.items()},
        "free": free,
        "total": total,
    }


def _plain(segment: dict[str, Any]) -> dict[str, Any]:
    """A segment without the frames, which are none."""
    blocks = [{k: v for k, v in b.items() if k != "frames"} for b in segment["blocks"]]
    return {k: v for k, v in segment.items() if k != "frames"} | {"blocks": blocks}


def start_context() -> None:
    """Make the context of the first GPU, by the driver alone; PyTorch takes it over later."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for error in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
        if error:
            raise RuntimeError(f"CUDA driver error {error} at the start of a context")


class Fork:
    """Child process that runs one script.

    starts_context: make the CUDA context before the script arrives.
    """

    def __init__(self, torch: Any, *, starts_context: bool) -> None:
        reading, self._asking = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(reading)
            return
        os.close(self._asking)
        run(torch, reading, starts_context=starts_context)

    def answer(self, line: str) -> int:
        """Run the script that `line` asks for and return the wait status."""
        with suppress(BrokenPipeError):  # it has ended already, and its status says why
            os.write(self._asking, line.encode())
        os.close(self._asking)
        return os.waitpid(self._pid, 0)[1]

    def end(self) -> None:
        """Let the process end without a script."""
        os.close(self._asking)
        os.waitpid(self._pid, 0)


def run(torch: Any, reading: int, *, starts_context: bool) -> None:
    """The child's part: wait for a script, run it and end the process."""
    code = 1
    try:
        if starts_context:
            try:
                start_context()
            except (OSError, RuntimeError) as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(NO_CONTEXT)
        with open(reading) as requests:
            line = requests.readline()
        if not line:
            os._exit(0)
        asked, answer = json.loads(line)
        script = json.loads(Path(asked).read_text())
        if script["conf"]:
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = script["conf"]
        Path(answer).write_text(json.dumps(play(torch, script)))
        code = 0
    except (RuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # CUDA's exit handlers would look for a device that is gone


def main() -> None:
    """Answers requests until standard input ends."""
    torch = importlib.import_module("torch")
    gc.freeze()
    n_ahead = int(sys.argv[1])
    print(json.dumps(torch.__version__), flush=True)
    forks: deque[Fork] = deque()
    for line in sys.stdin:
        while len(forks) < n_ahead + 1:
            forks.append(Fork(torch, starts_context=n_ahead > 0))
        print(forks.popleft().answer(line), flush=True)
    for fork in reversed(forks):  # a fork holds the pipes of those before it
        fork.end()


if __name__ == "__main__":
    main()
