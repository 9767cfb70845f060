"""Bookkeeping of the phantom device, compiled alone, without CUDA and PyTorch.

The libraries are loaded by path and called by the names that CUDA gives their functions.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import pytest

from allocsim.phantom import Stubs, find_gpu

CALLS = Path(__file__).parents[2] / "traces" / "h200" / "driver.json"
MIB = 1 << 20
BASE = 1 << 44
BUMP, FIRSTFIT, DRIVER = 0, 1, 2
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_READY, NOT_PERMITTED = 0, 1, 2, 600, 800
INSUFFICIENT_SIZE = 7
"""Error code of NVML; the other error codes are those of CUDA."""
NOT_FOUND = 500
MEMORY_TYPE, MEMORY_OF_HOST, MEMORY_OF_DEVICE = 2, 1, 2
"""Number of an attribute of a pointer, and its values."""
HANDLE_OF_NOBODY, HANDLE_OF_FILES, HANDLE_OF_FABRIC = 0, 1, 8
"""Ways for other processes to open a handle's memory."""


class Device:
    """The three stub libraries over one device."""

    def __init__(self, stubs: Stubs) -> None:
        # The device first, because the other libraries find it by soname.
        self.books = ctypes.CDLL(str(stubs.device), mode=ctypes.RTLD_GLOBAL)
        self.cudart = ctypes.CDLL(str(stubs.cudart))
        self.cuda = ctypes.CDLL(str(stubs.cuda))
        self.nvml = ctypes.CDLL(str(stubs.nvml))
        self.books.device_free_bytes.restype = ctypes.c_size_t
        self.books.device_ranges.restype = ctypes.c_size_t

    def reset(self, capacity: int, policy: int = BUMP) -> None:
        self.books.device_configure(
            ctypes.c_size_t(capacity), ctypes.c_int(policy), ctypes.c_size_t(BASE)
        )

    def malloc(self, size: int) -> int | None:
        """Return the address as offset from the base; None if the device is full."""
        out = ctypes.c_void_p()
        error = self.cudart.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(size))
        assert error in (SUCCESS, OUT_OF_MEMORY)
        return None if error else (out.value or 0) - BASE

    def free(self, offset: int) -> int:
        return int(self.cudart.cudaFree(ctypes.c_void_p(BASE + offset)))

    def reserve(self, size: int) -> int:
        out = ctypes.c_size_t()
        zero = ctypes.c_size_t(0)
        assert not self.cuda.cuMemAddressReserve(
            ctypes.byref(out), ctypes.c_size_t(size), zero, zero, zero
        )
        return out.value - BASE

    def create(self, size: int) -> int | None:
        handle = ctypes.c_ulonglong()
        error = self.create_as(HANDLE_OF_FILES, ctypes.byref(handle), size)
        assert error in (SUCCESS, OUT_OF_MEMORY)
        return None if error else handle.value

    def guesses(self) -> set[str]:
        """Return the libraries whose workspaces were guessed in this process."""
        self.books.device_guesses.restype = ctypes.c_char_p
        return set(filter(None, self.books.device_guesses().decode().split(", ")))

    def create_as(self, shared_as: int, handle: Any, size: int) -> int:
        """Return the error code of cuMemCreate for memory with a way of sharing (HANDLE_OF_…)."""
        properties = (ctypes.c_int * 8)(1, shared_as)
        flags = ctypes.c_ulonglong(0)
        return int(self.cuda.cuMemCreate(handle, ctypes.c_size_t(size), properties, flags))

    def left(self) -> int:
        return int(self.books.device_free_bytes())

    def submitted(self, stream: int) -> int:
        """Return the number of pieces of work of a stream, the second field of device_stream."""
        self.books.device_stream.restype = ctypes.POINTER(ctypes.c_uint64)
        return int(self.books.device_stream(ctypes.c_size_t(stream))[1])

    def event(self, stream: int) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        assert not self.cudart.cudaEventCreateWithFlags(ctypes.byref(event), 0)
        assert not self.cudart.cudaEventRecord(event, ctypes.c_void_p(stream))
        return event

    def is_done(self, event: ctypes.c_void_p) -> bool:
        error = self.cudart.cudaEventQuery(event)
        assert error in (SUCCESS, NOT_READY)
        return bool(error == SUCCESS)


