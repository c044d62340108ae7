"""Cluster queries and output of the kubectl plugin's commands.

What we have no permission to read is left out, with a line on standard error: a user who may list
only their own pods sees those, with the information in the pods themselves.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyvgpu import errors, log
from pyvgpu.cli import agent_scrape, cluster_options
from pyvgpu.controller.kubectl import agent_metrics, device_holders, tables
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence

    from pyvgpu.kube.objects import Object

_FORMATS = ("wide", "json")
_RESOURCES = "/apis/resource.k8s.io/v1"


def add_options(parser: argparse.ArgumentParser, *, of_pods: bool) -> None:
    """Add the options that all of the plugin's own commands have."""
    add = parser.add_argument
    if of_pods:
        cluster_options.add_pods_namespace(parser, "the pods'")
        add("-A", "--all-namespaces", action="store_true", help="pods of all namespaces")
        add("-l", "--selector", metavar="LABELS", default="", help="only pods with these labels")
    add("-o", "--output", metavar="wide|json", default="", help="more columns, or JSON")
    add("--no-headers", action="store_true", help="print no column headers")
    cluster_options.add_context(parser)


class ClusterQueries:
    """The cluster queries of one command."""

    def __init__(self, options: argparse.Namespace) -> None:
        if options.output not in ("", *_FORMATS):
            raise errors.UsageError(
                f"--output {options.output!r}: must be {' or '.join(_FORMATS)}, such as -o wide"
            )
        self._options = options
        self._api = apiserver.connect(options.kubeconfig, context=options.context)

    @property
    def namespace(self) -> str:
        """The selected namespace, empty for all."""
        options = self._options
        if options.all_namespaces:
            return ""
        return str(
            options.namespace or apiserver.default_namespace(options.kubeconfig, options.context)
        )

    def pods(self) -> list[Object]:
        """Return the selected pods; UnavailableError if we may not list them."""
        query = {"labelSelector": self._options.selector}
        return self._api.items(self.path("pods"), query)[0]

    def path(self, kind: str) -> str:
        """Return the API path of a core kind's objects in the selected namespace."""
        space = self.namespace
        return f"/api/v1/namespaces/{space}/{kind}" if space else f"/api/v1/{kind}"

    def seen(self, pods: Sequence[Object]) -> device_holders.ClusterObjects:
        """Return *pods*, with nodes, slices and claims as far as we may read them."""
        return device_holders.ClusterObjects(
            pods=pods,
            nodes=self.items("/api/v1/nodes", "devices without a name: you may not list nodes"),
            slices=self._items_of_claims("resourceslices"),
            claims=self._items_of_claims("resourceclaims"),
        )

    def items(
        self, path: str, without: str, query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return the list at *path*; if we may not read it, print *without* and return none."""
        try:
            return self._api.items(path, query or {})[0]
        except apiserver.ServerError as exc:
            if exc.status not in (403, 404):
                raise
            log.say(without)
            return []

    def reports(
        self, nodes: Collection[str] | None
    ) -> dict[str, agent_metrics.AgentMetrics | None]:
        """Return the reports of the agents on *nodes* (None: all); None for a silent agent."""
        space = self._options.agent_namespace
        answers = agent_scrape.reports(self._api, space, nodes)
        if answers is None:
            log.say(f"usage is unknown: you may not list pods in {space}")
            return {}
        silent = {node: said for node, said in answers.items() if isinstance(said, str)}
        if silent:
            node, said = next(iter(silent.items()))
            log.say(
                f"usage is unknown on {len(silent)} of {len(answers)} nodes, such as "
                f"{node}: {said}; this needs permission to get pods/proxy in {space}, and a "
                "network in which the API server can reach the agents"
            )
        return {node: None if isinstance(said, str) else said for node, said in answers.items()}

    def print(
        self, *pages: tuple[str, Sequence[tables.TableColumn], Sequence[tables.Row]]
    ) -> None:
        """Print tables, each with its name in the JSON output."""
        if self._options.output == "json":
            document = {name: list(rows) for name, _, rows in pages}
            print(json.dumps(document, indent=2))
            return
        texts = []
        for _, columns, rows in pages:
            text = tables.table(columns, rows, wide=self._options.output == "wide")
            lines = text.splitlines()
            texts.append("\n".join(lines[1:] if self._options.no_headers else lines))
        if any(rows for _, _, rows in pages):
            print(
                "\n\n".join(text for text, (_, _, rows) in zip(texts, pages, strict=True) if rows)
            )

    def say_nothing_found(self, what: str) -> None:
        """Print kubectl's message for an empty result."""
        where = f" in {self.namespace} namespace" if self.namespace else ""
        print(f"No {what} found{where}.", file=sys.stderr)

    def _items_of_claims(self, kind: str) -> list[Object]:
        try:  # few clusters have claims, so a missing API or permission is not reported
            return self._api.items(f"{_RESOURCES}/{kind}", {})[0]
        except apiserver.ServerError as exc:
            if exc.status not in (403, 404):
                raise
            return []
