"""Tenants that share the device, and what each had of it by the device's own clock."""

import dataclasses

from kit import shimmed


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    vcore: int | None  # percent; None: without the shim
    kernel_ns: int
    sync: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def title(self):
        quota = "without a quota" if self.vcore is None else f"{self.vcore} percent"
        return f"{quota}, {self.kernel_ns / 1000:g} us{' sync' if self.sync else ''}"


def answers(tenants, seconds):
    """Run *tenants* together; return what each printed."""
    started = []
    for tenant in tenants:
        options = None
        if tenant.vcore is not None:
            options = ["--vcore", tenant.vcore, "--vmemory", "4GiB"]
        program = shimmed.python(
            "from kit import tenant; tenant.main()", tenant.kernel_ns, seconds,
            *(["sync"] if tenant.sync else []),
        )  # fmt: skip
        started.append(shimmed.start(options, program, tenant.environment))
    return shimmed.together(started)


def window(answered):
    """Return begin and end of the time in which all were at work, their beginnings left out."""
    begin = max(answer["kernels"][0][0] for answer in answered)
    end = min(answer["kernels"][-1][1] for answer in answered)
    return begin + (end - begin) // 5, end


def done(answer, begin, end):
    """Return how many kernels ran between *begin* and *end*."""
    return sum(a >= begin and b <= end for a, b in answer["kernels"])


def play(tenants, seconds):
    """Run *tenants* together; return for each the percentage of the device's time it had.

    That is what a kernel takes alone times the kernels done, while all of them were at work: turns
    of others are no time of a tenant.
    """
    answered = answers(tenants, seconds)
    begin, end = window(answered)
    return [
        100 * done(answer, begin, end) * tenant.kernel_ns / max(end - begin, 1)
        for tenant, answer in zip(tenants, answered, strict=True)
    ]