@pytest.fixture
def device(libraries: Stubs) -> Iterator[Device]:
    device = Device(libraries)
    device.reset(1 << 30)
    yield device
    device.reset(1 << 30)


def test_device_memory_is_used_in_pages_of_2_mib(device: Device) -> None:
    assert device.malloc(1) == 0
    assert device.malloc(2 * MIB + 1) == 2 * MIB
    assert device.malloc(2 * MIB) == 6 * MIB
    assert device.left() == (1 << 30) - 8 * MIB


def test_request_of_all_free_memory_succeeds(device: Device) -> None:
    device.reset(4 * MIB)
    assert device.malloc(4 * MIB) == 0
    assert device.left() == 0
    assert device.malloc(1) is None
    device.free(0)
    assert device.malloc(4 * MIB + 1) is None
    assert device.left() == 4 * MIB


def test_bump_never_reuses_an_address(device: Device) -> None:
    assert device.malloc(2 * MIB) == 0
    device.free(0)
    assert device.malloc(2 * MIB) == 2 * MIB


def in_mib(device: Device, *sizes: int) -> list[int]:
    """Return the addresses of requests, sizes and addresses in MiB from the base."""
    return [(device.malloc(size * MIB) or 0) // MIB for size in sizes]


def test_driver_policy_equals_cu_mem_alloc_on_an_h200(device: Device) -> None:
    """Segments in the chunk of the CUDA context, 500 MiB above the others, are left out."""
    calls = json.loads(CALLS.read_text())["addresses"]
    base = calls[3][1] + 32 * MIB
    made = [(size, address) for size, address in calls if size != "free"]
    device.reset(256 << 30, DRIVER)
    expected: list[int] = []
    placed: list[int] = []
    for size, address in calls:
        if size == "free":
            if made[address][1] < base:
                assert device.free(made[address][1] - base) == SUCCESS
        elif address < base:
            expected.append(address - base)
            placed += [MIB * each for each in in_mib(device, size)]
    assert placed == expected
    assert len(placed) == 14


def test_driver_policy_fills_chunks_of_32_mib_from_their_start(device: Device) -> None:
    device.reset(1 << 30, DRIVER)
    assert in_mib(device, 20, 12, 2, 44, 20, 30) == [-32, -12, -64, -128, -84, -62]


def test_driver_policy_has_no_hole_across_chunks(device: Device) -> None:
    device.reset(1 << 30, DRIVER)
    assert in_mib(device, 20, 20, 14) == [-32, -64, -96]


def test_driver_policy_merges_the_holes_of_a_chunk(device: Device) -> None:
    device.reset(1 << 30, DRIVER)
    assert in_mib(device, 8, 8, 8, 8) == [-32, -24, -16, -8]
    for offset in (-24, -8, -16):
        assert device.free(offset * MIB) == SUCCESS
    assert in_mib(device, 24) == [-24]


def test_driver_policy_releases_an_empty_chunk(device: Device) -> None:
    device.reset(1 << 30, DRIVER)
    assert in_mib(device, 32, 96, 32) == [-32, -128, -160]
    assert device.free(-128 * MIB) == SUCCESS
    assert in_mib(device, 20, 64, 64) == [-64, -128, -224]
    for offset in (-32, -64, -128, -160, -224):
        assert device.free(offset * MIB) == SUCCESS
    assert in_mib(device, 512) == [-512]


def test_driver_policy_reserves_above_its_allocations(device: Device) -> None:
    device.reset(1 << 30, DRIVER)
    assert [device.reserve(64 * MIB), device.reserve(2 * MIB)] == [0, 64 * MIB]
    assert in_mib(device, 20) == [-32]
    assert device.left() == (1 << 30) - 20 * MIB


def test_firstfit_takes_the_lowest_sufficient_hole(device: Device) -> None:
    device.reset(1 << 30, FIRSTFIT)
    assert [device.malloc(2 * MIB) for _ in range(5)] == [0, 2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB]
    for offset in (2 * MIB, 6 * MIB, 8 * MIB):
        assert device.free(offset) == SUCCESS
    assert device.malloc(4 * MIB) == 6 * MIB
    assert device.malloc(2 * MIB) == 2 * MIB
    device.free(0)
    assert device.malloc(1) == 0


def test_free_of_an_unknown_address_is_an_error(device: Device) -> None:
    device.malloc(4 * MIB)
    assert device.free(2 * MIB) != SUCCESS
    assert device.free(0) == SUCCESS
    assert device.free(0) != SUCCESS


def test_reserved_addresses_hold_no_memory(device: Device) -> None:
    device.reset(20 * MIB, FIRSTFIT)
    assert device.reserve(40 * MIB) == 0
    assert device.malloc(2 * MIB) == 40 * MIB
    assert device.left() == 18 * MIB
    freed = device.cuda.cuMemAddressFree(ctypes.c_size_t(BASE), ctypes.c_size_t(40 * MIB))
    assert freed == SUCCESS
    assert device.malloc(2 * MIB) == 0


def test_handle_uses_memory_of_its_size(device: Device) -> None:
    device.reset(20 * MIB)
    handle = device.create(12 * MIB)
    assert handle is not None
    assert device.left() == 8 * MIB
    assert device.create(10 * MIB) is None
    assert device.left() == 8 * MIB
    assert device.cuda.cuMemRelease(ctypes.c_ulonglong(handle)) == SUCCESS
    assert device.left() == 20 * MIB


@pytest.mark.parametrize(
    ("size", "shared_as", "error"),
    [
        (13 * MIB, HANDLE_OF_FILES, INVALID_VALUE),
        (13 * MIB, HANDLE_OF_NOBODY, INVALID_VALUE),
        (40 * MIB + 1, HANDLE_OF_FILES, INVALID_VALUE),  # before memory is looked for
        (0, HANDLE_OF_FILES, INVALID_VALUE),
        (12 * MIB, HANDLE_OF_FABRIC, NOT_PERMITTED),
        (12 * MIB, HANDLE_OF_NOBODY, SUCCESS),
    ],
)
def test_handles_are_whole_pages_without_a_fabric(
    device: Device, size: int, shared_as: int, error: int
) -> None:
    device.reset(20 * MIB)
    handle = ctypes.c_ulonglong()
    assert device.create_as(shared_as, ctypes.byref(handle), size) == error
    assert device.left() == 20 * MIB - (0 if error else size)


def test_event_is_done_when_its_stream_has_finished(device: Device) -> None:
    first, other = device.event(4096), device.event(8192)
    assert not device.is_done(first)
    device.books.device_finish(ctypes.c_size_t(4096))
    assert device.is_done(first)
    assert not device.is_done(other)
    later = device.event(4096)
    assert not device.is_done(later)
    device.books.device_finish_all()
    assert device.is_done(later)
    assert device.is_done(other)


def test_waiting_for_an_event_completes_earlier_work_of_its_stream(device: Device) -> None:
    first, second, third = (device.event(4096) for _ in range(3))
    assert device.cudart.cudaEventSynchronize(second) == SUCCESS
    assert device.is_done(first)
    assert device.is_done(second)
    assert not device.is_done(third)


def test_time_between_events_is_positive(device: Device) -> None:
    """Autotuners divide by this time, and repeat a measurement that seems short."""
    first, second = (device.event(4096) for _ in range(2))
    elapsed = ctypes.c_float()
    for asked in (device.cudart.cudaEventElapsedTime, device.cudart.cudaEventElapsedTime_v2):
        assert asked(ctypes.byref(elapsed), first, second) == SUCCESS
        assert elapsed.value == 1000


def test_unrecorded_event_is_done(device: Device) -> None:
    event = ctypes.c_void_p()
    device.cudart.cudaEventCreateWithFlags(ctypes.byref(event), 0)
    assert device.is_done(event)


def test_many_streams_have_separate_work(device: Device) -> None:
    events = [device.event(4096 * n) for n in range(1000)]
    device.books.device_finish(ctypes.c_size_t(4096 * 999))
    assert [device.is_done(event) for event in events] == [False] * 999 + [True]


def test_driver_calls_are_found_by_name(device: Device) -> None:
    entry, status = ctypes.c_void_p(), ctypes.c_int(-1)
    find = device.cudart.cudaGetDriverEntryPointByVersion
    flags = ctypes.c_ulonglong(0)
    for name, expected in ((b"cuMemCreate", 0), (b"cuNothingOfThatName", 1)):
        error = find(name, ctypes.byref(entry), 12000, flags, ctypes.byref(status))
        assert error == SUCCESS
        assert status.value == expected
        assert bool(entry.value) == (expected == 0)


PTX, MACHINE_CODE = 1, 2
NO_KERNEL_IMAGE = 209


def kernel_version(device: Device, *images: tuple[int, int]) -> int | None:
    """Return the version that a kernel reports; None for an error.

    images: (kind, architecture) of each image of its module, in a fat binary as compilers emit.
    """
    code = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 1, 64, 8, architecture) + bytes(8)
        for kind, architecture in images
    )
    body = ctypes.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(code)) + code)
    binary = struct.pack("<IIQ", 0x466243B1, 1, ctypes.addressof(body))
    register = device.cudart.__getattr__("__cudaRegisterFatBinary")
    register.restype = ctypes.c_void_p
    module = ctypes.c_void_p(register(binary))
    kernel = ctypes.addressof(body)  # any address that no other test uses
    device.cudart.__getattr__("__cudaRegisterFunction")(module, ctypes.c_void_p(kernel))
    out = ctypes.create_string_buffer(64)
    error = device.cudart.cudaFuncGetAttributes(out, ctypes.c_void_p(kernel))
    assert error in (SUCCESS, NO_KERNEL_IMAGE)
    _, _, ptx, machine = struct.unpack_from("<iiii", out, 24)
    assert ptx == machine
    return None if error else int(ptx)


