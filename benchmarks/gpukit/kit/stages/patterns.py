"""Realistic launch patterns, with a time share and without, as ratios in one run."""

import subprocess

from kit import cuda, patterns, shimmed, watch

SECONDS, SIMULATED_SECONDS = 2, 1
SHARES = {
    "held by a host function": (90, 50),
    "held by a value": (90,),
    "long beside short": (99, 50),
    "many grids": (99,),
    "threads": (97,),
    "short-lived processes": (10,),
    "copies beside": (99, 50),
    "cooperative": (50,),
    "nothing beside": (50,),
}
LIMIT_SECONDS = 40


def run(report):
    cuda.calibrate_alone()
    for name in patterns.NAMES:
        bare = play(report, name, None)
        if bare is None:
            continue
        for figure, (value, unit) in bare.items():
            report.figure(f"{name}, without a quota: {figure}", value, unit)
        for share in SHARES[name]:
            limited(report, name, share, bare)


def limited(report, name, share, bare):
    seen = play(report, name, share)
    for figure, (value, unit) in (seen or {}).items():
        title = f"{name}, {share} percent: {figure}"
        report.figure(title, value, unit)
        if bare[figure][0]:
            report.figure(f"{title}, to that without a quota", value / bare[figure][0], "ratio")


def play(report, name, share):
    """Return the figures of a program; None, and say what is missing, if there are none."""
    title = f"{name}, {'without a quota' if share is None else f'{share} percent'}"
    options = None if share is None else ["--vcore", share, "--vmemory", "4GiB"]
    seconds = SIMULATED_SECONDS if cuda.simulated() else SECONDS
    program = shimmed.python("from kit import patterns; patterns.main()", name, seconds)
    process = shimmed.start(options, program)
    try:
        answer = watch.last_line(process, LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        report.missing(title, f"not done after {LIMIT_SECONDS} s")
        return None
    if answer is None or "refused" in answer:
        report.missing(title, answer["refused"] if answer else f"exit code {process.returncode}")
        return None
    return answer
