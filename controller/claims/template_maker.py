"""Creates claim templates at admission, before the pods that name them exist."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.claims import templates
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

SECONDS = 3.0  # timeout of a request; the API server waits for our admission review meanwhile
_GONE, _THERE = 404, 409
_NEVER = (403, 422)  # refused by a policy, or by Kubernetes' validation


class TemplateMaker:
    """Creates templates; :meth:`run` watches those that exist."""

    def __init__(self, api: apiserver.ApiServer, counting: informer.Counting) -> None:
        self._api = api
        self._seen = informer.Informer(
            api, templates.ALL, templates.OURS, templates.read, lambda _: None, counting
        )

    def run(self, stop: threading.Event) -> None:
        """Watch the templates until *stop*."""
        self._seen.run(stop)

    @property
    def synced(self) -> bool:
        """Whether all templates were listed."""
        return self._seen.synced.is_set()

    def ensure(self, namespace: str, specs: Mapping[str, Object], dry_run: bool) -> None:
        """Create the missing templates, by name, and note a use so that they last for the new pod.

        A dry run creates them with dryRun=All. PermissionDeniedError if the API server rejects one
        for good, such as by a policy; UnavailableError if it fails for now.
        """
        now = datetime.datetime.now(datetime.UTC)
        for name, spec in specs.items():
            known = self._seen.get(f"{namespace}/{name}")
            if templates.is_noted(known, now) or (dry_run and known):
                continue
            try:
                if dry_run:
                    self._create(namespace, name, spec, {"dryRun": "All"})
                elif not self._note(namespace, name):
                    self._create(namespace, name, spec, {})
                    log.info("created template %s/%s", namespace, name)
            except apiserver.ServerError as exc:
                text = f"template {name} of its claim could not be created: {exc}"
                if exc.status in _NEVER:
                    raise errors.PermissionDeniedError(text) from exc
                raise errors.UnavailableError(text) from exc

    def _note(self, namespace: str, name: str) -> bool:
        """Note that a template is used now; return whether it exists."""
        body = {"metadata": templates.used_now()}
        path = templates.path(namespace, name)
        try:
            self._api.call("PATCH", path, None, body, apiserver.MERGE_PATCH, SECONDS)
        except apiserver.ServerError as exc:
            if exc.status != _GONE:
                raise
            return False
        return True

    def _create(self, namespace: str, name: str, spec: Object, query: Mapping[str, str]) -> None:
        new = templates.make(namespace, name, spec)
        try:
            self._api.call("POST", templates.path(namespace), query, new, seconds=SECONDS)
        except apiserver.ServerError as exc:
            if exc.status != _THERE:  # another replica has just created it
                raise
