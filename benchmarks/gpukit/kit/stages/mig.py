"""MIG of every GPU, read only: mode, profiles and their places, MIG devices, a quota on one.

It changes no mode, and creates and destroys no instance.
"""

import dataclasses
import os
import pathlib

import pynvml

from kit import cuda, shimmed
from pyvgpu import errors, nvml
from pyvgpu.allocator import datatypes
from pyvgpu.calibration import machine_values
from pyvgpu.deviceplugin.containers import gpu_instances
from pyvgpu.simulation import mig
from pyvgpu.volumes import capabilities

LIBRARY = pathlib.Path("libnvidia-ml.so.1")
MIB = 1 << 20
QUOTA = 2 << 30  # less than the smallest MIG device has
OUT_OF_MEMORY = 2
MODES = {0: "off", 1: "on"}

PROGRAM = f"""
import ctypes, json
from kit import cuda, watch
device, seen = cuda.Device(), watch.Watch()
name, size, count = ctypes.create_string_buffer(128), cuda.SIZE(), cuda.UINT()
device.cuda.cuDeviceGetName(name, 128, 0)
device.cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0)
seen.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
def take(bytes):
    return device.cuda.raw.cuMemAlloc_v2(ctypes.byref(cuda.U64()), cuda.SIZE(bytes))
print(json.dumps({{
    "name": name.value.decode(), "processors": device.sms, "cuMemGetInfo": device.memory()[1],
    "cuDeviceTotalMem": size.value, "NVML": cuda.nvml_memory(seen.nvml, seen.handle).total,
    "devices of NVML": count.value, "half": take({QUOTA // 2}),
    "as much again": take({QUOTA // 2}),
}}))
"""


def run(report):
    found = []
    with nvml.session(LIBRARY):
        for index in range(pynvml.nvmlDeviceGetCount()):
            found += probe(report, f"GPU {index}", pynvml.nvmlDeviceGetHandleByIndex(index))
    if found:
        with_quota(report, found[0])
    else:
        report.missing("quota on a MIG device", "there is no MIG device")


def attempt(report, name, call):
    """Return what *call* returns; None, and report why, if NVML or the driver refuses."""
    try:
        return call()
    except (pynvml.NVMLError, errors.PyVgpuError) as exc:
        report.missing(name, exc)
        return None


