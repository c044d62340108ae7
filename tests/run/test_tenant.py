"""A tenant cannot avoid the shim and its quota by changing its environment."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import forked
import pytest
import rights
from waiting import wait_until

from pyvgpu import names, shim
from pyvgpu.machine import mounts

from .conftest import reservation_folders

MIB = 1 << 20
WITHIN, BEYOND = 512 * MIB, 4096 * MIB


def held(ran, vmemory=2048 * MIB):
    """Return whether the probe saw *vmemory* as the total and was refused more."""
    return ran.stdout.splitlines() == ["init 0", f"total {vmemory}", "alloc 2"]


def driver(name):
    return shim.simulator_libraries() / name


def test_program_is_limited_to_its_quota(runner, probe):
    assert held(runner("--vmemory", "2GiB", probe, "libcuda.so.1", BEYOND))
    within = runner("--vmemory", "2GiB", probe, "libcuda.so.1", WITHIN)
    assert within.stdout.splitlines() == ["init 0", f"total {2048 * MIB}", "alloc 0"]


@pytest.mark.parametrize(
    "forged",
    [
        {"PYVGPU_SIMULATED_MACHINE": "/nonexistent"},
        {"CUDA_VISIBLE_DEVICES": "0,0"},
        {"LD_LIBRARY_PATH": "/usr/lib"},
        {"PYVGPU_REGION": "/tmp", "PYVGPU_QUOTA": "99999999999", "PYVGPU_LOG": "error"},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"},
    ],
)
def test_forged_variables_lift_no_limit(runner, probe, forged):
    words = [f"{key}={value}" for key, value in forged.items()]
    ran = runner("--vmemory", "2GiB", "env", *words, probe, "libcuda.so.1", BEYOND)
    assert "alloc 0" not in ran.stdout


@pytest.mark.slow
@rights.needs_namespace
@pytest.mark.parametrize("library", ["libcuda.so.1", "libcuda.so.999.1"])
def test_absolute_path_and_empty_environment_load_the_shim(runner, probe, library):
    ran = runner("--vmemory", "2GiB", "env", "-i", probe, driver(library), BEYOND)
    assert held(ran)


@rights.as_root
@rights.needs_user_namespace
def test_ordinary_user_with_an_empty_environment_loads_the_shim(runner, probe):
    runner.machines.chmod(0o1777)
    library = readable(runner) / "simulator" / "libcuda.so.999.1"
    ran = as_user(runner, "env", "-i", probe, library, BEYOND)
    assert held(ran), ran.stderr


@rights.as_root
def test_ordinary_user_leaves_nothing(runner):
    runner.machines.chmod(0o1777)
    ran = as_user(runner, "sh", "-c", "echo $LD_LIBRARY_PATH; id -u")
    tree, uid = ran.stdout.split()
    assert uid == str(forked.OTHER_UID)
    assert not Path(tree).parent.exists()
    assert Path(tree).parents[1].exists()


def as_user(runner, *command):
    return subprocess.run(
        [
            *(sys.executable, Path(__file__).with_name("as_user.py")),
            *(str(forked.OTHER_UID), str(readable(runner))),
            *("run", "--simulate", "h100", "--vmemory", "2GiB"),
            *map(str, command),
        ],
        env={**runner.environment, "XDG_CACHE_HOME": str(writable(runner))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def readable(runner):
    """Return a copy of the built libraries: other users cannot read /root."""
    folder = runner.cache.parent / "installed" / "lib"
    if not folder.exists():
        shutil.copytree(shim.shim_library().parent, folder)
    return folder


def writable(runner):
    folder = runner.cache.parent / "open"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder / "cache"


def test_without_a_namespace_the_library_path_selects_the_shim(runner, probe):
    ran = runner("--no-namespace", "--vmemory", "2GiB", probe, "libcuda.so.1", BEYOND)
    assert held(ran)
    assert ran.stderr == ""


@rights.needs_user_namespace
def test_run_warns_and_continues_where_namespaces_are_forbidden(runner, probe):
    command = shlex.join(runner.command("--vmemory", "2GiB", probe, "libcuda.so.1", BEYOND))
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all"
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", f"{forbid} {command}"],
        env=runner.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert held(ran)
    (line,) = ran.stderr.splitlines()
    assert line.startswith("pyvgpu: cannot use a private mount namespace (unshare: ")


@pytest.mark.slow
@rights.needs_namespace
def test_namespace_is_private_to_the_run(runner):
    def laid(mountinfo):
        """Return the mounts over the driver; other processes may mount elsewhere meanwhile."""
        folder = PurePosixPath(shim.simulator_libraries().resolve())
        return [point for _, point in mounts.parsed(mountinfo.encode()) if point == folder]

    ran = runner("--vmemory", "2GiB", "readlink", "/proc/self/ns/mnt")
    assert ran.stdout.strip() != str(Path("/proc/self/ns/mnt").readlink())
    with runner.started(
        "--vmemory", "2GiB", "sh", "-c", "cat /proc/self/mountinfo; echo; read _"
    ) as run:
        inside = "".join(iter(run.stdout.readline, "\n"))
        assert len(laid(inside)) == 1
        assert laid(Path("/proc/self/mountinfo").read_text()) == []
    assert laid(Path("/proc/self/mountinfo").read_text()) == []
    ran = runner("--no-namespace", "--vmemory", "2GiB", "readlink", "/proc/self/ns/mnt")
    assert ran.stdout.strip() == str(Path("/proc/self/ns/mnt").readlink())


@pytest.mark.slow
def test_background_process_keeps_the_reservation_but_starts_no_other(runner, name, probe):
    place = runner.cache.parent
    pipes = [place / "end", place / "late"]
    for pipe in pipes:
        os.mkfifo(pipe)
    ends = [os.open(pipe, os.O_RDWR | os.O_CLOEXEC) for pipe in pipes]
    script = (
        f"cd {place}; {probe} libcuda.so.1 {WITHIN} wait <end >held 2>&1 & "
        f"{{ read go; {probe} libcuda.so.1 {WITHIN}; }} <late >refused 2>&1 & "
        "while ! grep -q alloc held; do kill -0 $! || exit 1; sleep 0.02; done"
    )
    assert runner("--name", name, "--vmemory", "79000MiB", "sh", "-c", script).returncode == 0
    assert len(reservation_folders(name)) == 1
    assert f"{name} 77.1GiB" in runner("--vmemory", "4GiB", "true").stderr
    os.write(ends[1], b"\n")
    wait_until(lambda: "init" in (place / "refused").read_text())
    assert "alloc" not in (place / "refused").read_text()
    assert "has ended" in (place / "refused").read_text()
    for end in ends:
        os.close(end)
    wait_until(lambda: reservation_folders(name) == [])
    wait_until(lambda: runner.trees() == [])
    assert runner("--vmemory", "79000MiB", "true").returncode == 0


def run_alone(runner, options, *arguments):
    """Run with /run/pyvgpu on a tmpfs of its own, with these mount options; return what ran."""
    script = f"mkdir -p /run/pyvgpu; mount -t tmpfs -o {options} x /run/pyvgpu; " + shlex.join(
        runner.command(*arguments)
    )
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env=runner.environment,
        capture_output=True,
        text=True,
        check=False,
    )


@rights.needs_mounts
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        pytest.param("rm -f $R/quota", "no quota", id="missing"),
        pytest.param("chmod u+w $R/quota", "writable", id="writable"),
        pytest.param(
            "cat $R/quota >$R/q; truncate -s 50 $R/q; chmod 444 $R/q; mv -f $R/q $R/quota",
            "too short",
            id="short",
        ),
        pytest.param(
            "cat $R/quota >$R/q; printf x | dd of=$R/q conv=notrunc 2>/dev/null; "
            "chmod 444 $R/q; mv -f $R/q $R/quota",
            "wrong magic",
            id="wrong magic",
        ),
    ],
)
def test_program_does_not_start_with_a_damaged_region(runner, probe, damage, problem):
    """Without other runs: their supervisors remove a reservation whose quota was replaced, for no
    process holds the lock of the new file."""
    begun = f"until [ -e $R/{names.CONTROL_SOCKET} ]; do sleep 0.05; done"  # by the supervisor
    damaged = f"R=${{LD_LIBRARY_PATH%%/lib64*}}/region; {begun}; {damage}"
    script = f"{damaged}; {probe} libcuda.so.1 {WITHIN}"
    ran = run_alone(runner, "mode=1777", "--vmemory", "2GiB", "sh", "-c", script)
    assert "alloc" not in ran.stdout
    assert problem in ran.stderr
    assert len(rights.without_line(ran.stderr).splitlines()) == 1


@rights.needs_namespace
@pytest.mark.parametrize("strange", ["a:b", "a,b", "a\\b", "a b", "a'b", "a%b", "ä"])
def test_overlay_works_on_folders_of_any_name(tmp_path, strange):
    folder, layer = tmp_path / strange, tmp_path / f"layer {strange}"
    folder.mkdir()
    layer.mkdir()
    (folder / "below").touch()
    (layer / "above").touch()
    code = (
        "import os, sys; from pathlib import Path\n"
        "from pyvgpu.run import mount_namespace as mounts\n"
        "try:\n"
        "    mounts.enter([mounts.Overlay(Path(sys.argv[1]), Path(sys.argv[2]))])\n"
        "except mounts.NamespaceError as exc:\n    sys.exit(f'no: {exc}')\n"
        "print(*sorted(os.listdir(sys.argv[1])))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, folder, layer], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "above below\n", ran.stderr


@rights.needs_mounts
def test_full_disk_gives_a_one_line_error(runner, tmp_path):
    ran = run_alone(runner, "size=16k,mode=1777", "--vmemory", "2GiB", "true")
    assert ran.returncode == 69
    assert "No space left on device; make room there" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert runner.trees() == []
