"""CDI devices for claims with adminAccess: to look at devices takes nothing from anybody.

Who looks at devices when another driver comes has to end and begin again, for none but that one
speaks to the kernel's part then; and kubelet does not ask for the claim once more. So what it was
given is described anew.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin import containers
from pyvgpu.volumes import cdi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = "pyvgpu.io-admin-", ".json"


class Looking:
    """Describes them in the folder *specifications*, for the driver that there is."""

    def __init__(
        self, specifications: Path, driver: Callable[[], containers.Driver | None]
    ) -> None:
        self._folder = specifications
        self._driver = driver
        self._changing = threading.Lock()
        self._tree: Path | None = None  # of the driver for which all of them are described

    def admit(self, uid: str, uuids: Sequence[str]) -> str:
        """Describe devices, by UUID, for the claim with that *uid*; return the CDI device."""
        driver = self._driver()
        if driver is None:
            raise errors.UnavailableError("the node has no driver now")
        with self._changing:
            self._describe(uid, uuids, driver)
        return f"{names.ADMIN_KIND}={uid}"

    def dismiss(self, uid: str) -> None:
        """Describe them no more."""
        try:
            with self._changing:
                self._file(uid).unlink(missing_ok=True)
        except OSError as exc:
            raise errors.of_files(f"{self._file(uid)}: cannot be removed", exc) from exc

    def follow(self) -> None:
        """Describe all of them by the driver that has come, if it is another."""
        driver = self._driver()
        with self._changing:
            if driver is None or driver.tree == self._tree:
                return
            for uid, uuids in self._known():
                try:
                    self._describe(uid, uuids, driver)
                except errors.PyVgpuError as exc:
                    log.warning("claim %s looks at devices by an older driver: %s", uid, exc)
            self._tree = driver.tree

    def _describe(self, uid: str, uuids: Sequence[str], driver: containers.Driver) -> None:
        document = containers.looking(names.ADMIN_KIND, uid, uuids, driver)
        cdi.write(document, self._file(uid))

    def _known(self) -> Iterator[tuple[str, list[str]]]:
        """Give the claims that look at devices, by uid, and the UUIDs of these."""
        for file in self._folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            try:
                (only,) = json.loads(file.read_bytes())["devices"]
                uuids = json.loads(only["annotations"][names.ADMIN_KIND])
                yield str(only["name"]), [str(it) for it in uuids]
            except (OSError, ValueError, LookupError, TypeError) as exc:
                log.warning("%s is none of ours, or damaged: %r", file, exc)

    def _file(self, uid: str) -> Path:
        if "/" in uid:
            raise errors.DataError(f"claim uid {uid!r}: is none")
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"
