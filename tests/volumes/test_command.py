"""`pyvgpu mirror` on the command line."""

import json
import os
import signal
import subprocess
import sys

import pytest

MAIN = "import sys, pyvgpu.cli; sys.exit(pyvgpu.cli.main())"


@pytest.fixture
def root(tmp_path, driver_folder):
    """The root of a system with a driver in /usr/lib64."""
    (tmp_path / "root/usr").mkdir(parents=True)
    driver_folder.path.rename(tmp_path / "root/usr/lib64")
    return tmp_path / "root"


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output"


def command(*arguments):
    return [sys.executable, "-c", MAIN, "mirror", *map(str, arguments)]


def mirror(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True)


@pytest.mark.slow
def test_mirror_prints_the_path_of_the_mirror(root, output):
    done = mirror("--driver-root", root, "--output", output)
    current = (output / "current").resolve()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{current}: the mirror of driver 580.65.06"
    assert (current / "exclusive/lib64/libcuda.so.1").exists()
    again = mirror("--driver-root", root, "--output", output, "--json")
    document = json.loads(again.stdout)
    assert (document["driver"], document["path"]) == ("present", str(current))


def test_read_facts_are_cached_for_the_next_time(root, output):
    for path in (root / "usr/lib64").iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    mirror("--driver-root", root, "--output", output)
    assert "libcuda.so.1" in (output / "facts.json").read_text()


def test_specification_that_cannot_be_written_ends_with_an_error_and_a_mirror(root, output):
    (root / "cdi").write_text("in the way")
    done = mirror("--driver-root", root, "--output", output, "--cdi", root / "cdi/x.json")
    assert done.returncode == 69
    assert "the CDI specification cannot be written" in done.stderr
    assert done.stdout.startswith(f"{(output / 'current').resolve()}: the mirror of driver")
    assert json.loads((output / "state.json").read_text())["driver"] == "present"


def test_library_with_an_odd_name_is_left_out_and_reported_once(root, output):
    library = root / "usr/lib64/libnvidia-ptxjitcompiler.so.580.65.06"
    library.with_name("libnvidia-a\nb.so.580.65.06").write_bytes(library.read_bytes())
    done = mirror("--driver-root", root, "--output", output)
    assert (done.returncode, done.stderr) == (0, "")
    (said,) = [line for line in done.stdout.splitlines() if "libnvidia-a" in line]
    assert said.endswith("libnvidia-a\\nb.so.580.65.06: no driver has a file of this name")


def test_log_lines_have_the_prefix_pyvgpu(root, output, tmp_path):
    components = {"binaries": ["nvidia-smi"], "devices": ["x"]}
    volume = {"name": "nvidia", "base": "/etc/gpu-manager/vdriver", "components": components}
    (tmp_path / "volume.conf").write_text(json.dumps({"volume": [volume]}))
    options = ("--output", output, "--volume-config", tmp_path / "volume.conf")
    done = mirror("--driver-root", root, *options)
    assert done.returncode == 0
    assert done.stderr.startswith("pyvgpu: ignored volume[0].components.'devices'")


def test_dry_run_shows_the_tree_and_creates_nothing(root, output):
    done = mirror("--driver-root", root, "--output", output, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.lstrip("│├└─ ") for line in done.stdout.splitlines()]
    found = "driver 580.65.06, found in a usual folder"
    assert lines[:4] == [found, "shared/", "lib64/", "libcuda.so.1  the shim"]
    assert "libcuda-origin.so.1 → libcuda.so.580.65.06" in lines
    assert f"libcuda.so.580.65.06  {root}/usr/lib64/libcuda.so.580.65.06" in lines
    assert not output.exists()


def test_dry_run_for_programs_has_every_entry(root, output):
    done = mirror("--driver-root", root, "--output", output, "--dry-run", "--json")
    document = json.loads(done.stdout)
    entries = {entry.pop("path"): entry for entry in document["entries"]}
    assert document["release"] == "580.65.06"
    assert entries["shared/lib64/libcuda.so.1"]["shim"] is True
    assert entries["shared/lib64/libcuda.so"] == {
        "kind": "other name",
        "file": "shared/lib64/libcuda.so.1",
    }
    assert entries["exclusive/lib64/libcuda.so.1"] == {
        "kind": "link",
        "target": "libcuda.so.580.65.06",
    }
    assert entries["exclusive/lib64/libcuda.so.580.65.06"] == {
        "kind": "file",
        "source": f"{root}/usr/lib64/libcuda.so.580.65.06",
        "shim": False,
    }


def test_volume_config_names_the_volumes_and_the_folder(root, output, tmp_path):
    wanted = {"binaries": [], "libraries": ["libcuda", "libnvidia-ml"]}
    volumes = [
        {"name": name, "base": str(output), "mode": "ro", "components": wanted}
        for name in ("nvidia", "origin")
    ]
    (tmp_path / "volume.conf").write_text(json.dumps({"volume": volumes}))
    done = mirror("--driver-root", root, "--volume-config", tmp_path / "volume.conf")
    assert (done.returncode, done.stderr) == (0, "")
    current = output / "current"
    assert sorted(path.name for path in current.iterdir() if path.is_dir()) == ["nvidia", "origin"]
    assert (current / "nvidia/origin/libcuda-origin.so.1").exists()
    assert (current / "origin/lib64/libcuda.so.580.65.06").exists()
    assert not (current / "origin/lib64/libnvidia-ptxjitcompiler.so.1").exists()


def test_volumes_with_two_bases_need_an_output(root, tmp_path):
    volumes = [
        {"name": name, "base": f"/{name}", "mode": "ro", "components": {"libraries": ["libcuda"]}}
        for name in ("nvidia", "origin")
    ]
    (tmp_path / "volume.conf").write_text(json.dumps({"volume": volumes}))
    done = mirror("--driver-root", root, "--volume-config", tmp_path / "volume.conf")
    assert done.returncode == 64
    assert "several bases, /nvidia and /origin: name one folder" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--output", ""], "--output '': must name a path, such as /var/lib/pyvgpu/driver"),
        (["--driver-root", ""], "--driver-root '': must name a path"),
        (["--dry-run", "--follow"], "--dry-run and --follow: must not both be given"),
        (["elsewhere"], "unrecognized arguments: elsewhere"),
    ],
)
def test_invalid_arguments_are_refused(arguments, problem):
    done = mirror(*arguments)
    assert (done.returncode, done.stdout) == (64, "")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_driver_is_reported_and_recorded(root, output):
    mirror("--driver-root", root, "--output", output)
    for path in (root / "usr/lib64").iterdir():
        path.unlink()
    done = mirror("--driver-root", root, "--output", output)
    assert done.returncode == 69
    assert "no NVIDIA driver found" in done.stderr
    state = json.loads((output / "state.json").read_bytes())
    assert (state["driver"], state["release"]) == ("missing", "580.65.06")
    assert (output / "current/shared/origin/libcuda-origin.so.1").exists()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_follower_reports_each_change_and_ends_on_a_signal(root, output, end):
    (root / "usr/lib64").rename(root / "usr/aside")
    asked = command("--driver-root", root, "--output", output, "--follow", "--json")
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert json.loads(process.stdout.readline())["driver"] == "missing"
        (root / "usr/aside").rename(root / "usr/lib64")
        news = json.loads(process.stdout.readline())
        assert (news["driver"], news["release"]) == ("present", "580.65.06")
        assert os.path.realpath(output / "current") == news["path"]
        process.send_signal(end)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
