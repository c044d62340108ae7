"""Results of pyvgpu doctor on this machine, and its own proof that a quota is enforced."""

import json
import os
import subprocess

from kit import cuda, shimmed

SECONDS = 100  # two programs after each other, which a busy machine delays
PROOFS = ("memory is held", "time is held")


def run(report):
    simulate = ("--simulate", cuda.simulated()) if cuda.simulated() else ()
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # doctor takes a device by itself
    command = [*shimmed.PYVGPU, "doctor", "--prove", "--json", *simulate]
    try:
        done = shimmed.run(None, command, SECONDS)
    except subprocess.TimeoutExpired:
        report.guarantee("doctor ends", False, f"not done after {SECONDS} s")
        return
    report.fact("exit status", done.returncode)
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        report.guarantee("doctor tells what it found", False, (done.stderr or done.stdout)[-400:])
        return
    for check in checks:
        if check["state"] == "missing":
            report.missing(check["check"], check["found"])
        else:
            report.fact(check["check"], f"{check['state']}: {check['found']}")
    for name, held, detail in evaluate(checks):
        report.guarantee(name, held, detail)


def evaluate(checks):
    """Return (title, held, detail) for each proof among the *checks* of doctor."""
    found = {check["check"]: check for check in checks}
    return [
        (name, name in found and found[name]["state"] == "ok",
         found[name]["found"] if name in found else "not tried")
        for name in PROOFS
    ]  # fmt: skip
