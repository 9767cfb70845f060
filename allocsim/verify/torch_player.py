"""Program that runs op scripts with the PyTorch of the interpreter that executes it.

Each line of standard input is a command in JSON, [path of the script, path for the results]; the
answer on standard output is a line with an exit status.  Each script runs in a fork with a new
allocator.

The interpreter needs torch and may lack allocsim.  Creating a CUDA context on a real GPU takes
long, so some forks create it before their scripts arrive; the argument is the number of these
forks.

The module is long because a program that runs without allocsim is one file.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

REFUSAL = "CUDA driver error: invalid argument"
"""Error text of the driver after which a script continues, as after an out-of-memory error."""

OUT_OF_HOST_MEMORY = "CUDA error: out of memory"
"""Error text of PyTorch after which a script of pinned memory continues."""

PATIENCE_S = 0.005
"""Seconds to wait after each op if a background thread polls CUDA events; it polls every 100 us."""

REFUSED = 3
"""Exit code of a fork whose settings PyTorch refused before the first op."""


NO_CONTEXT = 4
"""Exit code of a fork for which the driver could not create a CUDA context."""


class PhantomWork:
    """Streams of one op script on a phantom GPU; their work completes when `finish` is called."""

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
    """Streams of one op script on a real GPU; `finish` waits for their work.

    PyTorch polls events in an order that depends on the ids of their streams, and the model derives
    this order from raw handles.  The id of an external stream is its raw handle; the id of a stream
    from PyTorch's pool is not.  So each stream of the pool is used through an external stream.
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
    return next(getattr(module, name) for name in names if hasattr(module, name))


class Player:
    """Base class of the players, which run an op script with the PyTorch of this process.

    calls: dictionary from the letter of an op to a function that takes the op's other items.
    """

    def __init__(self, torch: Any, work: Any, streams: dict[int, Any]) -> None:
        self.torch, self.work, self.streams = torch, work, streams
        self.live: dict[Any, Any] = {}
        self.calls: dict[str, Callable[..., Any]] = {
            "f": lambda name: self.live.pop(name, None),
            "s": lambda stream: work.finish(streams[stream]),
            "S": work.finish_all,
            "c": _first_of(
                torch._C,
                "_accelerator_setAllocatorSettings",
                "_cuda_cudaCachingAllocator_set_allocator_settings",
            ),
        }

    def play(self, ops: list[list[Any]]) -> list[Any] | None:
        """Run the ops; return [index, error text] of the op that stopped the script, or None."""
        for number, (letter, *arguments) in enumerate(ops):
            try:
                self.calls[letter](*arguments)
                self.played(number + 1)
            except (RuntimeError, ValueError) as error:
                return [number, str(error)]
        return None

    def played(self, count: int) -> None:
        """Do nothing; this method is called after each op, and a subclass may override it.

        count: number of ops that have run.
        """


class DevicePlayer(Player):
    """Player of a script that allocates device memory."""

    def __init__(self, torch: Any, work: Any, ops: list[list[Any]]) -> None:
        numbers = {0} | {op[-1] for op in ops if op[0] in "ars"}
        super().__init__(torch, work, {n: work.stream(n) for n in sorted(numbers)})
        self.current = 0
        self.addresses: list[int | None] = []
        self.messages: list[str] = []
        c, cuda = torch._C, torch.cuda
        begin = _first_of(c, "_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateToPool")
        end = _first_of(c, "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
        scopes = {"b": begin, "e": end, "r": c._cuda_releasePool}
        self.calls |= {
            "a": self.allocate,
            "r": self.record,
            "m": lambda share: cuda.set_per_process_memory_fraction(float(share)),
            "P": lambda what, pool: scopes[what](0, (0, pool)),
            "e": cuda.empty_cache,
            "k": cuda.reset_peak_memory_stats,
            "K": cuda.reset_accumulated_memory_stats,
        }

    def record(self, name: Any, stream: int) -> None:
        if name in self.live:
            self.live[name].record_stream(self.streams[stream])

    def allocate(self, name: Any, size: int, stream: int) -> None:
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
    work = PhantomWork(torch, script) if script["is_phantom"] else RealWork(torch)
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info(0)
    player = DevicePlayer(torch, work, script["ops"])
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1 << 40)
    stopped = player.play(script["ops"])
    # A snapshot's own entry is only in the trace of the next snapshot.
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


