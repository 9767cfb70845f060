"""Replay of recordings through the model of the allocator.

`prepare` reads the devices of a recording once; `replay` simulates them under the recorded or other
settings, `Trials` under many settings, and `Walk` one request at a time.
"""

from allocsim.engine.as_made import run_as_made
from allocsim.engine.as_recorded import device_of, drive_as_recorded, is_recorded_device
from allocsim.engine.drive import Drive
from allocsim.engine.fold import fold, fold_allocated
from allocsim.engine.from_state import StateSource, state_source
from allocsim.engine.hints import EMPTY_CACHE_WAYS, Hints
from allocsim.engine.history import History, HistoryWatch, columns_of
from allocsim.engine.notes import provenance_notes, routing_text, workspace_note
from allocsim.engine.observers import GiveUpError, Observer, PeakWatch, Progress
from allocsim.engine.plan import Plan, StepKind, Steps
from allocsim.engine.prepare import prepare, prepare_made
from allocsim.engine.prepared import Prepared
from allocsim.engine.proof import difference_step_by_step, parting_of
from allocsim.engine.replay import OTHER_RELEASE, bytes_of, replay, replay_prepared
from allocsim.engine.result import (
    DeviceRun,
    DriverCalls,
    Fidelity,
    Mismatch,
    Moment,
    Parting,
    PeakState,
    Run,
    SimulatedOom,
    Spill,
    Timeline,
)
from allocsim.engine.setting import IN_STRING, Setting, in_option_string, releases_needed
from allocsim.engine.simulated import Simulated, simulate
from allocsim.engine.smallest_device import (
    Capacity,
    Smallest,
    find_smallest,
    pages_needed,
    smallest_device,
    smallest_fraction,
)
from allocsim.engine.start import Start, StartPeaks, requests_of
from allocsim.engine.start_choice import large_segments_matter
from allocsim.engine.trial import (
    Effect,
    Point,
    Standing,
    Trial,
    Trials,
    Watch,
    trial_of,
    trial_of_run,
    with_peaks,
)
from allocsim.engine.walk import Walk
from allocsim.engine.which_release import can_be_of, releases_of

__all__ = [
    "Capacity",
    "DeviceRun",
    "EMPTY_CACHE_WAYS",
    "Hints",
    "History",
    "HistoryWatch",
    "Drive",
    "DriverCalls",
    "Effect",
    "Fidelity",
    "GiveUpError",
    "IN_STRING",
    "Mismatch",
    "Moment",
    "OTHER_RELEASE",
    "Observer",
    "Parting",
    "PeakState",
    "PeakWatch",
    "Plan",
    "Point",
    "Prepared",
    "Progress",
    "Run",
    "Setting",
    "Simulated",
    "SimulatedOom",
    "Smallest",
    "Spill",
    "Standing",
    "Start",
    "StartPeaks",
    "StateSource",
    "StepKind",
    "Steps",
    "Timeline",
    "Trial",
    "Trials",
    "Walk",
    "Watch",
    "bytes_of",
    "can_be_of",
    "columns_of",
    "device_of",
    "difference_step_by_step",
    "drive_as_recorded",
    "find_smallest",
    "fold",
    "fold_allocated",
    "in_option_string",
    "is_recorded_device",
    "large_segments_matter",
    "pages_needed",
    "parting_of",
    "prepare",
    "prepare_made",
    "provenance_notes",
    "releases_needed",
    "releases_of",
    "replay",
    "replay_prepared",
    "requests_of",
    "run_as_made",
    "simulate",
    "smallest_device",
    "smallest_fraction",
    "state_source",
    "trial_of",
    "trial_of_run",
    "with_peaks",
    "workspace_note",
    "routing_text",
]
