"""`pyvgpu set`: change the quota of an active run, or of a container of this node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, quota
from pyvgpu.cli import agent_options, limits
from pyvgpu.deviceplugin import admin_socket
from pyvgpu.machine import quota_socket, reservations, users

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyvgpu.machine.holders import LiveReservation

_DESCRIPTION = """\
Change the quota of a run, or of a container of this node; omitted values stay as they are. The new
quota applies to the next launch and the next allocation. A memory quota below the memory in use
reclaims nothing: allocations fail until enough is freed. A value that is not valid, or does not
fit beside the other reservations, is rejected, and the old one stays. Only the run's user and root
may change it. Another user's run is called USER/RUN. A container is called
NAMESPACE/POD/CONTAINER; its quota can be lowered, and raised again up to what it was created with,
by root only.
"""
_EXAMPLES = """\
examples:
  pyvgpu set eval --vcore 50
  pyvgpu set eval --vmemory 12GiB
  pyvgpu set eval --vcore 20 --policy elastic --vcore-limit 80
  pyvgpu set eval --priority low
  pyvgpu set alice/train --vcore 50              (as root)
  pyvgpu set team/trainer-0/main --vcore 30
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu set`."""
    parser.usage = "pyvgpu set RUN [options]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("name", metavar="RUN", help="the run, as in `pyvgpu ps`, or NAMESPACE/POD/CONTAINER")
    add("--vcore", metavar="N", help="percent of the device's time, 1 to 100")
    add("--vmemory", metavar="SIZE", help="device memory, such as 4GiB or 512Mi")
    add("--policy", metavar="hard|elastic", help="whether it may use idle time of the device")
    add("--vcore-limit", metavar="N", help="elastic: the most that it may reach, vcore to 100")
    add("--priority", metavar="low|normal|high", help="which run yields when several have work")
    agent_options.add_state(parser)


def run(options: argparse.Namespace) -> int:
    """Send the change to the run's supervisor or the agent, and print the new quota."""
    wanted = limits.parse(options)
    if wanted == quota.QuotaChange():
        raise errors.UsageError(
            f"nothing to change is given, such as `pyvgpu set {options.name} --vcore 50`"
        )
    live = reservations.Registries().live()
    if "/" in options.name and not _is_run(options.name, live):
        order = {"order": "set", "name": options.name, "change": dataclasses.asdict(wanted)}
        print(admin_socket.send(agent_options.state(options), order))
        return 0
    found = quota_socket.find(options.name, live)
    with quota_socket.Supervisor(found) as supervisor:
        held = supervisor.change(wanted)
    print(f"{found.name}: {held.text}")
    return 0


def _is_run(name: str, live: Sequence[LiveReservation]) -> bool:
    """Whether *name* is USER/RUN of a user who has runs, and not a container."""
    user, _, run = name.partition("/")
    return "/" not in run and any(
        user in (users.name(reservation.uid), str(reservation.uid)) for reservation in live
    )
