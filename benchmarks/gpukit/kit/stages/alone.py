"""Time shares of a single tenant: the device's own clock against the requested share."""

from kit import binaries, cuda, together
from kit import report as reports

LENGTHS_NS = (300_000, 3_000_000, 30_000_000, 20_000, 5_000, 2_000)
SIMULATED_LENGTHS_NS = LENGTHS_NS[:4]  # its driver runs on processors, which shorter ones fill
SHARES = (50, 10, 90)
SECONDS, SIMULATED_SECONDS = 2.5, 1.5
LONG_NS = 10_000_000  # of kernels that need all of the time


def run(report):
    cuda.calibrate_alone()
    for length in SIMULATED_LENGTHS_NS if cuda.simulated() else LENGTHS_NS:
        # Without a share: what this program can have at all, which for short kernels is less.
        for share in SHARES if cuda.simulated() else (*SHARES, None):
            tenant = together.Tenant(share, length)
            if reports.seconds_left() < 3 * SECONDS:
                report.missing(tenant.title, "no time was left")
                continue
            try:
                one(report, tenant)
            except binaries.NotHereError as exc:
                report.missing("tenant", exc)
                return


def one(report, tenant):
    short = cuda.simulated() and tenant.kernel_ns < LONG_NS
    (had,) = together.play([tenant], SIMULATED_SECONDS if short else SECONDS)
    together.tell(report, f"{tenant.title}: share", tenant.title, had)
    together.evaluate(report, tenant.title, tenant, had)
