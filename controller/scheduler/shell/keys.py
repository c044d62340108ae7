"""The key that seals what was chosen for pods: a Secret, which node agents have mounted.

Whoever opens takes any of its entries; what is sealed now is sealed with the entry ``key``. So a
key is exchanged without a pod being refused: put the next one beside it, wait until every agent
has it, exchange the two, and take the former away once its pods are gone.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import annotations as notes
from pyvgpu.controller import identity, objects, server

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

ENTRY = "key"
LOOK_SECONDS = 60
_AGAIN_SECONDS = 2


class Keys:
    """The keys as the Secret had them last."""

    def __init__(
        self,
        api: server.Server,
        place: identity.Place,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._api = api
        self._place = place
        self._random = random
        self._found: tuple[bytes, ...] = ()
        self.ready = threading.Event()

    def all(self) -> tuple[bytes, ...]:
        """Return all keys, first the one that seals; only once they are ``ready``."""
        return self._found

    def run(self, stop: threading.Event) -> None:
        """Look after the Secret until *stop*."""
        while not stop.is_set():
            try:
                self.look()
            except errors.PyVgpuError as exc:
                log.warning("did not read the key: %s", exc)
                stop.wait(_AGAIN_SECONDS)
            else:
                stop.wait(LOOK_SECONDS)

    def look(self) -> None:
        """Read the Secret, and make the key where there is none.

        DataError if what is there is none, and nothing is known yet.
        """
        while True:
            secret = identity.read_secret(self._api, self._place)
            data = objects.section(secret, "data")
            if ENTRY in data:
                break
            # Of an emptied Secret it is what pods are sealed with.
            made = self._found[0] if self._found else self._random(notes.LEAST_KEY_BYTES)
            entries = {**data, ENTRY: base64.b64encode(made).decode()}
            try:
                self._api.call("PUT", self._place.secret, body={**secret, "data": entries})
            except server.ServerError as exc:
                if not exc.outdated:
                    raise
                continue  # another replica was first
            log.info("made a key in Secret %s/%s", self._place.namespace, self._place.name)
        names = [ENTRY, *sorted(data.keys() - {ENTRY})]
        self._found = tuple(self._read(name, data[name]) for name in names)
        self.ready.set()

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
