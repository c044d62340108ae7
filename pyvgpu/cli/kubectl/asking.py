"""What the plugin's commands ask a cluster for, and how they print it.

What may not be read is left out and said in a line on standard error: a user who may list his own
pods alone sees those, with what stands on them.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyvgpu import errors, log
from pyvgpu.cli import agents, cluster
from pyvgpu.controller.people import figures, holders, tables
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence

    from pyvgpu.controller.objects import Object

_FORMATS = ("wide", "json")
_RESOURCES = "/apis/resource.k8s.io/v1"


def add_options(parser: argparse.ArgumentParser, *, of_pods: bool) -> None:
    """Add the options that all of the plugin's own commands have."""
    add = parser.add_argument
    if of_pods:
        add("-n", "--namespace", metavar="NAME", help="of the pods (the kubeconfig's)")
        add("-A", "--all-namespaces", action="store_true", help="of all namespaces")
        add("-l", "--selector", metavar="LABELS", default="", help="only pods with these labels")
    add("-o", "--output", metavar="wide|json", default="", help="more columns, or for programs")
    add("--no-headers", action="store_true", help="no heads of columns")
    cluster.add_context(parser)


class Asked:
    """One command's question to a cluster."""

    def __init__(self, options: argparse.Namespace) -> None:
        if options.output not in ("", *_FORMATS):
            raise errors.UsageError(
                f"--output {options.output!r}: must be {' or '.join(_FORMATS)}, such as -o wide"
            )
        self._options = options
        self._api = apiserver.connect(options.kubeconfig, context=options.context)

    @property
    def namespace(self) -> str:
        """The namespace that is meant, empty for all."""
        options = self._options
        if options.all_namespaces:
            return ""
        return str(
            options.namespace or apiserver.default_namespace(options.kubeconfig, options.context)
        )

    def pods(self) -> list[Object]:
        """Return the pods that are meant; UnavailableError if they may not be listed."""
        query = {"labelSelector": self._options.selector}
        return self._api.items(self.path("pods"), query)[0]

    def path(self, kind: str) -> str:
        """Return where objects of a core kind are, of the namespace that is meant."""
        space = self.namespace
        return f"/api/v1/namespaces/{space}/{kind}" if space else f"/api/v1/{kind}"

    def seen(self, pods: Sequence[Object]) -> holders.Seen:
        """Return those pods, and what lies around them as far as it may be read."""
        return holders.Seen(
            pods=pods,
            nodes=self.items("/api/v1/nodes", "devices without a name: you may not list nodes"),
            slices=self._items_of_claims("resourceslices"),
            claims=self._items_of_claims("resourceclaims"),
        )

    def items(
        self, path: str, without: str, query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return a list; *without* is said where it may not be read, and it is empty then."""
        try:
            return self._api.items(path, query or {})[0]
        except apiserver.ServerError as exc:
            if exc.status not in (403, 404):
                raise
            log.say(without)
            return []

    def told(self, nodes: Collection[str] | None) -> dict[str, figures.Told | None]:
        """Return what the agents of *nodes* say, of all if None; None for one that is silent."""
        space = self._options.agent_namespace
        answers = agents.told(self._api, space, nodes)
        if answers is None:
            log.say(f"nothing is known of use: you may not list pods in {space}")
            return {}
        silent = {node: said for node, said in answers.items() if isinstance(said, str)}
        if silent:
            node, said = next(iter(silent.items()))
            log.say(
                f"nothing is known of use on {len(silent)} of {len(answers)} nodes, such as "
                f"{node}: {said}; it takes the right to get pods/proxy in {space}, and a network "
                "that lets the API server reach the agents"
            )
        return {node: None if isinstance(said, str) else said for node, said in answers.items()}

    def print(self, *pages: tuple[str, Sequence[tables.Column], Sequence[tables.Row]]) -> None:
        """Print tables, each with what it is called in JSON."""
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
        """Say, as kubectl does, that there is nothing."""
        where = f" in {self.namespace} namespace" if self.namespace else ""
        print(f"No {what} found{where}.", file=sys.stderr)

    def _items_of_claims(self, kind: str) -> list[Object]:
        try:  # claims are there in few clusters, so nobody is told what he does not miss
            return self._api.items(f"{_RESOURCES}/{kind}", {})[0]
        except apiserver.ServerError as exc:
            if exc.status not in (403, 404):
                raise
            return []