def test_kernel_has_the_best_version_of_its_module(device: Device) -> None:
    """The device is an 8.0: machine code runs within a major version, PTX on later ones."""
    all_kinds = [(MACHINE_CODE, 75), (MACHINE_CODE, 80), (MACHINE_CODE, 86), (MACHINE_CODE, 90)]
    assert kernel_version(device, *all_kinds) == 80
    assert kernel_version(device, (MACHINE_CODE, 70), (PTX, 75), (PTX, 90)) == 75
    assert kernel_version(device, (MACHINE_CODE, 75), (MACHINE_CODE, 86)) is None


ATTRIBUTES = {
    16: "multiprocessors", 38: "l2", 39: "threads", 75: "major", 76: "minor", 81: "shared_memory",
    82: "registers", 97: "block_shared_memory", 106: "blocks", 111: "reserved",
}  # fmt: skip
OFFSETS = {
    384: 16,
    596: 38,
    604: 39,
    360: 75,
    364: 76,
    624: 81,
    632: 82,
    672: 97,
    688: 106,
    696: 111,
}
ASK = f"""
import ctypes, json, struct, sys
books, cudart, cuda = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:])
def asked(call, number):
    value = ctypes.c_int()
    call(ctypes.byref(value), number, 0)
    return value.value
properties = ctypes.create_string_buffer(1008)
cudart.cudaGetDeviceProperties(properties, 0)
occupancy = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
occupancy(ctypes.byref(blocks := ctypes.c_int()), None, 512, ctypes.c_size_t(0))
print(json.dumps([
    [asked(cudart.cudaDeviceGetAttribute, number) for number in {list(ATTRIBUTES)}],
    [asked(cuda.cuDeviceGetAttribute, number) for number in {list(ATTRIBUTES)}],
    [struct.unpack_from("<i", properties, at)[0] for at in {list(OFFSETS)}],
    blocks.value,
]))
"""


