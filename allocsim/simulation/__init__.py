"""Simulation of one replay: its steps, settings, start state, observers and results."""

from allocsim.simulation.addresses import Addresses
from allocsim.simulation.drive import PAUSE_EVERY, Drive
from allocsim.simulation.observers import (
    ENTRIES,
    FIRST_ACTIONS,
    GiveUpError,
    Observer,
    PeakWatch,
    PlacedSteps,
    Progress,
    Row,
    SpillWatch,
    rows_of,
)
from allocsim.simulation.plan import (
    Change,
    Period,
    Plan,
    Planned,
    PlannedAt,
    Step,
    StepKind,
    Steps,
    find_period,
    joined,
    longest_period,
    spread,
)
from allocsim.simulation.recorded_device import Hints, RecordedDevice, is_at_start
from allocsim.simulation.result import (
    Deferred,
    DeviceRun,
    DriverCalls,
    Fidelity,
    LeftOpen,
    Mismatch,
    Parting,
    PeakState,
    Run,
    SimulatedOom,
    Spill,
    driver_calls_of,
)
from allocsim.simulation.timeline import Timeline, TimelinePoint, fold, fold_allocated, fold_columns
from allocsim.simulation.what_if import (
    IN_STRING,
    Setting,
    Start,
    StartPeaks,
    has_live_blocks,
    in_option_string,
    live_requests,
    releases_needed,
)

__all__ = [
    "Addresses", "Change", "Deferred", "DeviceRun", "Drive", "DriverCalls", "ENTRIES",
    "FIRST_ACTIONS", "Fidelity", "GiveUpError", "Hints", "IN_STRING", "LeftOpen", "Mismatch",
    "Observer", "PAUSE_EVERY", "Parting", "PeakState", "PeakWatch", "Period", "PlacedSteps", "Plan",
    "Planned", "PlannedAt", "Progress", "RecordedDevice", "Row", "Run", "Setting", "SimulatedOom",
    "Spill", "SpillWatch", "Start", "StartPeaks", "Step", "StepKind", "Steps", "Timeline",
    "TimelinePoint", "driver_calls_of", "find_period", "fold", "fold_allocated", "fold_columns",
    "has_live_blocks", "in_option_string", "is_at_start", "joined", "live_requests",
    "longest_period", "releases_needed", "rows_of", "spread",
]  # fmt: skip
