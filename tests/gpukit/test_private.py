"""A record contains no names of hosts and users, whatever a stage records."""

import os
import re
import socket

import pytest
from kit import private, record
from kit.stages import facts

SECRET = """
import os, pathlib, socket
def run(report):
    home = os.environ["HOME"]
    report.fact("library", f"{home}/lib/libcuda.so.1")
    report.fact("lists", [f"on {socket.gethostname()}", {"deep": "by carla-user"}])
    report.guarantee("kept", True, f"File '/home/other/x.py', carla-user@{socket.gethostname()}")
    report.missing("torch", "/home/carla-user/.venv: no such file")
    report.figure("found", 7, "bytes")
"""


def is_word(name, text):
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def test_names_in_stage_records_are_replaced(kit, simulated, tmp_path):
    options, environment = simulated
    kit.put(tells=(60, 1, SECRET))
    home = tmp_path / "carla-user"
    home.mkdir()
    done = kit.run(*options, **environment, USER="carla-user", HOME=str(home))
    assert done.returncode == 0
    text = (kit.out / "record.json").read_text()
    assert "carla-user" not in text
    assert "other" not in text
    assert not is_word(socket.gethostname(), text)
    stage = record.read(kit.out / "record.json")["stages"]["tells"]
    assert stage["facts"][0] == {"name": "library", "value": "~/lib/libcuda.so.1"}
    assert stage["facts"][1]["value"] == ["on HOST", {"deep": "by USER"}]
    assert stage["guarantees"][0]["detail"] == "File '/home/USER/x.py', USER@HOST"
    assert stage["figures"][0]["value"] == 7


def test_a_simulated_machine_is_named_without_its_folder():
    assert record.new("1", "now", "/home/carla/like.machine")["simulated"] == "like.machine"


@pytest.fixture
def named(monkeypatch):
    """Pretend to be this user on this host."""
    monkeypatch.setattr(private, "names", lambda: {"carla": "USER", "gpu-7": "HOST"})
    private._pattern.cache_clear()
    yield
    private._pattern.cache_clear()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("carla@gpu-7", "USER@HOST"),
        ("libcarla.so, carlason and gpu-70", "libcarla.so, carlason and gpu-70"),
        ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib64"),
        ("/home/else/lib", "/home/USER/lib"),
        ("H100, GPU-12345678-abcd-1234-1234-123456789012", "H100, GPU-UUID"),
    ],
)
def test_other_words_stay(named, text, kept):
    assert private.clean(text) == kept


def test_short_and_common_names_are_not_looked_for(monkeypatch):
    monkeypatch.setenv("USER", "root")
    monkeypatch.setenv("LOGNAME", "m")
    assert not {"root", "m", ""} & set(private.names())


SMI = """\
Timestamp                                 : Mon Nov 23 10:00:00 2026
GPU 00000000:0F:00.0
    Product Name                          : NVIDIA H200
    Serial Number                         : 1654123456789
    GPU UUID                              : GPU-12345678-1234-1234-1234-123456789012
    Compute Mode                          : Default
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Name                          : /opt/secret/train
    Capabilities
        EGM                               : disabled
"""


def test_nvidia_smi_output_about_others_is_left_out():
    kept = facts.anonymous(SMI)
    for word in ("Product Name", "Compute Mode", "EGM"):
        assert word in kept
    for word in ("1654123456789", "GPU-1234", "secret", "4711"):
        assert word not in kept


def test_a_real_stage_names_neither_host_nor_user(kit, simulated, tmp_path):
    options, environment = simulated
    program = tmp_path / "carla-user" / "bin" / "nvitop"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    kit.run("--only", "facts", *options, **environment, USER="carla-user", PATH=path)
    text = (kit.out / "record.json").read_text()
    assert "/USER/bin/nvitop" in text
    for name in ("carla-user", socket.gethostname()):
        assert not is_word(name, text)
