"""NULL and nonsense to every hook: the answer is the driver's own, and nothing is charged."""

import re

import hook_table
from shim_room import ask_bare

CALLS = """
calls = {
    "cuInit": lambda: cuda.cuInit(UINT(1)),
    "cuGetProcAddress": lambda: cuda.cuGetProcAddress(None, None, 12000, U64(0)),
    "cuGetProcAddress_v2": lambda: cuda.cuGetProcAddress_v2(None, None, 12000, U64(0), None),
    "cuMemAlloc_v2": lambda: cuda.cuMemAlloc_v2(None, SIZE(512)),
    "cuMemAllocPitch_v2": lambda: [
        cuda.cuMemAllocPitch_v2(None, byref(SIZE()), SIZE(64), SIZE(64), UINT(4)),
        cuda.cuMemAllocPitch_v2(byref(U64()), None, SIZE(64), SIZE(64), UINT(4)),
        cuda.cuMemAllocPitch_v2(byref(U64()), byref(SIZE()), SIZE(0), SIZE(64), UINT(4)),
        cuda.cuMemAllocPitch_v2(byref(U64()), byref(SIZE()), SIZE(64), SIZE(0), UINT(4)),
        cuda.cuMemAllocPitch_v2(byref(U64()), byref(SIZE()), SIZE(64), SIZE(64), UINT(3))],
    "cuMemAllocManaged": lambda: [
        cuda.cuMemAllocManaged(None, SIZE(512), UINT(1)),
        cuda.cuMemAllocManaged(byref(U64()), SIZE(512), UINT(77))],
    "cuMemFree_v2": lambda: cuda.cuMemFree_v2(U64(1)),
    "cuMemAllocAsync": lambda: cuda.cuMemAllocAsync(None, SIZE(512), None),
    "cuMemAllocAsync_ptsz": lambda: cuda.cuMemAllocAsync_ptsz(None, SIZE(512), None),
    "cuMemFreeAsync": lambda: cuda.cuMemFreeAsync(U64(1), None),
    "cuMemFreeAsync_ptsz": lambda: cuda.cuMemFreeAsync_ptsz(U64(1), None),
    "cuCtxCreate": lambda: cuda.cuCtxCreate(None, UINT(0), 0),
    "cuCtxCreate_v2": lambda: [
        cuda.cuCtxCreate_v2(None, UINT(0), 0), cuda.cuCtxCreate_v2(byref(P()), UINT(0), 99)],
    "cuCtxCreate_v3": lambda: cuda.cuCtxCreate_v3(None, None, 0, UINT(0), 0),
    "cuCtxCreate_v4": lambda: cuda.cuCtxCreate_v4(None, None, UINT(0), 0),
    "cuCtxDestroy": lambda: cuda.cuCtxDestroy(None),
    "cuCtxDestroy_v2": lambda: cuda.cuCtxDestroy_v2(None),
    "cuCtxDetach": lambda: cuda.cuCtxDetach(None),
    "cuDevicePrimaryCtxRetain": lambda: cuda.cuDevicePrimaryCtxRetain(None, 0),
    "cuDevicePrimaryCtxRelease": lambda: cuda.cuDevicePrimaryCtxRelease(99),
    "cuDevicePrimaryCtxRelease_v2": lambda: cuda.cuDevicePrimaryCtxRelease_v2(99),
    "cuDevicePrimaryCtxReset": lambda: cuda.cuDevicePrimaryCtxReset(99),
    "cuDevicePrimaryCtxReset_v2": lambda: cuda.cuDevicePrimaryCtxReset_v2(99),
    "cuMemGetInfo_v2": lambda: [
        cuda.cuMemGetInfo_v2(None, None), cuda.cuMemGetInfo_v2(byref(SIZE()), None),
        cuda.cuMemGetInfo_v2(None, byref(SIZE()))],
    "cuDeviceTotalMem_v2": lambda: [
        cuda.cuDeviceTotalMem_v2(None, 0), cuda.cuDeviceTotalMem_v2(byref(SIZE()), 99)],
}
"""

NVML_CALLS = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Versioned(ctypes.Structure):
    _fields_ = [("version", UINT), ("rest", UINT * 64)]
