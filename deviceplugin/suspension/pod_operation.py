"""Suspend or resume all containers of one pod: all of them are suspended, or none."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyvgpu import errors, region
from pyvgpu.run import suspend_operation

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyvgpu.deviceplugin.suspension.container_tenant import ContainerTenant
    from pyvgpu.run import checkpoint_calls

    Saved = Mapping[str, dict[int, suspend_operation.Need]]  # by grant


class PodOperation:
    """One suspension or resumption of a pod."""

    def __init__(
        self,
        tenants: Sequence[ContainerTenant],
        calls: checkpoint_calls.Calls,
        stopped: threading.Event,
        saved: Saved,
    ) -> None:
        self._parts = [
            (
                tenant,
                suspend_operation.Operation(tenant, calls, stopped, saved[tenant.grant.id]),
            )
            for tenant in tenants
        ]

    def suspend(
        self, order: suspend_operation.SuspendOrder, claim: Callable[[int], object]
    ) -> None:
        """Suspend all containers; after an error, take_back() is to be called.

        *claim* is called with the bytes that will be in host memory, and may refuse them.
        """
        needed = 0
        for tenant, part in self._parts:
            if not tenant.read().gated:
                with _naming(tenant):
                    needed += sum(need.total for need in part.check().values())
        if needed:
            claim(needed)
        for tenant, part in self._parts:
            with _naming(tenant):
                part.suspend(order)

    def take_back(self) -> None:
        """Resume all containers, however long it takes until a stopped one continues.

        Errors as of resume().
        """
        self._each(
            lambda tenant, part: part.resume() if tenant.read().suspended else part.recover()
        )

    @property
    def moved(self) -> dict[str, suspend_operation.MovedMemory]:
        """What it has moved so far, by grant."""
        return {tenant.grant.id: part.moved for tenant, part in self._parts}

    def resume(self) -> None:
        """Resume each container that can be; the first error is raised at the end.

        LostError if one can never be: its processes are killed.
        """
        self._each(lambda _, part: part.resume())

    def _each(self, act: Callable[[ContainerTenant, suspend_operation.Operation], object]) -> None:
        failed: errors.PyVgpuError | None = None
        for tenant, part in self._parts:
            try:
                with _naming(tenant):
                    act(tenant, part)
            except suspend_operation.LostError as exc:
                part.kill()
                tenant.mark(region.Suspension())
                failed = exc
            except errors.PyVgpuError as exc:
                failed = failed or exc
        if failed is not None:
            raise failed


@contextlib.contextmanager
def _naming(tenant: ContainerTenant) -> Iterator[None]:
    """Write the name of the container before an error."""
    try:
        yield
    except suspend_operation.LostError as exc:
        raise suspend_operation.LostError(f"container {tenant.name}: {exc}") from exc
    except (errors.PyVgpuError, OSError) as exc:
        raise errors.UnavailableError(f"container {tenant.name}: {exc}") from exc