@pytest.mark.parametrize("card", ["RTX 4090", "T4", "H100"])
def test_phantom_reports_the_limits_of_the_card(libraries: Stubs, card: str) -> None:
    """The runtime, the driver and the runtime's property table agree."""
    gpu = find_gpu(card)
    environment = os.environ | {
        "ALLOCSIM_PHANTOM_CAPABILITY": ".".join(map(str, gpu.capability)),
        "ALLOCSIM_PHANTOM_MULTIPROCESSORS": str(gpu.multiprocessors),
        "ALLOCSIM_PHANTOM_LIMITS": " ".join(map(str, astuple(gpu.limits))),
    }
    paths = map(str, (libraries.device, libraries.cudart, libraries.cuda))
    command = [sys.executable, "-c", ASK, *paths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    by_runtime, by_driver, in_table, blocks = json.loads(done.stdout)
    known = asdict(gpu.limits) | {
        "multiprocessors": gpu.multiprocessors,
        "major": gpu.capability[0],
        "minor": gpu.capability[1],
        "reserved": 1024 if gpu.capability >= (8, 0) else 0,
    }
    assert by_runtime == by_driver == [known[name] for name in ATTRIBUTES.values()]
    assert in_table == [known[ATTRIBUTES[number]] for number in OFFSETS.values()]
    assert blocks == gpu.limits.threads // 512


def test_values_are_zero_unless_copied_straight_back(device: Device) -> None:
    """Ranks agree on numbers this way: to the device, through a broadcast, and back."""
    on_device, stream = ctypes.c_void_p(), ctypes.c_void_p(0)
    device.cudart.cudaMalloc(ctypes.byref(on_device), ctypes.c_size_t(64))
    sent, size = ctypes.create_string_buffer(b"12345678", 8), ctypes.c_size_t(8)

    def back(at: int = 0) -> bytes:
        found = ctypes.create_string_buffer(b"????????", 8)
        there = ctypes.c_void_p((on_device.value or 0) + at)
        assert device.cudart.cudaMemcpy(found, there, size, 2) == SUCCESS
        return found.raw

    device.cudart.cudaMemcpy(on_device, sent, size, 1)
    assert back() == b"12345678"
    assert back(at=8) == bytes(8)
    device.cudart.cudaMemcpy(on_device, sent, size, 1)
    device.cudart.cudaMemsetAsync(on_device, 7, size, stream)
    assert back() == bytes(8)


def test_nvml_reports_no_process(device: Device) -> None:
    handle, count = ctypes.c_void_p(), ctypes.c_uint(7)
    assert device.nvml.nvmlInit_v2() == SUCCESS
    device.nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0", ctypes.byref(handle))
    device.nvml.nvmlDeviceGetComputeRunningProcesses(handle, ctypes.byref(count), None)
    assert count.value == 0


def test_device_count_is_that_of_the_environment(device: Device) -> None:
    """This process holds the rest of the memory in use."""

    class Process(ctypes.Structure):
        _fields_ = (("number", ctypes.c_uint), ("used", ctypes.c_ulonglong))

    device.reset(100 * MIB)
    device.malloc(30 * MIB)
    libc = ctypes.CDLL(None)
    libc.setenv(b"ALLOCSIM_PHANTOM_PROCESSES", f"7:{4 * MIB},self,9:{6 * MIB}".encode(), 1)
    ask = device.nvml.nvmlDeviceGetComputeRunningProcesses
    try:
        room, processes = ctypes.c_uint(2), (Process * 3)()
        assert ask(None, ctypes.byref(room), processes) == INSUFFICIENT_SIZE
        assert room.value == 3
        assert ask(None, ctypes.byref(room), processes) == SUCCESS
    finally:
        libc.unsetenv(b"ALLOCSIM_PHANTOM_PROCESSES")
    found = [(each.number, each.used) for each in processes]
    assert found == [(7, 4 * MIB), (os.getpid(), 20 * MIB), (9, 6 * MIB)]


@pytest.mark.parametrize(
    ("library", "create", "destroy"),
    [
        ("blas", "cublasCreate_v2", "cublasDestroy_v2"),
        ("blas", "cublasLtCreate", "cublasLtDestroy"),
        ("dnn", "cudnnCreate", "cudnnDestroy"),
        ("math", "cusolverDnCreate", "cusolverDnDestroy"),
    ],
)
def test_handles_are_distinct(libraries: Stubs, library: str, create: str, destroy: str) -> None:
    """PyTorch up to 2.14 keeps a workspace per handle; autograd's thread has its own handle."""
    stub = ctypes.CDLL(str(getattr(libraries, library)))
    handles = [ctypes.c_void_p() for _ in range(3)]
    for handle in handles:
        assert getattr(stub, create)(ctypes.byref(handle)) == SUCCESS
    assert len({handle.value for handle in handles}) == 3
    assert all(getattr(stub, destroy)(handle) == SUCCESS for handle in handles)


def test_unknown_workspace_is_small_and_noted(device: Device, libraries: Stubs) -> None:
    """cuSOLVER: LAPACK's minimum, in elements; cuFFT: a complex number per point, in bytes."""
    math = ctypes.CDLL(str(libraries.math))
    before = device.guesses() - {"cuFFT", "cuSOLVER"}
    elements, vectors = ctypes.c_int(), 1
    math.cusolverDnSsyevd_bufferSize(None, vectors, 0, 100, None, 100, None, ctypes.byref(elements))
    assert elements.value == 1 + 6 * 100 + 2 * 100**2
    assert device.guesses() - before >= {"cuSOLVER"}
    assert work_area(math, 64, 25, batch=3) == 3 * 64 * 25 * 8
    assert device.guesses() - before == {"cuFFT", "cuSOLVER"}


def work_area(math: ctypes.CDLL, *lengths: int, batch: int) -> int:
    """Return the bytes of work area for a single-precision complex plan of cuFFT."""
    sizes, far = (ctypes.c_longlong * len(lengths))(*lengths), ctypes.c_longlong
    size, single = ctypes.c_size_t(), 4
    assert not math.cufftXtMakePlanMany(
        1, len(lengths), sizes, None, far(1), far(1), single, None, far(1), far(1), single,
        far(batch), ctypes.byref(size), single,
    )  # fmt: skip
    return size.value


@pytest.mark.parametrize(
    ("lengths", "elements"),
    [
        pytest.param((256,), 0, id="c3a on an L40S"),
        pytest.param((3072, 3072), 0, id="fourierft on an L40S"),
        pytest.param((9216, 3072), 9216 * 3072, id="longer matrices of fourierft"),
        pytest.param((4096,), 0, id="longest that a block's 48 KiB of shared memory holds"),
        pytest.param((8192,), 8192, id="too long for shared memory"),
        pytest.param((240,), 240, id="a factor other than 2 and 3"),
    ],
)
def test_short_fft_needs_no_workspace(
    libraries: Stubs, lengths: tuple[int, ...], elements: int
) -> None:
    """Runs on an L40S reserved these sizes (benchmarks/results/imagegen.md)."""
    assert work_area(ctypes.CDLL(str(libraries.math)), *lengths, batch=5) == 5 * elements * 8


def test_driver_finds_the_address_of_symbols(device: Device) -> None:
    """Libraries that load the driver at run time ask it for its functions by name."""
    found, status = ctypes.c_void_p(), ctypes.c_int(7)
    ask = device.cuda.cuGetProcAddress_v2
    flags = ctypes.c_ulonglong(0)
    # The driver is looked up by its soname among the loaded libraries.
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    assert ask(b"cuMemCreate", ctypes.byref(found), 13000, flags, ctypes.byref(status)) == SUCCESS
    assert found.value == ctypes.cast(device.cuda.cuMemCreate, ctypes.c_void_p).value
    assert status.value == 0
    assert ask(b"cuFly", ctypes.byref(found), 13000, flags, ctypes.byref(status)) == NOT_FOUND
    assert (found.value, status.value) == (None, 1)


def test_pinned_address_is_host_memory_for_the_driver(device: Device) -> None:
    """Triton reads the type of each pointer; pinned host memory is allowed."""
    on_device, on_host = ctypes.c_void_p(), ctypes.c_void_p()
    device.cudart.cudaMalloc(ctypes.byref(on_device), ctypes.c_size_t(64))
    device.cudart.cudaHostAlloc(ctypes.byref(on_host), ctypes.c_size_t(64), 0)
    kind = ctypes.c_uint()

    def kind_of(address: int | None) -> int | None:
        error = device.cuda.cuPointerGetAttribute(
            ctypes.byref(kind), MEMORY_TYPE, ctypes.c_size_t(address or 0)
        )
        return None if error else kind.value

    assert kind_of(on_device.value) == MEMORY_OF_DEVICE
    assert kind_of(on_host.value) == MEMORY_OF_HOST
    device.cudart.cudaFreeHost(on_host)
    assert kind_of(on_host.value) is None


_ASK_NVML = """
import ctypes, sys
for name in sys.argv[1:]:
    ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
import pynvml, json
pynvml.nvmlInit()
devices = []
for i in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(i)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    again = pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    devices.append([
        again, uuid, pynvml.nvmlDeviceGetName(handle), memory.total, memory.free, second.used,
        pynvml.nvmlDeviceGetCudaComputeCapability(handle), pynvml.nvmlDeviceGetPciInfo(handle).bus,
    ])
print(json.dumps([pynvml.nvmlSystemGetDriverVersion(), devices]))
"""


def test_nvml_describes_the_devices_to_its_published_bindings(libraries: Stubs) -> None:
    pytest.importorskip("pynvml")
    described = {
        "ALLOCSIM_PHANTOM_DEVICES": "2",
        "ALLOCSIM_PHANTOM_MEMORY": str(80 << 30),
        "ALLOCSIM_PHANTOM_CONTEXT": str(1 << 30),
        "ALLOCSIM_PHANTOM_NAME": "NVIDIA H100",
        "ALLOCSIM_PHANTOM_CAPABILITY": "9.0",
    }
    command = [sys.executable, "-c", _ASK_NVML, str(libraries.device), str(libraries.nvml)]
    done = subprocess.run(
        command, env=os.environ | described, capture_output=True, text=True, check=True
    )
    driver, devices = json.loads(done.stdout)
    assert driver.startswith("580.")
    uuids = [f"GPU-616c6c6f-6373-696d-2d70-68616e746f6{last}" for last in "de"]
    common = ["NVIDIA H100", 80 << 30, 79 << 30, 1 << 30, [9, 0]]
    assert devices == [[i, uuids[i], *common, 1 + i] for i in range(2)]


def test_memory_of_a_process_is_on_one_device(libraries: Stubs) -> None:
    """Each rank of a server is a process with one device."""
    program = (
        "import ctypes, sys\n"
        "device, cudart = (ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) for name in sys.argv[1:])\n"
        "out, count, size = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_size_t(1)\n"
        "take = lambda: cudart.cudaMalloc(ctypes.byref(out), size)\n"
        "cudart.cudaGetDeviceCount(ctypes.byref(count))\n"
        "print(count.value, cudart.cudaSetDevice(2), cudart.cudaSetDevice(1), take(),\n"
        "      cudart.cudaSetDevice(0), take())\n"
    )
    command = [sys.executable, "-c", program, str(libraries.device), str(libraries.cudart)]
    environment = os.environ | {"ALLOCSIM_PHANTOM_DEVICES": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "101", "0", "0", "0", "2"]
    assert "expects one process per device" in done.stderr


_LOAD = """
import ctypes, sys
names = sys.argv[1:]
device, cudart, cuda = (ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) for name in names)
device.device_free_bytes.restype = ctypes.c_size_t
free = [device.device_free_bytes()]
def show(): print((free[0] - device.device_free_bytes()) >> 20, flush=True)
module, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
for line in sys.stdin:
    cuda.cuModuleLoadData(ctypes.byref(module), bytes.fromhex(line)); show()
stream = ctypes.c_void_p(64)
for launch, count in ((device.device_launch, 1024), (device.device_collective, 1)):
    cudart.cudaStreamBeginCapture(stream, 0)
    for _ in range(count): launch(stream)
    cudart.cudaStreamEndCapture(stream, ctypes.byref(graph)); show()
    cudart.cudaGraphInstantiate(ctypes.byref(executable), graph); show()
    cudart.cudaGraphExecDestroy(executable); show()
"""


def _module(stack: int) -> bytes:
    """Return an ELF file whose section .nv.info has the frame size of one function."""
    texts = b"\0.shstrtab\0.nv.info\0"
    attributes = struct.pack("<BBHII", 4, 0x2F, 8, 1, 255) + struct.pack(
        "<BBHII", 4, 0x11, 8, 1, stack
    )
    data = texts + attributes
    section = "<IIQQQQIIQQ"
    empty = struct.pack(section, *[0] * 10)
    names = struct.pack(section, 1, 3, 0, 0, 64, len(texts), 0, 0, 1, 0)
    info = struct.pack(section, 11, 1, 0, 0, 64 + len(texts), len(attributes), 0, 0, 1, 0)
    start = struct.pack("<4sB11xHHIQQQIHHHHHH", b"\177ELF", 2, 2, 190, 1, 0, 0, 64 + len(data),
                        0, 64, 0, 0, 64, 3, 1)  # fmt: skip
    return start + data + empty + names + info


def test_the_driver_takes_memory_for_kernels_stacks_and_graphs(libraries: Stubs) -> None:
    """A T4 runs 40 x 1,024 threads at once, and its context has 1 KiB for the stack of each."""
    card = find_gpu("T4")
    command = [sys.executable, "-c", _LOAD, str(libraries.device), str(libraries.cudart),
               str(libraries.cuda)]  # fmt: skip
    environment = os.environ | {
        "ALLOCSIM_PHANTOM_MEMORY": str(card.memory),
        "ALLOCSIM_PHANTOM_MULTIPROCESSORS": str(card.multiprocessors),
        "ALLOCSIM_PHANTOM_LIMITS": " ".join(map(str, astuple(card.limits))),
        "ALLOCSIM_PHANTOM_DRIVER": f"{MIB} 4096 {6 * MIB} {10 * MIB} {2 * MIB}",
    }
    modules = (_module(1024), _module(3072), _module(2048), bytes(64))
    text = "".join(f"{module.hex()}\n" for module in modules)
    done = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, check=True
    )
    # 10 MiB with the first kernel, 1 MiB for each, and 80 MiB for stacks of 2 KiB more, in pages
    # of 2 MiB; then a graph of 1,024 nodes, captured, instantiated and destroyed, and one of a
    # collective, for which the least of a graph is counted.
    loaded, graph, collective = (12, 92, 94, 94), (94, 98, 94), (94, 102, 94)
    assert list(map(int, done.stdout.split())) == [*loaded, *graph, *collective]


