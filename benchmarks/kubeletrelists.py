"""Times at which kubelet noticed ended containers, from its log: it polls about once a second."""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DIED = re.compile(
    r'I(?P<at>\d{4} \d\d:\d\d:\d\d\.\d{6}) .*"SyncLoop \(PLEG\): event for pod" '
    r'pod="(?P<pod>[^"]*)" event=\{.*"Type":"ContainerDied","Data":"(?P<container>[0-9a-f]*)"\}'
)


@dataclasses.dataclass(frozen=True, slots=True)
class Relist:
    """Kubelet's first relist of a container that has ended."""

    pod: str  # namespace/name
    container: str  # the id, without the runtime's name before it
    at: float  # in seconds since 1970


def read(lines: Iterable[str], now: datetime.datetime) -> Iterator[Relist]:
    """Yield what is in a log that was written in the year before *now*, in the same time zone."""
    for line in lines:
        if found := _DIED.match(line):
            at = datetime.datetime.strptime(f"{now.year}{found['at']}", "%Y%m%d %H:%M:%S.%f")
            at = at.replace(tzinfo=now.tzinfo)
            if at > now:
                at = at.replace(year=now.year - 1)
            yield Relist(found["pod"], found["container"], at.timestamp())
