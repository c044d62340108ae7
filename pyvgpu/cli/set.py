"""`pyvgpu set`: another quota for a run that lives, or for a container of this node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import control, errors, holders, promises, quota
from pyvgpu.cli import agent, limits
from pyvgpu.deviceplugin import orders

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Change what a run, or a container of this node, is held to; what is left out stays. It holds for
the next launch and the next allocation. Below what is held already of memory, nothing is taken
away: allocations are refused until enough was freed. A value that is not valid, or has no room
beside what others were promised, is refused, and the old one stays. Only the run's user and root
may change it. A container is called NAMESPACE/POD/CONTAINER; it may have less than it was created
with, and that again, and only root may change it.
"""
_EXAMPLES = """\
examples:
  pyvgpu set eval --vcore 50
  pyvgpu set eval --vmemory 12GiB
  pyvgpu set eval --vcore 20 --policy elastic --vcore-limit 80
  pyvgpu set eval --priority low
  pyvgpu set team/trainer-0/main --vcore 30
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu set`."""
    parser.usage = "pyvgpu set NAME [options]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("name", metavar="NAME", help="what `pyvgpu ps` calls the run, or NAMESPACE/POD/CONTAINER")
    add("--vcore", metavar="N", help="percent of the device's time, 1 to 100")
    add("--vmemory", metavar="SIZE", help="device memory, such as 4GiB or 512Mi")
    add("--policy", metavar="hard|elastic", help="whether idle time of the device may be used")
    add("--vcore-limit", metavar="N", help="elastic: what it may reach, vcore to 100")
    add("--priority", metavar="low|normal|high", help="which gives way where several have work")
    agent.add_state(parser)


def run(options: argparse.Namespace) -> int:
    """Ask the run's supervisor, and say what holds now."""
    wanted = limits.parse(options)
    if wanted == quota.Change():
        raise errors.UsageError(
            f"nothing to change is given, such as `pyvgpu set {options.name} --vcore 50`"
        )
    if "/" in options.name:
        order = {"order": "set", "name": options.name, "change": dataclasses.asdict(wanted)}
        print(orders.tell(agent.state(options), order))
        return 0
    name = holders.check_name(options.name, "NAME")
    found = control.find(name, promises.Books().live())
    with control.Supervisor(found) as supervisor:
        held = supervisor.change(wanted)
    print(f"{name}: {held.text}")
    return 0
