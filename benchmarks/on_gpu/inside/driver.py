"""Write times and addresses of driver calls to a JSON file.  Uses libcuda alone, through ctypes.

All times are nanoseconds of one call on the host.
"""

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

MIB = 1 << 20
SIZES_MIB = (2, 4, 10, 20, 22, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
HANDLES_MIB = ((2, 100), (20, 100), (64, 20), (256, 20))
ATTRIBUTES = (1, 2, 8, 12, 13, 14, 16, 38, 39, 75, 76, 81, 82, 97, 106, 111)
"""Numbers of `CUdevice_attribute`: limits, clocks, compute capability."""
STEPS: tuple[tuple[str, int], ...] = (
    *(("alloc", size) for size in (2, 20, 2, 22, 40, 64, 512, 1024)),
    *(("free", 1), ("alloc", 20), ("free", 4), ("alloc", 64), ("alloc", 40), ("free", 0)),
    *(("alloc", size) for size in (2, 20, 3, 5, 100, 2, 20)),
)
"""Allocations in MiB and frees, by number of the allocation, whose addresses are recorded."""
HELD = 600


class RefusedError(Exception):
    """A driver call returned an error code."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.code = code


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp, with its flags as bytes."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", c_int)]


DEVICE = Location(1, 0)
PINNED = Properties(1, 0, DEVICE, None)
READ_AND_WRITE = Access(DEVICE, 3)


class Driver:
    """libcuda with a context on the first device."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = c_int()
        self.call("cuDeviceGet", byref(self.device), 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the function `name` of libcuda; raise RefusedError if it returns an error."""
        if code := getattr(self.library, name)(*arguments):
            raise RefusedError(name, code)

    def timed(self, name: str, *arguments: Any) -> int:
        """Return the nanoseconds of a call of the function `name` of libcuda."""
        function = getattr(self.library, name)
        begin = time.perf_counter_ns()
        code = function(*arguments)
        took = time.perf_counter_ns() - begin
        if code:
            raise RefusedError(name, code)
        return took

    def make_context(self) -> None:
        """Create the primary context and make it current."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> tuple[int, int]:
        """Allocate `size` bytes; return (address, nanoseconds of the call)."""
        address = c_uint64()
        took = self.timed("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value, took

    def free(self, address: int) -> int:
        """Free an allocation and return the nanoseconds of the call."""
        return self.timed("cuMemFree_v2", c_uint64(address))

    def free_bytes(self) -> int:
        """Return the free device memory in bytes."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value


def summary(times: list[int]) -> dict[str, int]:
    return {
        "median": int(statistics.median(times)),
        "min": min(times),
        "max": max(times),
        "n": len(times),
    }


def about(driver: Driver) -> dict[str, Any]:
    """Return name, version and attributes of the device."""
    name, version = ctypes.create_string_buffer(256), c_int()
    driver.call("cuDeviceGetName", name, 256, driver.device)
    driver.call("cuDriverGetVersion", byref(version))
    total = c_size_t()
    driver.call("cuDeviceTotalMem_v2", byref(total), driver.device)
    found = {}
    for number in ATTRIBUTES:
        value = c_int()
        driver.call("cuDeviceGetAttribute", byref(value), number, driver.device)
        found[str(number)] = value.value
    return {
        "name": name.value.decode(),
        "driver": version.value,
        "attributes": found,
        "total": total.value,
    }


def nvml() -> Callable[[], tuple[str | None, int | None, int | None]]:
    """Return a function that reads driver version, used and total bytes from NVML."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.nvmlInit_v2()
    except (OSError, AttributeError):
        return lambda: (None, None, None)

    def read() -> tuple[str | None, int | None, int | None]:
        text = used = total = None
        try:
            buffer = ctypes.create_string_buffer(80)
            if not library.nvmlSystemGetDriverVersion(buffer, 80):
                text = buffer.value.decode()
            device, memory = c_void_p(), (c_ulonglong * 3)()
            library.nvmlDeviceGetHandleByIndex_v2(0, byref(device))
            if not library.nvmlDeviceGetMemoryInfo(device, memory):
                total, used = int(memory[0]), int(memory[2])
        except AttributeError:
            pass
        return text, used, total

    return read


def by_size(driver: Driver) -> list[dict[str, Any]]:
    """Return the times to allocate and free one block, for each size that fits."""
    rows = []
    for mib in SIZES_MIB:
        if mib * MIB > driver.free_bytes() // 2:
            break
        mallocs, frees, consumed = [], [], set()
        for _ in range(12 if mib <= 2048 else 5):
            before = driver.free_bytes()
            address, took = driver.allocate(mib * MIB)
            consumed.add(before - driver.free_bytes())
            mallocs.append(took)
            frees.append(driver.free(address))
        rows.append(
            {
                "mib": mib,
                "malloc_ns": summary(mallocs),
                "free_ns": summary(frees),
                "consumed": sorted(consumed),
            }
        )
    return rows


def while_held(driver: Driver) -> dict[str, Any]:
    """Return the times to allocate many segments of 20 MiB and free them in order."""
    n = min(HELD, driver.free_bytes() // (20 * MIB) * 9 // 10)
    made = [driver.allocate(20 * MIB) for _ in range(n)]
    frees = [driver.free(address) for address, _ in made]
    mallocs = [took for _, took in made]
    ends = {"first100": slice(0, 100), "last100": slice(-100, None)}
    return {
        f"malloc_20mib_{HELD}_held_ns": {k: summary(mallocs[part]) for k, part in ends.items()},
        f"free_20mib_{HELD}_ns": {k: summary(frees[part]) for k, part in ends.items()},
        "held": n,
    }


def addresses(driver: Driver) -> list[list[Any]]:
    """Return the address of each allocation in `STEPS`."""
    made: list[int] = []
    live: dict[int, int] = {}
    rows: list[list[Any]] = []
    for what, value in STEPS:
        if what == "free":
            driver.free(live.pop(value))
            rows.append(["free", value])
            continue
        address, _ = driver.allocate(value * MIB)
        live[len(made)] = address
        made.append(address)
        rows.append([value, address])
    for address in live.values():
        driver.free(address)
    return rows


def virtual(driver: Driver) -> dict[str, Any]:
    """Return the times of the calls of expandable segments, for handles of several sizes."""
    found: dict[str, Any] = {}
    for option in (0, 1):
        granularity = c_size_t()
        name = "cuMemGetAllocationGranularity"
        driver.call(name, byref(granularity), byref(PINNED), option)
        found[f"granularity_{option}"] = granularity.value
    base, total = c_uint64(), c_size_t(32 << 30)
    arguments = (byref(base), total, c_size_t(0), c_uint64(0), c_ulonglong(0))
    found["reserve_ns"] = driver.timed("cuMemAddressReserve", *arguments)
    found["reserved_at"] = base.value
    found["virtual"] = [_handles(driver, base.value, mib, n) for mib, n in HANDLES_MIB]
    driver.call("cuMemAddressFree", base, total)
    return found


def _handles(driver: Driver, base: int, mib: int, n: int) -> dict[str, Any]:
    size = mib * MIB
    n = max(1, min(n, driver.free_bytes() // (2 * size)))
    times: dict[str, list[int]] = {k: [] for k in ("create", "map", "access", "unmap", "release")}
    before = driver.free_bytes()
    handles = []
    for k in range(n):
        handle, place = c_ulonglong(), c_uint64(base + k * size)
        length = c_size_t(size)
        create = (byref(handle), length, byref(PINNED), c_ulonglong(0))
        times["create"].append(driver.timed("cuMemCreate", *create))
        mapping = (place, length, c_size_t(0), handle, c_ulonglong(0))
        times["map"].append(driver.timed("cuMemMap", *mapping))
        access = (place, length, byref(READ_AND_WRITE), c_size_t(1))
        times["access"].append(driver.timed("cuMemSetAccess", *access))
        handles.append((handle, place, length))
    consumed = before - driver.free_bytes()
    for handle, place, length in handles:
        times["unmap"].append(driver.timed("cuMemUnmap", place, length))
        times["release"].append(driver.timed("cuMemRelease", handle))
    return {"mib": mib, "n": n, "consumed": consumed} | {k: summary(v) for k, v in times.items()}


def fill(driver: Driver) -> dict[str, Any]:
    """Allocate smaller and smaller pieces until each is refused."""
    rows, made, filled = [], [], 0
    for piece in (1024 * MIB, 64 * MIB, 20 * MIB, 2 * MIB):
        while True:
            try:
                address, _ = driver.allocate(piece)
            except RefusedError as refused:
                left = driver.free_bytes()
                rows.append({"piece": piece, "left": left, "error": refused.code})
                break
            made.append(address)
            filled += piece
    for address in made:
        driver.free(address)
    return {"fill": rows, "filled": filled, "free_after_all": driver.free_bytes()}


def main() -> None:
    driver, read = Driver(), nvml()
    found = about(driver)
    found["driver_text"], found["nvml_before_context"], found["nvml_total"] = read()
    driver.make_context()
    found["nvml_after_context"] = read()[1]
    found["free_after_context"] = driver.free_bytes()
    found["cuMemAlloc"] = by_size(driver)
    found |= while_held(driver)
    found["addresses"] = addresses(driver)
    found |= virtual(driver)
    found |= fill(driver)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
