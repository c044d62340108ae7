"""Unusual programs (broken pipes, profilers, polling, corrupt files): none is killed or hangs."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from shim_room import GIB, MIB, PRELUDE

from pyvgpu import names, region
from pyvgpu.share import Share


def test_log_line_to_a_broken_pipe_does_not_end_the_program(room):
    (room.folder / names.USAGE_FILE).unlink()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
            + PRELUDE
            + "os._exit(0 if cuda.cuInit(0) == 800 else 1)",
        ],
        env=room.environment(),
        stderr=writer,
        timeout=60,
    )
    os.close(writer)
    assert done.returncode == 0


def test_repeated_queries_take_no_memory(room):
    region.update(room.quota, "1.2.3", [Share(room.devices[0], 100, GIB)])
    answer, lines = room.complain("""
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def mappings():
    return sum("/region/" in line for line in open("/proc/self/maps"))
results = {nvml.nvmlInit_v2() for _ in range(100)} | {cuda.cuInit(0) for _ in range(100)}
answer([sorted(results), mappings()])
""")
    assert answer == [[4, 800], 2]
    assert len(lines) == 1
    assert "1.2.3" in lines[0]


def test_cuInit_called_from_within_cuInit_is_answered(room, tmp_path):
    library = tmp_path / "nested.so"
    source = Path(__file__).parent / "nested.c"
    command = ["cc", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    answer = room.ask(
        "context(); answer([alloc(64 * MIB)[0], available()])", env={"LD_PRELOAD": str(library)}
    )
    assert answer == [0, 2 * GIB - room.reserve - 64 * MIB]


@pytest.mark.slow
def test_child_forked_while_a_thread_starts_NVML_is_not_hung(room):
    answer = room.ask("""
import signal
nvml = ctypes.CDLL("libnvidia-ml.so.1")
stop = threading.Event()
def work():
    while not stop.is_set():
        nvml.nvmlInit_v2()
        nvml.nvmlShutdown()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
ends = []
for _ in range(300):
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        os._exit(nvml.nvmlInit_v2())
    ends.append(os.waitpid(child, 0)[1])
    if ends[-1]:
        break
stop.set()
for thread in threads: thread.join()
answer(sorted(set(ends)))
""")
    assert answer == [0]


def test_tenant_that_corrupts_the_usage_file_ends_no_other_program(room):
    """It may disable or lose its own ledger, which the node side detects; it ends no program."""
    with room.start(
        """
context()
answer("in")
while not os.path.exists(sys.argv[1]):
    result, pointer = alloc(MIB)
    if result == 0:
        free(pointer)
    info()
answer("out")
""",
        room.folder.parent / "stop",
    ) as program:
        assert program.stdout.readline() == '"in"\n'
        usage = room.folder / names.USAGE_FILE
        choice = random.Random(1)
        with usage.open("r+b") as file:
            for content in [b"\xff", b"\x00", *(choice.randbytes(1) for _ in range(20))]:
                file.seek(32)
                file.write(content * (usage.stat().st_size - 32))
                file.flush()
            for _ in range(20):
                file.seek(32)
                file.write(choice.randbytes(usage.stat().st_size - 32))
                file.flush()
        (room.folder.parent / "stop").touch()
        assert program.stdout.readline() == '"out"\n'
        program.communicate(timeout=60)
    assert program.returncode == 0
