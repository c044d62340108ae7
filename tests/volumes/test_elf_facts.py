import os
import subprocess
import sys

import pytest
from installed import installation_of

from pyvgpu.volumes import elf, elf_facts, mirror_store, node_mirror

AGO = 1_700_000_000  # seconds since the epoch; files this old count as unchanged
WITHOUT_PARSER = """
import pathlib, sys
sys.modules["elftools"] = None
from pyvgpu.volumes import elf_facts, mirror_store
with mirror_store.Store(pathlib.Path(sys.argv[1]), "").remembering():
    for path in sys.argv[2:]:
        print(elf_facts.read(pathlib.Path(path)).soname)
"""


@pytest.fixture
def library(libraries, tmp_path):
    """Return a function that copies a library with an old modification time."""

    def put(soname):
        path = tmp_path / soname
        path.write_bytes((libraries / soname).read_bytes())
        os.utime(path, (AGO, AGO))
        return path

    return put


@pytest.fixture
def kept(tmp_path):
    """A folder of trees, with one in it."""
    folder = tmp_path / "kept"
    (folder / "580.1-0123456789abcdef").mkdir(parents=True)
    return mirror_store.Store(folder, "")


def read_without_a_parser(folder, *paths):
    command = [sys.executable, "-c", WITHOUT_PARSER, folder, *paths]
    return subprocess.run(command, capture_output=True, text=True)


def damage(path, when=AGO):
    """Overwrite *path* but keep its size and, by default, its time."""
    with path.open("r+b") as file:
        file.write(b"none")
    os.utime(path, (when, when))


def test_file_is_read_once(library):
    path = library("libcuda.so.1")
    found = elf_facts.read(path)
    assert found == elf.read_elf(path)
    damage(path)
    assert elf_facts.read(path) == found


def test_file_that_was_written_to_is_read_again(library):
    path = library("libcuda.so.1")
    elf_facts.read(path)
    damage(path, AGO + 1)
    with pytest.raises(elf.ElfError, match="not an ELF library"):
        elf_facts.read(path)


def test_file_that_may_still_be_written_to_is_read_each_time(library):
    path = library("libcuda.so.1")
    path.touch()
    when = path.stat().st_mtime_ns
    elf_facts.read(path)
    damage(path)
    os.utime(path, ns=(when, when))
    with pytest.raises(elf.ElfError, match="not an ELF library"):
        elf_facts.read(path)


def test_next_process_needs_no_parser(library, kept):
    paths = [library("libcuda.so.1"), library("libnvidia-ml.so.1")]
    with kept.remembering():
        for path in paths:
            elf_facts.read(path)
    done = read_without_a_parser(kept.folder, *paths)
    assert (done.stdout.split(), done.stderr) == (["libcuda.so.1", "libnvidia-ml.so.1"], "")
    done = read_without_a_parser(kept.folder, *paths, library("libcuda-control.so"))
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.slow
def test_unused_facts_are_forgotten(library, kept):
    script = (
        "import pathlib, sys; from pyvgpu.volumes import elf_facts, mirror_store\n"
        "with mirror_store.Store(pathlib.Path(sys.argv[1]), '').remembering():\n"
        "    elf_facts.read(pathlib.Path(sys.argv[2]))"
    )
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run(
            [sys.executable, "-c", script, kept.folder, library(name)], check=True, timeout=60
        )
    assert (kept.folder / "facts.json").read_text().count('"soname"') == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"layout": 2, "files": []}',
        b'{"layout": 1, "files": [[1, 2]]}',
        b'{"layout": 1, "files": [[1, 2, 3, 4, {"bits": 64}]]}',
        b'{"layout": 1, "files": [[1, "x", 3, 4, {}]]}',
        b'{"layout": 1, "files": 7}',
        b"[" * 100_000,
    ],
)
def test_invalid_facts_are_read_again_and_rewritten(library, kept, text):
    (kept.folder / "facts.json").write_bytes(text)
    with kept.remembering():
        elf_facts.read(library("libcuda.so.1"))
    assert b"libcuda.so.1" in (kept.folder / "facts.json").read_bytes()


def test_folder_without_a_tree_gets_no_file(library, tmp_path):
    with mirror_store.Store(tmp_path / "none", "").remembering():
        elf_facts.read(library("libcuda.so.1"))
    assert not (tmp_path / "none").exists()


def test_node_is_mirrored_again_without_a_parser(driver_folder, shim, tmp_path):
    for path in driver_folder.path.iterdir():
        os.utime(path, (AGO, AGO))
    mirrored = node_mirror.NodeMirror(tmp_path / "output", shim)
    with mirrored.remembering():
        made = mirrored.mirror(installation_of(driver_folder.path))
    libraries = [path for path in driver_folder.path.iterdir() if not path.is_symlink()]
    done = read_without_a_parser(mirrored.output, *libraries)
    assert (len(done.stdout.split()), done.stderr) == (len(libraries), "")
    assert made.driver == "present"