_EVENTS = """
import ctypes, sys
device, cudart = (ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) for name in sys.argv[1:])
event, graph, status = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
captured, other = ctypes.c_void_p(64), ctypes.c_void_p(65)
for flags in (0, 1):
    cudart.cudaEventCreateWithFlags(ctypes.byref(event), 0)
    cudart.cudaStreamBeginCapture(captured, 0)
    cudart.cudaEventRecordWithFlags(event, captured, flags)
    cudart.cudaStreamWaitEvent(other, event, 0)
    cudart.cudaStreamIsCapturing(other, ctypes.byref(status))
    print(status.value)
    cudart.cudaStreamEndCapture(captured, ctypes.byref(graph))
"""


def test_only_a_stream_that_waits_for_an_external_event_stays_out_of_a_capture(
    libraries: Stubs,
) -> None:
    """The flag is cudaEventRecordExternal."""
    command = [sys.executable, "-c", _EVENTS, str(libraries.device), str(libraries.cudart)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


_TAKE = """
import ctypes, sys
device, cudart = (ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) for name in sys.argv[1:])
for line in sys.stdin:
    out = ctypes.c_void_p()
    print(cudart.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(int(line) << 20)), flush=True)
"""


def test_processes_share_the_memory_of_a_card(libraries: Stubs, tmp_path: Path) -> None:
    book = tmp_path / "card"
    command = [sys.executable, "-c", _TAKE, str(libraries.device), str(libraries.cudart)]
    environment = os.environ | {
        "ALLOCSIM_PHANTOM_MEMORY": str(1000 * MIB),
        "ALLOCSIM_PHANTOM_CONTEXT": str(100 * MIB),
        "ALLOCSIM_PHANTOM_SHARED": str(book),
    }
    first, second = (
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    )

    def take(process: subprocess.Popen[str], mebibytes: int) -> bool:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{mebibytes}\n")
        process.stdin.flush()
        return int(process.stdout.readline()) == SUCCESS

    def used() -> list[int]:
        """Return the MiB in use, and the most that were in use."""
        return [size // MIB for size in struct.unpack("QQ", book.read_bytes())]

    assert take(first, 500)
    assert used() == [600, 600]
    assert not take(second, 302)  # the second context takes 100 MiB as well
    assert take(second, 300)
    assert used() == [1000, 1000]
    assert not take(first, 2)
    first.communicate()
    assert used() == [400, 1000]
    assert take(second, 600)
    second.communicate()
    assert used() == [0, 1000]


_MORE_THAN_THE_MACHINE = """
import ctypes, os
c = ctypes.CDLL(None)
c.free.argtypes = [ctypes.c_void_p]
size = ctypes.c_size_t(4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
first, second = ctypes.c_void_p(), ctypes.c_void_p()
codes = [c.posix_memalign(ctypes.byref(each), 64, size) for each in (first, second)]
ctypes.memset(first.value + size.value - 1, 7, 1)
c.free(first)
c.free(second)
print(*codes, "freed" if not open("/proc/self/maps").read().count(f"{first.value:x}-") else "kept")
"""


def test_posix_memalign_returns_more_than_the_memory_of_the_machine(libraries: Stubs) -> None:
    """A tensor as large as the KV cache of vLLM, which reads only its strides."""
    command = [sys.executable, "-c", _MORE_THAN_THE_MACHINE]
    environment = {**os.environ, "LD_PRELOAD": str(libraries.device)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "freed"]
