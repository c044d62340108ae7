"""What the kernel allows here. A container without rights is a place to run and to test in, too.

There `pyvgpu run` says in one line that it makes no mount namespace. Tests of what only a
namespace gives are skipped; in all others the line is taken out of what was said.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from pyvgpu import abilities

WANTING = "the kernel does not allow"  # CI cannot install it, so conftest.py lets it be skipped
_LINE = re.compile(r"^pyvgpu: no private mount namespace here \(.*\n", re.MULTILINE)
_HAS_OVERLAYS = abilities.overlay() is None


def _unshares(*options: str) -> bool:
    try:
        ran = subprocess.run(["unshare", *options, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return ran.returncode == 0


as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason=f"{WANTING} us to act as a second user: only root may"
)
needs_namespace = pytest.mark.skipif(
    not _HAS_OVERLAYS, reason=f"{WANTING} private mount namespaces, or overlays in them"
)
needs_user_namespace = pytest.mark.skipif(
    not _unshares("--user", "--map-root-user", "--mount"), reason=f"{WANTING} user namespaces"
)
needs_mounts = pytest.mark.skipif(
    not _unshares("--mount"), reason=f"{WANTING} us to mount: only root may, in a full machine"
)

PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")  # before a command
needs_pid_namespace = pytest.mark.skipif(
    not _unshares(*PID_NAMESPACE[1:]), reason=f"{WANTING} us a PID namespace"
)
# The driver's pids count there, so elsewhere nobody can tell whose load it is.
IN_FIRST_PID_NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
needs_first_pid_namespace = pytest.mark.skipif(
    not IN_FIRST_PID_NAMESPACE, reason=f"{WANTING} us the machine's first PID namespace"
)


def without_line(said: str) -> str:
    """Return *said* without the line about namespaces, where there are none."""
    return said if _HAS_OVERLAYS else _LINE.sub("", said)
