"""Runs at the start of a recorded program's interpreter, before any code of the program.

Rule: the program behaves as without it.  Only the standard library is imported (the program's
interpreter may not have allocsim), torch is used only after the program imports it, and what is
changed here is undone or passed on: another sitecustomize still runs.

`allocsim.phantom.record` sets the variables ALLOCSIM_RECORD_*.  At exit a process that used CUDA
leaves a pickle in <folder>: a snapshot as PyTorch writes it, with one more key, "allocsim", for
what a replay needs and the snapshot lacks.  A summary lies beside it as JSON.
"""

import atexit
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import pickle
import sys
import threading
import time

FOLDER = os.environ.get("ALLOCSIM_RECORD_FOLDER")
# Stands for the program's exit code until that is known, and is then overwritten in place.
UNKNOWN_EXIT = -(1 << 31)
GRACE_S = 10.0
POLL_S = 0.02


class Recorder:
    """One process's recording, from the moment that CUDA is initialised to its exit."""

    def __init__(self, folder):
        self.folder = folder
        self.pid = os.getpid()
        self.torch = None
        self.is_recording = False
        self.is_written = False
        self.stopped_by = None
        self.oom_text = None
        self.max_entries = int(os.environ.get("ALLOCSIM_RECORD_MAX_ENTRIES") or 0)
        self.max_seconds = float(os.environ.get("ALLOCSIM_RECORD_MAX_SECONDS") or 0)
        self.began = time.monotonic()

    def on_import(self, torch):
        """torch is loaded: ask for a call when CUDA is initialised, and start the guard."""
        self.torch = torch
        torch.cuda._lazy_call(self.on_cuda)
        if self.max_seconds or self.max_entries:
            threading.Thread(target=self.guard, name="allocsim-guard", daemon=True).start()

    def on_cuda(self):
        """CUDA is initialised and nothing is allocated yet."""
        if os.environ.get("ALLOCSIM_PHANTOM_MEMORY"):
            # cuDNN's attention has no kernels for a device that computes nothing.
            self.torch.backends.cuda.enable_cudnn_sdp(False)
        # The ring grows as needed up to this bound, so nothing is lost.
        self.torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=1 << 40
        )
        self.is_recording = True

    def entries(self):
        """About how many entries the history has: one an allocation, two a free."""
        found = 0
        for device in range(self.torch.cuda.device_count()):
            stats = self.torch.cuda.memory_stats(device)
            found += stats.get("allocation.all.allocated", 0)
            found += 2 * stats.get("allocation.all.freed", 0)
        return found

    def guard(self):
        """Ends the program in order when it has recorded or run long enough."""
        while self.stopped_by is None:
            time.sleep(POLL_S)
            if self.is_written:
                return
            if self.max_seconds and time.monotonic() - self.began > self.max_seconds:
                self.stopped_by = "max-seconds"
            elif self.max_entries and self.is_recording and self.entries() >= self.max_entries:
                self.stopped_by = "max-entries"
        main = ctypes.c_ulong(threading.main_thread().ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(SystemExit))
        time.sleep(GRACE_S)
        # It would not stop: write what there is and leave.
        self.at_exit()
        os._exit(0)

    def on_exception(self, error):
        """Notes the text of an out-of-memory error that ends the program."""
        seen = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            if type(error).__name__ == "OutOfMemoryError":
                self.oom_text = str(error)
            error = error.__cause__ or error.__context__

    def at_exit(self):
        """Writes what was recorded, and never disturbs the program's own end."""
        try:
            self.write()
        except Exception as error:
            sys.stderr.write(f"allocsim: the recording could not be written: {error!r}\n")

    def write(self):
        # A helper process that outlives the program, or allocates nothing, writes nothing.
        is_ours = os.getpid() == self.pid and os.path.isdir(self.folder)
        if self.is_written or not self.is_recording or not is_ours or not self.entries():
            return
        self.is_written = True
        rank = os.environ.get("RANK", "")
        name = f"rank{rank}" if rank.isdigit() else f"process{self.pid}"
        place = os.path.join(self.folder, name + ".pickle")
        snapshot = self.torch.cuda.memory._snapshot()
        memory = os.environ.get("ALLOCSIM_PHANTOM_MEMORY")
        device = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
        snapshot["allocsim"] = {
            "torch_version": str(self.torch.__version__),
            "device_name": device.name,
            "device_memory": int(memory or self.torch.cuda.mem_get_info()[1]),
            "context_memory": int(os.environ.get("ALLOCSIM_PHANTOM_CONTEXT") or 0),
            "is_phantom": memory is not None,
            "command": os.environ.get("ALLOCSIM_RECORD_COMMAND", ""),
            "rank": rank,
            "oom_text": self.oom_text or "",
            "stopped_by": self.stopped_by or "",
            "exit_code": UNKNOWN_EXIT,
        }
        with open(place + ".part", "wb") as file:
            pickle.dump(snapshot, file)
        about = {name: snapshot["allocsim"][name] for name in ("stopped_by", "oom_text")}
        about["entries"] = sum(map(len, snapshot["device_traces"]))
        with open(place[: -len(".pickle")] + ".json", "w") as file:
            json.dump(about, file)
        os.replace(place + ".part", place)


class TorchFinder:
    """Finds torch as usual, and calls the recorder once it is loaded."""

    def __init__(self, recorder):
        self.recorder = recorder

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.recorder.on_import(module)

        spec.loader.exec_module = exec_module
        return spec


def watch_exceptions(recorder):
    """Passes the exception that ends the program to the recorder, then to the previous hook."""
    show = sys.excepthook

    def excepthook(kind, error, trace):
        recorder.on_exception(error)
        show(kind, error, trace)

    sys.excepthook = excepthook


def run_the_other():
    """Runs the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [place for place in sys.path if os.path.abspath(place or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if FOLDER:
    recorder = Recorder(FOLDER)
    sys.meta_path.insert(0, TorchFinder(recorder))
    watch_exceptions(recorder)
    atexit.register(recorder.at_exit)
run_the_other()
