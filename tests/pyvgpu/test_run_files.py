import fcntl
import os

import pytest

from pyvgpu import errors, names
from pyvgpu.machine import reservations
from pyvgpu.run import run_files


@pytest.fixture
def source(tmp_path):
    """Return a folder like a mirror: the shim under four names, a driver of three files."""
    lib64, origin = tmp_path / "mirror" / "lib64", tmp_path / "mirror" / "origin"
    lib64.mkdir(parents=True)
    origin.mkdir()
    (lib64 / names.LIBCUDA).write_bytes(b"shim")
    for name in names.SHIM_NAMES[1:]:
        (lib64 / name).hardlink_to(lib64 / names.LIBCUDA)
    for name in ("libcuda.so.1.0", "libnvidia-ml.so.1.0", "libnvidia-nvvm.so.1.0"):
        (origin / name).write_text(name)
    (lib64 / "libnvidia-nvvm.so.4").symlink_to(origin / "libnvidia-nvvm.so.1.0")
    (origin / names.LIBCUDA_ORIGIN).symlink_to("libcuda.so.1.0")
    (origin / names.LIBNVIDIA_ML_ORIGIN).symlink_to("libnvidia-ml.so.1.0")
    return run_files.RunSource(lib64, origin)


@pytest.fixture
def registries(tmp_path):
    return reservations.Registries(tmp_path / "root", tmp_path / "all")


def test_tree_has_one_shim_the_drivers_files_and_the_region(tmp_path, source):
    made, lock = run_files.make(
        tmp_path / "cache", "0" * 16, source, tmp_path / "registry" / "run"
    )
    os.close(lock)
    inodes = {(made / "lib64" / name).stat().st_ino for name in names.SHIM_NAMES}
    assert inodes == {(source.lib64 / names.LIBCUDA).stat().st_ino}
    assert not any((made / "lib64" / name).is_symlink() for name in names.SHIM_NAMES)
    assert (made / "lib64" / "libnvidia-nvvm.so.4").read_text() == "libnvidia-nvvm.so.1.0"
    assert (made / "origin" / names.LIBCUDA_ORIGIN).read_text() == "libcuda.so.1.0"
    assert (made / "region").readlink() == tmp_path / "registry" / "run"


def test_simulated_machine_is_beside_the_driver_and_in_the_layer(tmp_path, source):
    machine = tmp_path / "machine"
    source = run_files.RunSource(source.lib64, source.origin, machine)
    made, lock = run_files.make(tmp_path / "cache", "0" * 16, source, tmp_path)
    os.close(lock)
    layer = run_files.make_layer(made, "layer", source, ["libcuda.so.1.0"])
    assert (made / "origin" / names.SIMULATED_MACHINE).readlink() == machine
    assert (layer / names.SIMULATED_MACHINE).readlink() == machine
    assert (layer / "libcuda.so.1.0").resolve() == made / "lib64" / names.LIBCUDA
    assert (layer / names.LIBNVIDIA_ML_ORIGIN).read_text() == "libnvidia-ml.so.1.0"


def test_failure_leaves_no_partial_tree(tmp_path, source):
    (source.lib64 / names.LIBCUDA).unlink()
    with pytest.raises(errors.UnavailableError, match="the run's libraries cannot be created"):
        run_files.make(tmp_path / "cache", "0" * 16, source, tmp_path)
    assert list((tmp_path / "cache" / run_files.RUNS).iterdir()) == []


def test_sweep_removes_dead_trees_and_follows_no_link(tmp_path, source, registries):
    cache = tmp_path / "cache"
    dead, lock = run_files.make(cache, "1" * 16, source, tmp_path)
    os.close(lock)
    run_files.sweep(cache, registries)
    assert not dead.exists()
    assert (source.origin / "libcuda.so.1.0").exists()
    assert tmp_path.exists()


def test_sweep_leaves_a_tree_that_another_machine_uses(tmp_path, source, registries):
    cache = tmp_path / "cache"
    made, lock = run_files.make(cache, "1" * 16, source, tmp_path)
    run_files.sweep(cache, registries)
    assert made.exists()
    fcntl.flock(lock, fcntl.LOCK_UN)
    run_files.sweep(cache, registries)
    assert not made.exists()
    os.close(lock)


def test_cache_is_the_first_usable_folder(tmp_path):
    both = {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    assert run_files.find_cache(both) == tmp_path / "xdg" / "pyvgpu"
    assert run_files.find_cache({"HOME": both["HOME"]}) == tmp_path / "home" / ".cache" / "pyvgpu"
    assert str(run_files.find_cache({"XDG_CACHE_HOME": "relative"})).startswith("/var/tmp/pyvgpu-")


@pytest.mark.parametrize("spoil", ["file", "link", "open to all"])
def test_unsafe_folder_is_skipped(tmp_path, spoil):
    folder = tmp_path / "pyvgpu"
    if spoil == "file":
        folder.touch()
    elif spoil == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    found = run_files.find_cache({"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path / "home")})
    assert found == tmp_path / "home" / ".cache" / "pyvgpu"


@pytest.mark.parametrize("name", ["a:b", "a;b", "a$LIB"])
def test_cache_that_a_library_path_cannot_name_is_skipped(tmp_path, name):
    found = run_files.find_cache({"XDG_CACHE_HOME": str(tmp_path / name), "HOME": str(tmp_path)})
    assert found == tmp_path / ".cache" / "pyvgpu"
    assert not (tmp_path / name).exists()
