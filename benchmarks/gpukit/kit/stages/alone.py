"""Shares of time, alone: the device's own clock against what was asked."""

from kit import cuda, together

LENGTHS_NS = (300_000, 3_000_000, 30_000_000, 20_000)
SHARES = (50, 10, 90)
SECONDS = 2.5
POINTS = 5  # by which a share may be off before the promise is broken


def run(report):
    cuda.calibrate_alone()
    for length in LENGTHS_NS:
        for share in SHARES:
            if cuda.simulated() is None and length < 100_000:
                continue  # from Python, short kernels leave the device idle between launches
            one(report, length, share)


def one(report, length, share):
    tenant = together.Tenant(share, length)
    (had,) = together.play([tenant], SECONDS)
    report.figure(f"{tenant.title}: share", had, "%")
    report.promise(
        f"{tenant.title}: not over its share", had <= share + POINTS, f"{had:.1f} of {share}"
    )
