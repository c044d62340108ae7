"""`kubectl vgpu audit`: processes that went past their quota."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from pyvgpu.cli import cluster
from pyvgpu.cli.kubectl import asking
from pyvgpu.controller.people import rows, tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from pyvgpu.controller.objects import Object

_DESCRIPTION = """\
Show what agents wrote of processes that use devices without the shim, or more than their quota
(events, which clusters keep for an hour), and what the agent of each node finds now: processes
without a shim, of a device that is not theirs, containers above their quota, processes of the node
itself. An agent that does not see the node's pids does not look. That takes the right to list
events, and to get pods/proxy in the agents' namespace.
"""
_EXAMPLES = """\
examples:
  kubectl vgpu audit
  kubectl vgpu audit -A
  kubectl vgpu audit -A -o json
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kubectl vgpu audit`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    asking.add_options(parser, of_pods=True)
    cluster.add_agents(parser)


def run(options: argparse.Namespace) -> int:
    """Show them; that there are none is no error, nor that there are some."""
    asked = asking.Asked(options)
    listed = [
        event
        for reason in rows.PAST_QUOTA
        for event in asked.items(
            asked.path("events"),
            "nothing is known of what was: you may not list events",
            {"fieldSelector": f"reason={reason}"},
        )
    ]
    events = rows.events(_once(listed), datetime.datetime.now(datetime.UTC))
    found = rows.audits(asked.told(None))
    asked.print(("events", tables.EVENTS, events), ("nodes", tables.AUDITS, found))
    if not events:
        asked.say_nothing_found("events of processes past their quota")
    return 0


def _once(listed: Iterable[Object]) -> list[Object]:
    """Return each event once: a server that knows no such selector gives all of them twice."""
    by_uid = {str(it["metadata"].get("uid") or id(it)): it for it in listed}
    return list(by_uid.values())
