"""Time shares beside other tenants.

On the simulator they are shown and not guaranteed: its clock is the computer's, on which tenants
and driver compute as well. There `make test-share` measures them, by a clock of its own.
"""

from kit import binaries, cuda, together
from kit import report as reports
from kit.together import Tenant

US, MS = 1_000, 1_000_000
SECONDS, SIMULATED_SECONDS = 3, 2
SCENES = (
    (Tenant(None, 300 * US), Tenant(None, 300 * US)),
    (Tenant(30, 300 * US), Tenant(60, 300 * US)),
    (Tenant(30, 3 * MS), Tenant(60, 300 * US)),
    (Tenant(30, 300 * US), Tenant(60, 3 * MS)),
    (Tenant(20, 300 * US), Tenant(30, MS), Tenant(40, 3 * MS)),
    (Tenant(30, 300 * US), Tenant(None, 300 * US)),
    (Tenant(30, 20 * US), Tenant(60, 300 * US)),
    (Tenant(30, 300 * US), Tenant(30, 300 * US), Tenant(30, 300 * US)),
)


def run(report):
    cuda.calibrate_alone()
    for scene in SCENES:
        name = " beside ".join(tenant.title for tenant in scene)
        if reports.seconds_left() < 3 * SECONDS:
            report.missing(name, "no time was left")
            continue
        try:
            shares = together.play(scene, SIMULATED_SECONDS if cuda.simulated() else SECONDS)
        except binaries.NotHereError as exc:
            report.missing("tenant", exc)
            return
        for place, (tenant, had) in enumerate(zip(scene, shares, strict=True)):
            alike = scene[:place].count(tenant)
            title = f"{name}: {tenant.title}" + (f" ({alike + 1})" if alike else "")
            together.tell(report, title, title, had)
            if not cuda.simulated():
                together.evaluate(report, title, tenant, had)