def probe(report, gpu, handle):
    """Report what a GPU can be divided into, and is; return the UUIDs of its MIG devices."""
    name = pynvml.nvmlDeviceGetName(handle)
    report.fact(f"{gpu}: name", name)
    modes = attempt(report, f"{gpu}: MIG", lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if modes is None:
        return []
    for title, mode in zip(("MIG mode", "MIG mode, pending"), modes, strict=True):
        report.fact(f"{gpu}: {title}", MODES.get(mode, str(mode)))
    kinds = attempt(report, f"{gpu}: profiles", lambda: gpu_instances.profiles(handle))
    if kinds:
        report.fact(f"{gpu}: profiles", [dataclasses.asdict(kind) for kind in kinds])
        memory = attempt(
            report, f"{gpu}: memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total
        )
        compare(report, gpu, machine_values.nearest(name, memory), kinds)
        instances = attempt(
            report, f"{gpu}: GPU instances", lambda: gpu_instances.listing(handle, kinds)
        )
        if instances is not None:
            report.fact(f"{gpu}: GPU instances", [each.place for each in instances])
    parts = attempt(report, f"{gpu}: MIG devices", lambda: list(nvml.mig_devices(handle))) or []
    report.figure(f"{gpu}: MIG devices", len(parts), "devices")
    for number, part in enumerate(parts):
        title = f"{gpu}, MIG device {number}"
        attempt(report, title, lambda t=title, p=part: show(report, t, handle, p))
    return [pynvml.nvmlDeviceGetUUID(part) for part in parts]


def compare(report, gpu, model, kinds):
    """Report how profiles differ from those of the simulated *model*, None if there is none."""
    assumed = assumed_profiles(model.key) if model else ()
    if assumed:
        different = differences(assumed, kinds)
        report.figure(
            f"{gpu}: differences from the simulator's profiles", len(different), "differences"
        )
        if different:
            report.fact(f"{gpu}: what differs from the simulator's profiles", different)
    else:
        report.missing(f"{gpu}: profiles of the simulator", "it has no MIG of this model")


def assumed_profiles(key):
    """Return what NVML should say of a model's profiles, by the simulator's table."""
    return tuple(
        datatypes.MigProfile(
            each.name, each.id, each.memory_mib * MIB, each.sms, each.slices, each.size, each.most,
            each.starts,
        )
        for each in mig.profiles(key)
    )  # fmt: skip


def differences(assumed, found):
    """Return a line for each difference of two lists of profiles."""
    assumed, found = ({each.name: each for each in table} for table in (assumed, found))
    lines = [f"{name}: only on the simulator" for name in assumed.keys() - found.keys()]
    lines += [f"{name}: not on the simulator" for name in found.keys() - assumed.keys()]
    for name in assumed.keys() & found.keys():
        here = dataclasses.asdict(found[name])
        lines += [
            f"{name}: {key}: {here[key]}, on the simulator {value}"
            for key, value in dataclasses.asdict(assumed[name]).items()
            if value != here[key]
        ]
    return sorted(lines)


def show(report, title, handle, part):
    """Report on a MIG device and the two nodes that a process needs for it."""
    attributes = pynvml.nvmlDeviceGetAttributes_v2(part)
    instance, compute = (
        nvml.number(ask(part))
        for ask in (pynvml.nvmlDeviceGetGpuInstanceId, pynvml.nvmlDeviceGetComputeInstanceId)
    )
    report.fact(title, {
        "name": pynvml.nvmlDeviceGetName(part), "GPU instance": instance,
        "compute instance": compute, "processors": attributes.multiprocessorCount,
        "MiB": attributes.memorySizeMB, "total": pynvml.nvmlDeviceGetMemoryInfo(part).total,
    })  # fmt: skip
    minor = pynvml.nvmlDeviceGetMinorNumber(handle)
    nodes = attempt(
        report, f"{title}: capability nodes",
        lambda: capabilities.of_instance(minor, instance, compute),
    )  # fmt: skip
    for node in nodes or ():
        path = pathlib.Path("/dev", node.name)
        state = "readable" if os.access(path, os.R_OK) else "not readable"
        report.fact(f"{title}: {path}", state if path.exists() else "does not exist")


def with_quota(report, uuid):
    """Run a program on a MIG device without and with a quota."""
    for variable in (cuda.DEVICE_VARIABLE, "CUDA_VISIBLE_DEVICES"):
        os.environ[variable] = uuid
    name, program = "a MIG device", shimmed.python(PROGRAM)
    bare = shimmed.answer(None, program)
    if isinstance(bare, str):
        report.missing(name, f"it does not run programs without a quota either: {bare}")
        return
    report.fact(f"{name}, without a quota", bare)
    limited = shimmed.answer(("--vmemory", f"{QUOTA >> 30}GiB"), program)
    if isinstance(limited, str):
        report.guarantee(f"{name}: works under a quota", False, limited)
        return
    report.fact(f"{name}, with a quota of {QUOTA}", limited)
    for title, kept, detail in evaluate(bare, limited):
        report.guarantee(f"{name}: {title}", kept, detail)


def evaluate(bare, limited):
    """Return (title, held, detail) for each guarantee about the program with a quota."""
    shown = [limited[key] for key in ("cuMemGetInfo", "cuDeviceTotalMem", "NVML")]
    whole = [[one[key] for key in ("name", "processors")] for one in (bare, limited)]
    return [
        ("the quota is shown as the device", shown == [QUOTA] * 3, f"{shown}, quota {QUOTA}"),
        ("NVML has one device", limited["devices of NVML"] == 1, limited["devices of NVML"]),
        ("name and processors are the same as without a quota", whole[0] == whole[1],
         f"{whole[1]} with a quota, {whole[0]} without"),
        ("half of the quota works under it", limited["half"] == 0, f"result {limited['half']}"),
        ("more is refused as out of memory", limited["as much again"] == OUT_OF_MEMORY,
         f"result {limited['as much again']}"),
    ]  # fmt: skip
