"""Request the suspension or resumption of a pod, and wait for the answer of its node's agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import suspensions
from pyvgpu.cli import cluster_options, pod_lookup
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    import argparse

    from pyvgpu.kube.objects import Object

_PERIOD_SECONDS = 0.5
_SHORTEST, _LONGEST = 1, 3600


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of both commands."""
    add = parser.add_argument
    add("pod", metavar="POD", help="the name of the pod")
    cluster_options.add_pods_namespace(parser, "the pod's")
    add("--wait", action="store_true", help="wait until it is done, or cannot be done")
    add(
        "--timeout",
        metavar="SECONDS",
        default="300",
        help=f"how long --wait waits, from {_SHORTEST} to {_LONGEST} (300)",
    )
    cluster_options.add_context(parser)


class SuspensionRequest:
    """The request for one pod."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._seconds = _seconds(options.timeout)
        self._name = pod_lookup.pod_name(options.pod)
        self._waits = bool(options.wait)
        self._api = apiserver.connect(options.kubeconfig, context=options.context)
        self._namespace = options.namespace or apiserver.default_namespace(
            options.kubeconfig, options.context
        )
        self._label = f"pod {self._namespace}/{self._name}"

    def send(self, value: str | None) -> str:
        """Set the annotation, or remove it (None); return a line for the user."""
        thing = pod_lookup.read(self._api, self._namespace, self._name)
        self._check(thing)
        self._check_allowed(thing, value)
        body = {
            "metadata": {
                "uid": objects.section(thing, "metadata").get("uid"),
                "annotations": {names.SUSPEND_ANNOTATION: value},
            }
        }
        try:
            self._api.call("PATCH", self._path, body=body, kind=apiserver.MERGE_PATCH)
        except apiserver.ServerError as exc:
            if exc.status != 403:
                raise
            raise errors.UnavailableError(
                f"{self._label}: you may not annotate it: this needs permission to `patch pods` "
                f"in namespace {self._namespace}, such as ClusterRole edit has"
            ) from exc
        if self._waits:
            return self._wait(value or "", str(objects.section(thing, "spec").get("nodeName")))
        doing = "suspends" if value else "resumes"
        return f"{self._label}: its node's agent {doing} it now; `kubectl vgpu ps` shows its state"

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{self._name}"

    def _check(self, thing: Object) -> None:
        found = pod_request.read(thing, None)
        if found is None:
            raise errors.UsageError(
                f"{self._label}: requests no share of a device ({names.VCORE_RESOURCE}); "
                "`kubectl vgpu ps` lists the pods that do"
            )
        if found.over:
            raise errors.UsageError(f"{self._label}: has ended, and holds no device")
        if not found.node:
            raise errors.UsageError(
                f"{self._label}: has no node yet; `kubectl vgpu explain {self._name}` says why"
            )

    def _check_allowed(self, thing: Object, value: str | None) -> None:
        if suspensions.is_never(objects.section(thing, "metadata", "annotations")):
            what = "it must not be suspended" if value else "it is never suspended to make room"
            raise errors.UsageError(
                f"{self._label}: its annotation {names.SUSPEND_ANNOTATION} is "
                f"{suspensions.NEVER}: {what}; `kubectl annotate pod {self._name} -n "
                f"{self._namespace} {names.SUSPEND_ANNOTATION}-` removes it"
            )

    def _wait(self, value: str, node: str) -> str:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            thing = pod_lookup.read(self._api, self._namespace, self._name)
            answer = suspensions.answer(objects.section(thing, "metadata", "annotations"))
            suspended = answer.state is suspensions.PodState.SUSPENDED
            if answer.message and answer.requested == value:
                raise errors.UnavailableError(f"{self._label}: {answer.message}")
            if suspended and value and answer.requested == value:
                size = quantity.format_size(answer.host_bytes)
                return f"{self._label}: suspended: {size} moved to host memory"
            if not suspended and not value:
                return f"{self._label}: resumed"
            time.sleep(_PERIOD_SECONDS)
        raise errors.UnavailableError(
            f"{self._label}: the agent of node {node} has not done it within {self._seconds:g} "
            "s, and may do it later; it suspends pods with the chart's value agent.suspend=true"
        )


def _seconds(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 4 and _SHORTEST <= int(text) <= _LONGEST):
        raise errors.UsageError(
            f"--timeout {text[:40]!r}: must be whole seconds from {_SHORTEST} to {_LONGEST}, "
            "such as 60"
        )
    return int(text)
