"""Module that Python imports at startup, before the program's code; it starts the recording.

It imports only the standard library, because the program's interpreter may lack allocsim.  It uses
torch only after the program imports it.  The environment's own sitecustomize module still runs.

A process that used CUDA writes a pickle to the folder ALLOCSIM_RECORD_FOLDER at exit: a snapshot of
PyTorch with the additional key "allocsim" for data that a replay needs, such as calls that leave no
entry.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pickle
import sys
import threading
import time

FOLDER = os.environ.get("ALLOCSIM_RECORD_FOLDER")
# Placeholder for the program's exit code, which is overwritten in the file when it is known.
UNKNOWN_EXIT = -(1 << 31)
# Folder of allocsim.phantom; the files that this hook loads have names that begin with it.
BESIDE = os.path.join(os.path.dirname(__file__), os.pardir)
GRACE_S = 10.0
POLL_S = 0.02
# Keys of the recording that are copied to the summary.
PRINTED = (
    *("stopped_by", "oom_text", "reads_back", "guessed", "routing", "hollow", "invented"),
    *("device_peak_bytes", "driver"),
)


class Recorder:
    """Recording of one process, from its initialisation of CUDA to its exit."""

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
        # The monotonic clock is common to all processes, so this is the start of the whole program.
        self.began = float(os.environ.get("ALLOCSIM_RECORD_BEGAN") or time.monotonic())
        self.lock = threading.RLock()
        self.is_ending = False
        self.by_column = bool(os.environ.get("ALLOCSIM_RECORD_BY_COLUMN"))
        self.conf_at_start = None
        self.marks = load_module("calls", os.path.join(os.pardir, "capture"))
        self.calls = None
        self.values = None
        self.hollow = None
        self.ending = load_module("at_exit")

    def on_import(self, torch):
        self.torch = torch
        self.calls = self.marks.CallLog(torch, torch.cuda, self.is_noting)
        self.calls.watch()
        if os.environ.get("ALLOCSIM_PHANTOM_SIZES_ONLY"):
            with contextlib.suppress(Exception):  # only an optimisation
                load_module("assumptions").leave_unfilled(torch)
        torch.cuda._lazy_call(self.on_cuda)
        os.register_at_fork(after_in_child=self.on_fork)
        self.start_guard()

    def on_fork(self):
        self.lock = threading.RLock()  # another thread of the parent may have held it
        if not self.is_recording:
            self.pid = os.getpid()
            self.start_guard()

    def start_guard(self):
        if self.max_seconds or self.max_entries:
            threading.Thread(target=self.guard, name="allocsim-guard", daemon=True).start()

    def on_cuda(self):
        if not os.environ.get("ALLOCSIM_RECORD_SUMMARY"):
            record = self.torch.cuda.memory._record_memory_history
            has_host = "record_pinned_host_memory" in inspect.signature(record).parameters
            # PyTorch's ring of entries grows as needed up to this bound, so nothing is lost.
            record(
                "all",
                context="alloc",
                stacks="python",
                max_entries=1 << 40,
                **({"record_pinned_host_memory": True} if has_host else {}),
            )
        with contextlib.suppress(Exception):  # optional information
            self.conf_at_start = conf_of(self.torch.cuda.memory._snapshot())
        self.is_recording = True
        self.ending.mark_recording(self.folder)
        if os.environ.get("ALLOCSIM_PHANTOM_MEMORY"):
            with contextlib.suppress(Exception):  # optional information
                ctypes.CDLL(None).device_watch_reads(1)
            if os.environ.get("ALLOCSIM_PHANTOM_VALUES"):
                with contextlib.suppress(Exception):  # on failure, every value is zero
                    known = load_module("known").Known(self.torch)
                    is_skewed = os.environ["ALLOCSIM_PHANTOM_VALUES"] == "skewed"
                    router = load_module("assumptions").Router(self.torch, is_skewed=is_skewed)
                    self.values = load_module("values").install(
                        self.torch, known, router, load_module("operators")
                    )
            with contextlib.suppress(Exception):  # needed only by distributed programs
                load_module("assumptions").answer_for_others(self.torch)

    def entries(self):
        return sum(self.calls.counts())

    def is_noting(self):
        return self.is_recording and os.getpid() == self.pid

    def guard(self):
        """End the program when it reaches a limit of allocator calls or time (run in a thread)."""
        while self.stopped_by is None:
            time.sleep(POLL_S)
            reached = None
            if self.max_seconds and time.monotonic() - self.began > self.max_seconds:
                reached = "max-seconds"
            elif self.max_entries and self.is_recording and self.entries() >= self.max_entries:
                reached = "max-entries"
            with self.lock:
                if self.is_ending:
                    return  # the program ends by itself; do not interrupt the write
                if reached is not None:
                    self.stopped_by = reached
                    main = ctypes.c_ulong(threading.main_thread().ident)
                    stop = ctypes.py_object(SystemExit)
                    # Raises SystemExit in the main thread, so that `finally` blocks run.
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, stop)
        time.sleep(GRACE_S)
        with self.lock:
            if self.is_ending:
                return  # the program stopped, and the write is done or has failed
            # The program did not stop: write the recording and exit.
            self.at_exit()
            os._exit(0)

    def on_exception(self, error):
        seen = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            if type(error).__name__ == "OutOfMemoryError":
                self.oom_text = str(error)
            error = error.__cause__ or error.__context__

    def at_exit(self):
        """Write the recording; print an error instead of raising it."""
        while not self.is_written:
            try:
                with self.lock:
                    self.is_ending = True
                    with load_module("collector", os.pardir).collector_paused():
                        self.write()
                    self.ending.end(self.folder)
                    finish_work(self.torch)
                return
            except SystemExit:
                continue  # raised by the guard just before
            except Exception as error:
                if sys.stderr is not None:
                    sys.stderr.write(f"allocsim: the recording could not be written: {error!r}\n")
                return

    def write(self):
        # Write nothing for helper processes that outlive the program, or without allocations.
        is_ours = os.getpid() == self.pid and os.path.isdir(self.folder)
        if self.is_written or not self.is_recording or not is_ours or not self.entries():
            return
        rank = self.rank()
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
            **({} if memory is not None else memory_of(self.torch, device)),
            "is_phantom": memory is not None,
            "command": os.environ.get("ALLOCSIM_RECORD_COMMAND", ""),
            "rank": rank,
            "oom_text": self.oom_text or "",
            "stopped_by": self.stopped_by or "",
            **self.reports(),
            "routing": self.routing(),
            "hollow": self.hollow.hollow_modules() if self.hollow else "",
            "invented": self.hollow.invented_values() if self.hollow else "",
        }
        # The snapshot at the start leaves an entry on devices that the process does not use.
        snapshot["device_traces"] = [
            trace if any(entry["action"] != "snapshot" for entry in trace) else []
            for trace in snapshot["device_traces"]
        ]
        if memory is not None:
            self.ending.leave_out_frames(snapshot, BESIDE)
        self.add_marks(snapshot)
        snapshot["allocsim"]["exit_code"] = UNKNOWN_EXIT  # the last value of the pickle
        about = {name: snapshot["allocsim"][name] for name in PRINTED}
        about["entries"] = sum(map(len, snapshot["device_traces"]))
        if self.by_column:
            columns_of = self.ending.columns_of
            snapshot["device_traces"] = list(map(columns_of, snapshot["device_traces"]))
        with open(place + ".part", "wb") as file:
            pickle.dump(snapshot, file)
        with open(place[: -len(".pickle")] + ".json", "w") as file:
            json.dump(about, file)
        os.replace(place + ".part", place)
        self.is_written = True

    def reports(self):
        """Return the fields of `ProcessRecording` from the stubs; empty values on a real GPU."""
        reports = {"reads_back": "", "guessed": "", "device_peak_bytes": 0, "driver": {}}
        if os.environ.get("ALLOCSIM_PHANTOM_MEMORY"):
            ending = self.ending
            with contextlib.suppress(Exception):  # optional information
                reports["guessed"] = ending.guesses()
                reports["device_peak_bytes"] = ending.device_peak_bytes()
                reports["driver"] = ending.driver_counts()
                if self.hollow:
                    reports["driver"].update(self.hollow.tried_variants())
                reports["reads_back"] = ending.reads_text(ending.places_of(ending.read_sites()))
        return reports

    def rank(self):
        if int(os.environ.get("ALLOCSIM_PHANTOM_DEVICES") or 1) > 1:
            return str(ctypes.CDLL(None).device_owner())
        return os.environ.get("RANK", "")

    def routing(self):
        if self.values is None or not self.values.routed_reads:
            return ""
        return os.environ["ALLOCSIM_PHANTOM_VALUES"]

    def add_marks(self, snapshot):
        traces = snapshot["device_traces"]
        # A history with gaps has no marks.
        whole = [
            0 if len(self.marks.counted_rows(entries)) == self.calls.count(device) else None
            for device, entries in enumerate(traces)
        ]
        marks = self.marks.placed_marks(self.calls.marks, traces, whole)
        if marks:
            snapshot["allocsim"]["marks"] = marks
        if self.conf_at_start not in (None, conf_of(snapshot)):
            snapshot["allocsim"]["conf_at_start"] = self.conf_at_start


def load_module(name, folder=""):
    """Return a module of allocsim, loaded by its path, since the package may not be installed.

    folder: folder of the module, relative to allocsim/phantom.
    """
    place = os.path.join(BESIDE, folder, name + ".py")
    spec = importlib.util.spec_from_file_location("allocsim.phantom." + name, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finish_work(torch):
    """Complete the phantom GPU's work for a process group that the program has not closed.

    The group would otherwise wait for the work forever when the process ends.
    """
    if os.environ.get("ALLOCSIM_PHANTOM_MEMORY") and torch is not None:
        with contextlib.suppress(Exception):
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def memory_of(torch, card):
    with contextlib.suppress(Exception):  # optional information
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        processes = load_module("processes", os.path.join(os.pardir, "capture"))
        return {
            "context_memory": max(total - free - reserved, 0),
            "free_memory": free,
            "reserved_memory": reserved,
            **processes.processes_memory(card, total - free),
        }
    return {}


def conf_of(snapshot):
    """Return PYTORCH_CUDA_ALLOC_CONF from a snapshot; None if PyTorch is older than 2.3.

    Snapshots of older releases do not contain it.
    """
    return snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF")


def quietly(patch):

    def patched(module):
        with contextlib.suppress(Exception):  # optional for most programs
            patch(module)

    return patched


def watch_exceptions(recorder):
    show = sys.excepthook

    def excepthook(kind, error, trace):
        recorder.on_exception(error)
        show(kind, error, trace)

    sys.excepthook = excepthook


def run_the_other():
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [place for place in sys.path if os.path.abspath(place or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if FOLDER:
    recorder = Recorder(FOLDER)
    Finder = recorder.marks.Finder
    sys.meta_path.insert(0, Finder("torch", recorder.on_import))
    if os.environ.get("ALLOCSIM_PHANTOM_MEMORY"):
        recorder.hollow = load_module("hollow")
        generation = {"transformers.generation.utils": load_module("assumptions").end_at_max_length}
        for name, patch in {**generation, **recorder.hollow.PATCHES}.items():
            sys.meta_path.insert(0, Finder(name, quietly(patch)))
    recorder.ending.wait_before_kill(FOLDER)
    at_end = functools.partial(recorder.ending.call_in_forks, recorder, Recorder.at_exit)
    sys.meta_path.insert(0, Finder("multiprocessing.util", quietly(at_end)))
    watch_exceptions(recorder)
    # Registered twice: the guard's SystemExit may arrive in the first line of the first call.
    atexit.register(recorder.at_exit)
    atexit.register(recorder.at_exit)
run_the_other()
