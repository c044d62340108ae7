"""Skip marks for privileges that the kernel may deny; tests also run in unprivileged containers.

There `pyvgpu run` prints one line that it creates no mount namespace. Tests of what only a
namespace provides are skipped; all others remove the line from the output.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from pyvgpu.run import abilities

WANTING = "the kernel does not allow"  # CI cannot install it; conftest.py allows the skip
_LINE = re.compile(r"^pyvgpu: cannot use a private mount namespace \(.*\n", re.MULTILINE)
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
# The driver's pids are of that namespace; elsewhere they cannot be matched to processes.
IN_FIRST_PID_NAMESPACE = Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
needs_first_pid_namespace = pytest.mark.skipif(
    not IN_FIRST_PID_NAMESPACE, reason=f"{WANTING} us the machine's first PID namespace"
)


def without_line(said: str) -> str:
    """Return *said* without the line about mount namespaces, where they are not allowed."""
    return said if _HAS_OVERLAYS else _LINE.sub("", said)
