"""The key that seals device choices of pods: a Secret that node agents mount.

Agents accept any of its entries; the scheduler seals with the entry ``key``. So a key is rotated
without a pod being refused: add the next one beside it, wait until every agent has it, swap the
two, and remove the old one once its pods are gone.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import annotations as notes
from pyvgpu.controller.certs import serving_certificate, upkeep
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

ENTRY = "key"


class SealKeys:
    """The keys as last read from the Secret."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        place: serving_certificate.ServerObjects,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._api = api
        self._place = place
        self._random = random
        self._found: tuple[bytes, ...] = ()
        self._upkeep = upkeep.Upkeep("key")
        self.ready = threading.Event()

    def all(self) -> tuple[bytes, ...]:
        """Return all keys, first the one that seals; only once ``ready``."""
        return self._found

    @property
    def missing(self) -> str:
        """Why they are not ``ready``, for a readiness probe; empty once they are."""
        return "" if self.ready.is_set() else self._upkeep.missing("there is no key yet")

    def run(self, stop: threading.Event) -> None:
        """Maintain the Secret until *stop*."""
        self._upkeep.run(self.poll, stop)

    def poll(self) -> None:
        """Read the Secret, and create the key if there is none.

        DataError if an entry is invalid; ServerError if the Secret cannot be read or written.
        """
        data = self._entries()
        names = [ENTRY, *sorted(data.keys() - {ENTRY})]
        self._found = tuple(self._read(name, data[name]) for name in names)
        self.ready.set()

    def _entries(self) -> objects.Object:
        secret = serving_certificate.read_secret(self._api, self._place)
        data = objects.section(secret, "data")
        if ENTRY in data:
            return data
        # If the Secret was emptied, restore the key that pods are sealed with.
        made = self._found[0] if self._found else self._random(notes.LEAST_KEY_BYTES)
        entries = {**data, ENTRY: base64.b64encode(made).decode()}
        try:
            self._api.call("PUT", self._place.secret, body={**secret, "data": entries})
        except apiserver.ServerError as exc:
            if exc.status != apiserver.CONFLICT:
                raise
            theirs = objects.section(
                serving_certificate.read_secret(self._api, self._place), "data"
            )
            if ENTRY not in theirs:
                raise
            return theirs  # another replica created it first
        log.info("created a key in Secret %s/%s", self._place.namespace, self._place.name)
        return entries

    def _read(self, name: str, text: object) -> bytes:
        try:
            key = base64.b64decode(str(text), validate=True)
        except ValueError:
            key = b""
        if len(key) < notes.LEAST_KEY_BYTES:
            raise errors.DataError(
                f"Secret {self._place.namespace}/{self._place.name}: entry {name} has "
                f"{len(key)} bytes: must have at least {notes.LEAST_KEY_BYTES}, such as "
                "`head -c 32 /dev/urandom` gives"
            )
        return key