handle = P()
calls = {
    "nvmlInit": lambda: nvml.nvmlInit(),
    "nvmlInit_v2": lambda: nvml.nvmlInit_v2(),
    "nvmlInitWithFlags": lambda: nvml.nvmlInitWithFlags(UINT(0)),
    "nvmlDeviceGetCount": lambda: nvml.nvmlDeviceGetCount(None),
    "nvmlDeviceGetCount_v2": lambda: nvml.nvmlDeviceGetCount_v2(None),
    "nvmlDeviceGetHandleByIndex": lambda: nvml.nvmlDeviceGetHandleByIndex(UINT(0), None),
    "nvmlDeviceGetHandleByIndex_v2": lambda: [
        nvml.nvmlDeviceGetHandleByIndex_v2(UINT(0), None),
        nvml.nvmlDeviceGetHandleByIndex_v2(UINT(99), byref(P()))],
    "nvmlDeviceGetHandleBySerial": lambda: nvml.nvmlDeviceGetHandleBySerial(None, byref(P())),
    "nvmlDeviceGetHandleByUUID": lambda: [
        nvml.nvmlDeviceGetHandleByUUID(None, byref(P())),
        nvml.nvmlDeviceGetHandleByUUID(b"GPU-nobody", byref(P()))],
    "nvmlDeviceGetHandleByUUIDV": lambda: nvml.nvmlDeviceGetHandleByUUIDV(None, byref(P())),
    "nvmlDeviceGetHandleByPciBusId": lambda: nvml.nvmlDeviceGetHandleByPciBusId(None, byref(P())),
    "nvmlDeviceGetHandleByPciBusId_v2": lambda: [
        nvml.nvmlDeviceGetHandleByPciBusId_v2(None, byref(P())),
        nvml.nvmlDeviceGetHandleByPciBusId_v2(b"ffff:ff:1f.0", byref(P()))],
    "nvmlDeviceGetIndex": lambda: [
        nvml.nvmlDeviceGetIndex(None, byref(UINT())), nvml.nvmlDeviceGetIndex(handle, None)],
    "nvmlDeviceGetMemoryInfo": lambda: [
        nvml.nvmlDeviceGetMemoryInfo(None, byref(Versioned())),
        nvml.nvmlDeviceGetMemoryInfo(handle, None)],
    "nvmlDeviceGetMemoryInfo_v2": lambda: [
        nvml.nvmlDeviceGetMemoryInfo_v2(handle, None),
        nvml.nvmlDeviceGetMemoryInfo_v2(handle, byref(Versioned(1))),
        nvml.nvmlDeviceGetMemoryInfo_v2(None, byref(Versioned(0x02000028)))],
    "nvmlShutdown": lambda: [nvml.nvmlShutdown() for _ in range(6)],
}
"""

AROUND = """
before = {name: call() for name, call in calls.items()}
"""


def called(source):
    return set(re.findall(r'^    "(\w+)":', source, re.MULTILINE))


def test_every_hook_is_called_with_nonsense_here():
    assert called(CALLS) == {hook.symbol for hook in hook_table.cuda()}
    assert called(NVML_CALLS) == set(hook_table.nvml())


def test_nonsense_before_cuInit_gets_the_drivers_answers(room, machine):
    source = CALLS + "answer({name: call() for name, call in calls.items() if name != 'cuInit'})"
    assert room.ask(source) == ask_bare(machine, source)


def test_nonsense_gets_the_drivers_answers(room, machine):
    source = CALLS + "context(); answer({name: call() for name, call in calls.items()})"
    assert room.ask(source) == ask_bare(machine, source)
    source = (
        CALLS + "context(); was = available(); [c() for c in calls.values()]; "
        "answer(was - available())"
    )
    assert room.ask(source) == 0


def test_nonsense_to_nvml_gets_the_drivers_answers(room, machine):
    open_first = """
check(nvml.nvmlInit_v2())
check(nvml.nvmlDeviceGetHandleByIndex_v2(UINT(0), byref(handle)))
"""
    closed = "del calls['nvmlInit'], calls['nvmlInit_v2'], calls['nvmlInitWithFlags']\n"
    end = "answer({name: call() for name, call in calls.items()})"
    for source in (NVML_CALLS + open_first + end, NVML_CALLS + closed + end):
        assert room.ask(source) == ask_bare(machine, source)
