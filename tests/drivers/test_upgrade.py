"""`pyvgpu mirror --follow` while a real dpkg installs, upgrades and removes a real driver."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading

import debian
import pytest
import rights
import waiting

pytestmark = pytest.mark.drivers

PACKAGES = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-smi")
DRIVERS = {"535": "bookworm", "550": "trixie"}  # by branch
# dpkg unpacks these packages one after the other, so the driver is incomplete for a moment.
SPLIT = ("libcuda.so", "libnvidia-ml.so", "")
# No periodic checks: the follower must notice each change itself.
MAIN = """
import sys
from pyvgpu import cli
from pyvgpu.volumes import driver_follower
driver_follower.IDLE_SECONDS = 1e9
sys.exit(cli.main())
"""


class System:
    """A root in which dpkg installs drivers, from packages without scripts."""

    def __init__(self, folder):
        self.root = folder / "root"
        self._folder = folder
        (self.root / "var/lib/dpkg").mkdir(parents=True)
        for name in ("status", "available"):
            (self.root / "var/lib/dpkg" / name).touch()

    def install(self, branch):
        self._dpkg("--unpack", *self._packages(branch))

    def remove(self):
        self._dpkg("--purge", *(f"driver-{number}" for number in range(len(SPLIT))))

    def _dpkg(self, *arguments):
        command = ["dpkg", "--root", self.root, "--force-all", "--no-triggers", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=waiting.PROMPT)

    def _packages(self, branch):
        """Build packages from a driver's files; yield them in installation order."""
        source = debian.unpacked(DRIVERS[branch], *PACKAGES)
        for number, beginning in enumerate(SPLIT):
            content = self._folder / f"content-{branch}-{number}"
            for path in sorted(source.rglob("*")):
                first = next(each for each in SPLIT if path.name.startswith(each))
                if first != beginning or (path.is_dir() and not path.is_symlink()):
                    continue
                target = content / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target, follow_symlinks=False)
            (content / "DEBIAN").mkdir()
            (content / "DEBIAN/control").write_text(
                f"Package: driver-{number}\nVersion: {branch}\nArchitecture: all\n"
                "Maintainer: none\nDescription: a part of a driver\n"
            )
            package = self._folder / f"{branch}-{number}.deb"
            subprocess.run(
                ["dpkg-deb", "-Znone", "--build", content, package],
                check=True,
                capture_output=True,
            )
            yield package


class Follower:
    """The running command, and its output."""

    def __init__(self, root, output):
        arguments = ["mirror", "--follow", "--json", "--driver-root", root, "--output", output]
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, arguments)], stdout=subprocess.PIPE
        )
        self._said = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self._process.stdout as stream:
            for line in stream:
                self._said.put(json.loads(line))

    def next(self, driver, branch):
        """Return the first report of such a driver, after any reports of an incomplete one."""
        while True:
            said = self._said.get(timeout=waiting.PROMPT)
            if said["driver"] == driver and said["release"].startswith(branch):
                return said
            assert said["driver"] == "unusable", said

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(waiting.PROMPT)
        self._reader.join(waiting.PROMPT)
        return status


@rights.as_root
def test_mirror_follows_installation_upgrade_and_removal_by_dpkg(tmp_path):
    system, output = System(tmp_path), tmp_path / "output"
    system.install("535")
    follower = Follower(system.root, output)
    try:
        old = follower.next("present", "535.")
        system.install("550")
        new = follower.next("present", "550.")
        assert new["tree"] == (output / "current").readlink().name != old["tree"]
        check_whole(output / new["tree"], new["release"])
        check_whole(output / old["tree"], old["release"])
        system.remove()
        gone = follower.next("missing", "550.")
        assert gone["tree"] == new["tree"]
        check_whole(output / "current", new["release"])
        assert json.loads((output / "state.json").read_text())["driver"] == "missing"
    finally:
        assert follower.stop() == 0


def check_whole(tree, release):
    """Assert that both volumes have all libraries, of this release only."""
    assert (tree / "shared/origin/libcuda-origin.so.1").resolve().name == f"libcuda.so.{release}"
    for volume in ("shared", "exclusive"):
        found = {path.name for path in (tree / volume).rglob("lib*.so.*.*")}
        stems = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
        assert {f"{stem}.so.{release}" for stem in stems} <= found
        assert {name for name in found if not name.endswith(release)} == set()
