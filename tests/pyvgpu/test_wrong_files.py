"""Every command that reads or writes a file of the user's names it, and says what is wrong."""

import errno
import os

import pytest

from pyvgpu import cli, errors

POD = """apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: c, resources: {limits: {pyvgpu.io/vcore: 30}}}]}
"""


def missing(folder):
    return folder / "missing"


def a_folder(folder):
    (folder / "folder").mkdir()
    return folder / "folder"


def binary(folder):
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    return folder / "binary"


def below_a_file(folder):
    (folder / "file").touch()
    return folder / "file" / "inside"


def too_long(folder):
    return folder / ("x" * 300)


def a_loop(folder):
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


WRONG = [missing, a_folder, binary, below_a_file, too_long, a_loop]
READS = {
    "simulate-schedule": ("simulate-schedule", "FILE"),
    "--cluster": ("simulate-schedule", "POD", "--cluster", "FILE"),
    "calibrate": ("calibrate", "FILE"),
    "replay": ("replay", "FILE"),
    "--beside": ("replay", "FILE", "--vcore", "50", "--beside", "FILE", "--vcore", "50"),
    "--simulate": ("run", "--simulate", "FILE", "--", "true"),
    "--log": ("support-bundle", "--no-cluster", "--output", "OUT", "--log", "FILE"),
    "--kubeconfig": ("explain", "pod", "--kubeconfig", "FILE"),
    "--config": ("sidecar-controller", "--config", "FILE"),
    "--image-rules": ("webhook", "--image-rules", "FILE"),
    "--include": ("slurm-plugin", "--include", "FILE"),
    "--volume-config": ("mirror", "--dry-run", "--volume-config", "FILE"),
}
WRITES = {
    "--report": ("demo", "--seconds", "5", "--report", "FILE"),
    "--output": ("support-bundle", "--no-cluster", "--output", "FILE"),
    "slurm-plugin": ("slurm-plugin", "--output", "FILE"),
}


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PYVGPU_SIMULATED_MACHINES", str(tmp_path / "machines"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def call(arguments, file, folder, capsys):
    """Call a command that must fail; return its exit code and its only line."""
    (folder / "pod.yaml").write_text(POD)
    words = {"FILE": file, "POD": folder / "pod.yaml", "OUT": folder / "out.tar.gz"}
    code = cli.main([str(words.get(word, word)) for word in arguments])
    said = capsys.readouterr().err
    assert said.startswith("pyvgpu: ")
    assert said.count("\n") == 1, said
    assert "[Errno" not in said
    assert "codec" not in said
    return code, said


@pytest.mark.parametrize(
    ("option", "make"),
    # A log may have any content.
    [(option, make) for option in READS for make in WRONG if (option, make) != ("--log", binary)],
)
def test_file_that_cannot_be_read_is_named(option, make, tmp_path, capsys):
    file = make(tmp_path)
    code, said = call(READS[option], file, tmp_path, capsys)
    assert code in (64, 65, 69, 77)
    assert file.name[:30] in said


@pytest.mark.parametrize("make", [below_a_file, too_long, a_loop])
@pytest.mark.parametrize("option", WRITES)
def test_file_that_cannot_be_written_is_named(option, make, tmp_path, capsys):
    file = make(tmp_path)
    code, said = call(WRITES[option], file, tmp_path, capsys)
    assert code in (64, 69, 74, 77)
    assert file.name[:30] in said


@pytest.mark.parametrize("make", [below_a_file, too_long, a_loop])
def test_missing_driver_is_reported_for_any_folder_of_a_mirror(make, tmp_path, capsys):
    arguments = ("mirror", "--driver-root", tmp_path, "--output", "FILE")
    code, said = call(arguments, make(tmp_path), tmp_path, capsys)
    assert code == 69
    assert str(tmp_path) in said


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "x"), "no such file or"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "is not text in UTF-8"),
        (ValueError("line 1\n  column 2"), "line 1 column 2"),
    ],
)
def test_reason_has_no_number_and_one_line(exc, reason):
    assert errors.reason_of(exc).startswith(reason)
