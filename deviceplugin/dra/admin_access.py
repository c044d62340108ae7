"""CDI devices for claims with adminAccess, which monitor devices and consume nothing.

When the driver is replaced, a monitoring container must restart, since only the new driver's
libraries match the kernel module; and kubelet does not prepare the claim again. So the CDI
specifications of admitted claims are rewritten for the new driver.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.volumes import cdi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = "pyvgpu.io-admin-", ".json"


class AdminDevices:
    """Writes them to the folder *specifications*, for the current driver."""

    def __init__(
        self, specifications: Path, driver: Callable[[], cdi_edits.NodeDriver | None]
    ) -> None:
        self._folder = specifications
        self._driver = driver
        self._lock = threading.Lock()
        self._tree: Path | None = None  # driver files for which all of them are written

    def admit(self, uid: str, uuids: Sequence[str]) -> str:
        """Write the CDI device for the claim *uid* with the devices *uuids*; return its name."""
        driver = self._driver()
        if driver is None:
            raise errors.UnavailableError("the node has no driver at present")
        with self._lock:
            self._describe(uid, uuids, driver)
        return f"{names.ADMIN_KIND}={uid}"

    def dismiss(self, uid: str) -> None:
        """Remove the CDI device of the claim *uid*."""
        try:
            with self._lock:
                self._file(uid).unlink(missing_ok=True)
        except OSError as exc:
            raise errors.of_files(f"{self._file(uid)}: cannot be removed", exc) from exc

    def follow(self) -> None:
        """Rewrite all of them if the driver was replaced."""
        driver = self._driver()
        with self._lock:
            if driver is None or driver.tree == self._tree:
                return
            for uid, uuids in self._known():
                try:
                    self._describe(uid, uuids, driver)
                except errors.PyVgpuError as exc:
                    log.warning("admin claim %s still has the older driver: %s", uid, exc)
            self._tree = driver.tree

    def _describe(self, uid: str, uuids: Sequence[str], driver: cdi_edits.NodeDriver) -> None:
        document = cdi_edits.for_admin(names.ADMIN_KIND, uid, uuids, driver)
        cdi.write(document, self._file(uid))

    def _known(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the uid of each admin claim, and the UUIDs of its devices."""
        for file in self._folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            try:
                (only,) = json.loads(file.read_bytes())["devices"]
                uuids = json.loads(only["annotations"][names.ADMIN_KIND])
                yield str(only["name"]), [str(uuid) for uuid in uuids]
            except (OSError, ValueError, LookupError, TypeError) as exc:
                log.warning("%s was not written by pyvgpu, or is damaged: %r", file, exc)

    def _file(self, uid: str) -> Path:
        if "/" in uid:
            raise errors.DataError(f"invalid claim UID {uid!r}")
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"
