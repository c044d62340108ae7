"""Tenants that share the device, and what each had of it by the device's own clock."""

import dataclasses

from kit import shimmed


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    vcore: int | None  # percent; None: without the shim
    kernel_ns: int
    sync: bool = False

    @property
    def title(self):
        quota = "without a quota" if self.vcore is None else f"{self.vcore} percent"
        return f"{quota}, {self.kernel_ns / 1000:g} us{' sync' if self.sync else ''}"


def play(tenants, seconds):
    """Run *tenants* together; return for each the percentage of the device's time it had.

    That is what a kernel takes alone times the kernels done, while all of them were at work: turns
    of others are no time of a tenant.
    """
    started = []
    for tenant in tenants:
        options = None
        if tenant.vcore is not None:
            options = ["--vcore", tenant.vcore, "--vmemory", "4GiB"]
        program = shimmed.python(
            "from kit import tenant; tenant.main()", tenant.kernel_ns, seconds,
            *(["sync"] if tenant.sync else []),
        )  # fmt: skip
        started.append(shimmed.start(options, program))
    kernels = [answer["kernels"] for answer in shimmed.together(started)]
    begin = max(times[0][0] for times in kernels)
    end = min(times[-1][1] for times in kernels)
    settled = begin + (end - begin) // 5
    shares = []
    for tenant, times in zip(tenants, kernels, strict=True):
        done = sum(a >= settled and b <= end for a, b in times)
        shares.append(100 * done * tenant.kernel_ns / max(end - settled, 1))
    return shares
