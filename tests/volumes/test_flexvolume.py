import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rights
from installed import installation_of

from pyvgpu.volumes import flexvolume, node_mirror

APART = ("unshare", "--mount", "--propagation", "private")
# Options that kubelet adds to those of the pod.
KUBELETS = {
    "kubernetes.io/fsType": "",
    "kubernetes.io/pod.name": "train",
    "kubernetes.io/readwrite": "ro",
}


@pytest.fixture
def mirrored(driver_folder, shim, tmp_path):
    kept = node_mirror.NodeMirror(tmp_path / "output", shim)
    kept.mirror(installation_of(driver_folder.path))
    return kept


def failure(kept, operation, *arguments):
    answer = flexvolume.answer(kept, operation, arguments)
    assert answer["status"] == "Failure"
    return answer["message"]


def run_apart(script, *arguments):
    """Run lines of Python in a mount namespace of their own; return what they print in JSON."""
    done = subprocess.run(
        [*APART, sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def command(kept, *arguments):
    """Return Python code that calls the driver as kubelet does."""
    words = ["flexvolume", "--output", str(kept.output), *map(str, arguments)]
    return f"from pyvgpu.cli.main import main; code = main({words!r})\n"


def test_init_declares_that_kubelet_must_not_change_files():
    answer = flexvolume.answer(node_mirror.NodeMirror(Path("/none"), Path("/none")), "init", [])
    assert answer["status"] == "Success"
    assert answer["capabilities"] == {
        "attach": False,
        "fsGroup": False,
        "requiresFSResize": False,
        "selinuxRelabel": False,
        "supportsMetrics": False,
    }


@rights.needs_mounts
@pytest.mark.parametrize("name", ["shared", "exclusive", None])
def test_volume_is_mounted_once_read_only_and_unmounted(mirrored, tmp_path, name):
    target = tmp_path / "pods" / "with blank" / "driver"
    options = json.dumps(KUBELETS | ({"volume": name} if name else {}))
    mount, unmount = (
        command(mirrored, "mount", target, options),
        command(mirrored, "unmount", target),
    )
    script = (
        "import errno, json, os, sys\nfrom pathlib import Path\n"
        "target = Path(sys.argv[1])\n"
        f"{mount}{mount}"
        "lines = [l for l in open('/proc/self/mountinfo') if '/driver ' in l.split(' - ')[0]]\n"
        "try:\n    (target / 'new').touch()\nexcept OSError as exc:\n    number = exc.errno\n"
        "flags = sorted(set(lines[0].split()[5].split(',')) & {'ro', 'nosuid', 'nodev'})\n"
        "same = (target / 'lib64').samefile(Path(sys.argv[2]) / 'lib64')\n"
        "print(json.dumps([len(lines), number == errno.EROFS, flags, same]))\n"
        f"{unmount}{unmount}"
        "print(json.dumps([os.path.ismount(target), list(target.iterdir())]))\n"
    )
    success = {"status": "Success"}
    assert run_apart(script, target, mirrored.current() / (name or "shared")) == [
        success,
        success,
        [1, True, ["nodev", "nosuid", "ro"], True],
        success,
        success,
        [False, []],
    ]


@rights.needs_mounts
@rights.needs_first_pid_namespace
def test_tree_mounted_by_a_pod_is_kept_when_the_driver_changes(mirrored, driver_folder, tmp_path):
    target = tmp_path / "driver"
    old = mirrored.current()
    script = (
        f"{command(mirrored, 'mount', target, '{}')}"
        "import sys; sys.stdout.flush(); sys.stdin.read()\n"
    )
    pod = subprocess.Popen(
        [*APART, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with pod:
        assert json.loads(pod.stdout.readline()) == {"status": "Success"}
        for path in driver_folder.path.iterdir():
            path.unlink()
        driver_folder.add_driver("580.95.05")
        mirrored.mirror(installation_of(driver_folder.path))
        later = os.lstat(mirrored.output / "current").st_mtime + 100
        assert mirrored.collect(later) == ()
        assert old.exists()
        pod.stdin.close()
        assert pod.wait(60) == 0
    assert mirrored.collect(later) == (old,)


@pytest.mark.parametrize("operation", ["attach", "mountdevice", "expandvolume", "", "--x"])
def test_other_operations_are_not_supported(mirrored, operation):
    assert flexvolume.answer(mirrored, operation, ["x"]) == {"status": "Not supported"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "the options are not JSON"),
        ("[" * 100_000, "the options are not JSON"),
        ("[]", "the options must be a JSON object"),
        ('{"kubernetes.io/readwrite": "rw"}', "must be declared with readOnly: true"),
        ('{"volume": 1}', "option 'volume': must be volume,"),
        ('{"server": "x"}', "option 'server': must be volume,"),
        ('{"volume": ".."}', "volume '..': must be one of exclusive, shared"),
        ('{"volume": "shared/lib64"}', "must be one of exclusive, shared"),
        ('{"volume": "\\u0000"}', "must be one of exclusive, shared"),
    ],
)
def test_invalid_options_are_refused(mirrored, tmp_path, options, message):
    assert message in failure(mirrored, "mount", str(tmp_path / "pod"), options)
    assert not (tmp_path / "pod").exists()


@pytest.mark.parametrize("folder", ["", "pod", "../pod", "/tmp/../pod"])
def test_folder_must_be_an_absolute_path(mirrored, folder):
    assert "must be the absolute path" in failure(mirrored, "mount", folder, "{}")
    assert "must be the absolute path" in failure(mirrored, "unmount", folder)


@pytest.mark.parametrize(
    ("operation", "arguments"), [("init", ["x"]), ("mount", ["/x"]), ("unmount", [])]
)
def test_wrong_number_of_arguments_is_refused(mirrored, operation, arguments):
    assert f"must be called as {operation}" in failure(mirrored, operation, *arguments)


def test_mount_without_a_mirror_fails(tmp_path, shim):
    empty = node_mirror.NodeMirror(tmp_path / "output", shim)
    assert "no mirror of a driver" in failure(empty, "mount", str(tmp_path / "pod"), "{}")


def test_folder_that_cannot_be_created_is_a_failure(mirrored, tmp_path):
    (tmp_path / "pods").write_text("in the way")
    message = failure(mirrored, "mount", str(tmp_path / "pods" / "x"), "{}")
    assert message.endswith(("Not a directory", "File exists"))


def test_failure_has_an_exit_code_and_an_answer(mirrored):
    done = subprocess.run(
        [sys.executable, "-c", command(mirrored, "mount", "pod", "{}") + "raise SystemExit(code)"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["status"] == "Failure"
