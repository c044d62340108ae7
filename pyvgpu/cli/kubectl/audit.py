"""`kubectl vgpu audit`: processes that exceeded their quota."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from pyvgpu.cli import cluster_options
from pyvgpu.cli.kubectl import cluster_queries
from pyvgpu.controller.kubectl import table_rows, tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from pyvgpu.kube.objects import Object

_DESCRIPTION = """\
Show the agents' events for processes that use devices without the shim or exceed their quota
(clusters keep events for an hour), and the current findings of each node's agent: processes
without a shim, processes on a device that is not theirs, containers above their quota, processes
of the node itself. An agent that does not see the node's pids does not audit. This needs
permission to list events, and to get pods/proxy in the agents' namespace.
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
    cluster_queries.add_options(parser, of_pods=True)
    cluster_options.add_agents(parser)


def run(options: argparse.Namespace) -> int:
    """Print events and findings; the exit code is 0 with or without any."""
    queries = cluster_queries.ClusterQueries(options)
    listed = [
        event
        for reason in table_rows.PAST_QUOTA
        for event in queries.items(
            queries.path("events"),
            "past events are unknown: you may not list events",
            {"fieldSelector": f"reason={reason}"},
        )
    ]
    events = table_rows.events(_once(listed), datetime.datetime.now(datetime.UTC))
    found = table_rows.audits(queries.reports(None))
    queries.print(("events", tables.EVENTS, events), ("nodes", tables.AUDITS, found))
    if not events:
        queries.say_nothing_found("events of processes past their quota")
    return 0


def _once(listed: Iterable[Object]) -> list[Object]:
    """Return each event once: a server without this field selector returns all of them twice."""
    by_uid = {str(event["metadata"].get("uid") or id(event)): event for event in listed}
    return list(by_uid.values())
