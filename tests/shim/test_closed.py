"""Fail closed: without a valid quota for this driver every call fails, and one line says why."""

import json
import os
import subprocess
import sys

import pytest
from shim_room import MIB, PRELUDE

from pyvgpu import names

TRY = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
answer([cuda.cuInit(0), cuda.cuInit(0), nvml.nvmlInit_v2(), alloc(4096)[0],
        cuda.cuCtxCreate_v2(byref(P()), UINT(0), 0),
        cuda.cuMemGetInfo_v2(byref(SIZE()), byref(SIZE()))])
"""
REFUSED = [800, 800, 4, 3, 3, 3]  # NOT_PERMITTED, NVML_ERROR_NO_PERMISSION, NOT_INITIALIZED


def rewrite(path, offset, content):
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    path.chmod(mode)


def cut(path, size):
    mode = path.stat().st_mode
    path.chmod(0o600)
    os.truncate(path, size)
    path.chmod(mode)


def damage_rows():
    quota, usage = names.QUOTA_FILE, names.USAGE_FILE
    rows = {
        "quota missing": (lambda f: (f / quota).unlink(), "No such file"),
        "usage missing": (lambda f: (f / usage).unlink(), "No such file"),
        "quota short": (lambda f: cut(f / quota, 100), "too short"),
        "usage short": (lambda f: cut(f / usage, 5000), "too short"),
        "quota empty": (lambda f: cut(f / quota, 0), "too short"),
        "quota of another version": (lambda f: rewrite(f / quota, 8, b"\x63"), "layout 99"),
        "quota with wrong magic": (lambda f: rewrite(f / quota, 0, b"nonsense"), "magic"),
        "usage with wrong magic": (lambda f: rewrite(f / usage, 0, b"nonsense"), "magic"),
        "limits raised by hand": (lambda f: rewrite(f / quota, 110, b"\xff\xff"), "checksum"),
        "quota writable": (lambda f: (f / quota).chmod(0o644), "0444"),
        "usage of another region": (lambda f: rewrite(f / usage, 16, b"other"), "belong"),
    }
    return [pytest.param(*row, id=name) for name, row in rows.items()]


@pytest.mark.parametrize(("damage", "said"), damage_rows())
def test_damaged_region_refuses_everything_with_one_line(room, damage, said):
    damage(room.folder)
    answer, lines = room.complain(TRY)
    assert answer == REFUSED
    assert len(lines) == 1
    assert lines[0].startswith("pyvgpu: CUDA and NVML are refused: ")
    assert said in lines[0]


def test_region_closes_with_its_supervisor(room):
    with room.start("""
context()
answer(alloc(64 * MIB)[0])
sys.stdin.readline()
answer(alloc(64 * MIB)[0])
""") as program:
        assert program.stdout.readline() == "0\n"
        room.close()
        answer, lines = room.complain("answer(cuda.cuInit(0))")
        assert answer == 800
        assert "has ended" in lines[0]
        output, _ = program.communicate("\n", timeout=30)
        assert output == "0\n"  # a program with a context continues within the quota


def test_quota_for_another_driver_is_refused(room):
    real = room.tree / "origin" / names.LIBCUDA_ORIGIN
    target = real.resolve()
    other = room.tree / "libcuda.so.998.7"
    other.write_bytes(target.read_bytes())
    real.unlink()
    real.symlink_to(other)
    answer, lines = room.complain("answer(cuda.cuInit(0))")
    assert answer == 800
    assert "'999.1'" in lines[0]
    assert "'998.7'" in lines[0]


def test_device_that_is_not_there_is_refused_by_the_driver(room, machine):
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace(machine.devices[0].uuid[:12], "GPU-deadbeef"))
    assert room.ask("answer([cuda.cuInit(0), alloc(4096)[0]])") == [100, 3]


def test_shim_without_a_tree_refuses(room, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "libcuda.so.1").hardlink_to(room.tree / "lib64" / "libcuda.so.1")
    (alone / "libnvidia-ml.so.1").hardlink_to(room.tree / "lib64" / "libcuda.so.1")
    for name in ("libcuda-origin.so.1", "libnvidia-ml-origin.so.1"):
        (alone / name).symlink_to((room.tree / "origin" / name).resolve())
    environment = {**room.environment(), "LD_LIBRARY_PATH": str(alone)}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + "answer(cuda.cuInit(0))"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == 800
    assert "region/quota" in done.stderr


@pytest.mark.parametrize(
    "forged",
    [
        {"CUDA_VISIBLE_DEVICES": "all"},
        {"PYVGPU_QUOTA": "1", "PYVGPU_REGION": "/tmp", "CUDA_DISABLE_CONTROL": "true"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "999g", "NVIDIA_VISIBLE_DEVICES": "all"},
    ],
)
def test_no_variable_lifts_a_limit(room, forged):
    answer = room.ask(
        """
if cuda.cuInit(0) == 0:
    context()
    answer([info()[1], alloc(3 * GIB)[0]])
else:
    answer([2 * GIB, 2])
""",
        env=forged,
    )
    assert answer == [2048 * MIB, 2]
