"""The compiled program of the fast-exit image."""

import json
import os
import platform
import shutil
import subprocess

import pytest
import rights
from elftools.elf import elffile
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu import shim

PRINTF = shutil.which("printf")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    """The program under the name that makes it launch others."""
    folder = tmp_path_factory.mktemp("launcher")
    done = subprocess.run(
        ["pyvgpu-launch", "-i", folder / "pyvgpu-launch"], executable=shim.fast_exit_program()
    )
    assert done.returncode == 0
    return folder / "pyvgpu-launch"


def launch(launcher, text, **options):
    file = launcher.with_name("argv")
    file.write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
    return subprocess.run([launcher, file], capture_output=True, timeout=30, **options)


@pytest.mark.parametrize(
    "argv",
    [
        ["/pyvgpu-exit"],
        ["/bin/sh", "-c", "exit 3"],
        ["sh", "x" * 100_000],
        [""],
        ["pyvgpu-launch"],
        ["xpyvgpu-launch", "x"],
    ],
)
def test_it_exits_0_whatever_its_arguments(argv):
    done = subprocess.run(
        argv, executable=shim.fast_exit_program(), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_it_is_static_and_for_this_architecture():
    with shim.fast_exit_program().open("rb") as file:
        program = elffile.ELFFile(file)
        kinds = {segment["p_type"] for segment in program.iter_segments()}
        assert not kinds & {"PT_INTERP", "PT_DYNAMIC"}
        machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[platform.machine()]
        assert program["e_machine"] == machine
    assert shim.fast_exit_program().stat().st_size < 64 * 1024


def test_it_copies_itself(launcher):
    assert launcher.read_bytes() == shim.fast_exit_program().read_bytes()
    assert os.access(launcher, os.X_OK)


@settings(max_examples=60)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5
    ),
    st.booleans(),
)
def test_argv_is_passed_byte_for_byte(launcher, arguments, ascii_only):
    written = json.dumps([PRINTF, "%s\\0", "first", *arguments], ensure_ascii=ascii_only)
    done = launch(launcher, written.encode())
    assert done.stdout == b"".join(word.encode() + b"\0" for word in ["first", *arguments])


def test_a_program_is_searched_for_in_path(launcher, tmp_path):
    program = tmp_path / "only-there"
    program.write_text("#!/bin/sh\nprintf '%s' \"$1 $WORD\"\n")
    program.chmod(0o755)
    environment = {"PATH": f"/nowhere::{tmp_path}", "WORD": "kept"}
    assert launch(launcher, ["only-there", "argument"], env=environment).stdout == b"argument kept"
    assert launch(launcher, ["only-there"]).returncode == 127
    assert launch(launcher, ["sh", "-c", "exit 5"], env={}).returncode == 5


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (b"", 125, b"not a JSON array of strings"),
        (b"{}", 125, b"not a JSON array of strings"),
        (b'["' + b"x" * 600_000 + b'"]', 125, b"too large"),
        (["/nowhere/program"], 127, b"no such program: /nowhere/program"),
        ([""], 127, b"no such program"),
        (["/etc/passwd"], 126, b"cannot be started: /etc/passwd"),
    ],
)
def test_errors_are_one_line_with_a_shells_exit_codes(launcher, text, code, said):
    done = launch(launcher, text)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_missing_file_is_reported(launcher):
    done = subprocess.run([launcher, "/nowhere/argv"], capture_output=True)
    assert (done.returncode, done.stderr) == (125, b"pyvgpu-launch: cannot open /nowhere/argv\n")


@rights.needs_user_namespace
def test_in_the_fast_exit_image_it_exits_0_even_as_a_launcher(launcher, tmp_path):
    """After an image swap the argv file may still be the old one."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("pyvgpu-exit", "pyvgpu-launch"):
        shutil.copy(shim.fast_exit_program(), root / name)
    (root / "argv").write_text('["/nowhere"]')
    inside = ["unshare", "--user", "--map-root-user", "chroot", root, "/pyvgpu-launch", "/argv"]
    assert subprocess.run(inside).returncode == 0
    (root / "pyvgpu-exit").unlink()
    assert subprocess.run(inside, capture_output=True).returncode == 127