class HostPlayer(Player):
    """Player of a script that allocates pinned host memory.

    stats: dictionary from "NUMBER.NAME" to the value of the statistic NAME after the first NUMBER
        ops; statistics of time are left out.
    """

    def __init__(self, torch: Any, work: PhantomWork, script: dict[str, Any]) -> None:
        super().__init__(torch, work, {n: work.stream(n) for n, _ in script["handles"]})
        self.graphs: dict[int, list[Any]] = {}
        self.capturing: Any = None
        self.numbers: dict[int, int] = {}
        self.n_blocks = self.n_played = 0
        self.blocks: list[int | None] = []
        self.stats: dict[str, int] = {}
        self.target = torch.empty(1, dtype=torch.uint8, device="cuda")
        self.is_slow = any("background_threads:True" in op[1] for op in _confs(script))
        self.calls |= {
            "a": self.allocate,
            "r": self.copy,
            "q": self.read,
            "P": self.capture,
            "e": torch._C._host_emptyCache,
            "k": torch.cuda.reset_peak_host_memory_stats,
            "K": torch.cuda.reset_accumulated_host_memory_stats,
        }

    def played(self, count: int) -> None:
        self.n_played = count
        if self.is_slow:
            time.sleep(PATIENCE_S)  # until the background thread has polled

    def copy(self, name: Any, stream: int) -> None:
        if name not in self.live:
            return
        cuda = self.torch.cuda
        cuda.set_stream(self.streams[stream])
        self.target.copy_(self.live[name][:1], non_blocking=True)
        if self.capturing is not None:
            cuda.set_stream(self.capturing)

    def allocate(self, name: Any, size: int) -> None:
        torch = self.torch
        self.live.pop(name, None)
        before = self.created()
        try:
            tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            if not str(error).startswith(OUT_OF_HOST_MEMORY):
                raise
            self.blocks.append(None)
            return
        if not size:
            self.blocks.append(None)
            return
        self.live[name] = tensor
        address = tensor.data_ptr()
        if self.created() > before:
            self.numbers[address] = self.n_blocks
            self.n_blocks += 1
        self.blocks.append(self.numbers[address])

    def created(self) -> int:
        created: int = self.torch._C._cuda_hostMemoryStats()["num_host_alloc"]
        return created

    def read(self) -> None:
        times = ("total", "max", "min", "avg")
        for key, value in self.torch.cuda.host_memory_stats().items():
            if not key.endswith(times) or "_time." not in key:
                self.stats[f"{self.n_played:06}.{key}"] = value

    def capture(self, what: str, pool: int, stream: int = 0) -> None:
        graphs = self.graphs.setdefault(pool, [])
        if what == "b":
            self.capturing = self.streams[stream]
            self.torch.cuda.set_stream(self.capturing)
            graphs.append(self.torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=(0, pool))
        elif what == "e":
            graphs[-1].capture_end()
            self.capturing = None
        else:
            graphs.pop(0).reset()

    def history(self) -> tuple[list[list[Any]], list[dict[str, Any]]]:
        # Addresses are replaced by numbers of blocks, in the order of their creation.
        snapshot = self.torch.cuda.memory._snapshot()
        numbers: dict[int, int] = {}
        entries, fresh = [], count()
        for entry in snapshot.get("host_traces", ()):
            if entry["action"] == "segment_alloc":
                numbers[entry["addr"]] = next(fresh)
            entries.append(
                [entry["action"], numbers[entry["addr"]], entry["size"], entry["pool_id"][1]]
            )
        segments = [_plain(segment) for segment in snapshot.get("host_segments", ())]
        for segment in segments:
            number = numbers[segment["address"]]
            segment["address"] = segment["blocks"][0]["address"] = number
        return entries, sorted(segments, key=lambda segment: segment["address"])


def _confs(script: dict[str, Any]) -> list[list[Any]]:
    return [["c", script["conf"]], *(op for op in script["ops"] if op[0] == "c")]


def play_host(torch: Any, script: dict[str, Any]) -> dict[str, Any]:
    work = PhantomWork(torch, script)
    torch.cuda.init()
    player = HostPlayer(torch, work, script)
    record = torch.cuda.memory._record_memory_history
    has_history = "record_pinned_host_memory" in inspect.signature(record).parameters
    if has_history:
        record("all", context=None, max_entries=1 << 40, record_pinned_host_memory=True)
    stopped = player.play(script["ops"])
    player.n_played = len(script["ops"])
    player.read()
    entries, segments = player.history() if has_history else ([], [])
    return {
        "addresses": player.blocks,
        "messages": [],
        "stopped": stopped,
        "stats": player.stats,
        "segments": segments,
        "trace": entries,
        "handles": {},
    }


def _plain(segment: dict[str, Any]) -> dict[str, Any]:
    blocks = [{k: v for k, v in b.items() if k != "frames"} for b in segment["blocks"]]
    return {k: v for k, v in segment.items() if k != "frames"} | {"blocks": blocks}


def start_context() -> None:
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for error in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
        if error:
            raise RuntimeError(f"CUDA driver error {error} at the start of a context")


class Fork:
    """Forked process that runs one script.

    starts_context: True to create the CUDA context before the script arrives.
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
        with suppress(BrokenPipeError):  # the fork has ended, and its status gives the reason
            os.write(self._asking, line.encode())
        os.close(self._asking)
        return os.waitpid(self._pid, 0)[1]

    def end(self) -> None:
        os.close(self._asking)
        os.waitpid(self._pid, 0)


def run(torch: Any, reading: int, *, starts_context: bool) -> None:
    """Read one command, run its script and exit the process; call this only in a fork.

    reading: descriptor of the pipe that the command comes from.
    """
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
        player = play_host if script["is_host"] else play
        Path(answer).write_text(json.dumps(player(torch, script)))
        code = 0
    except (RuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # skips CUDA's exit handlers, which would access the missing device


def main() -> None:
    torch = importlib.import_module("torch")
    gc.freeze()
    n_ahead = int(sys.argv[1])
    print(json.dumps(torch.__version__), flush=True)
    forks: deque[Fork] = deque()
    for line in sys.stdin:
        while len(forks) < n_ahead + 1:
            forks.append(Fork(torch, starts_context=n_ahead > 0))
        print(forks.popleft().answer(line), flush=True)
    for fork in reversed(forks):  # a fork holds copies of the pipes of earlier forks
        fork.end()


if __name__ == "__main__":
    main()
