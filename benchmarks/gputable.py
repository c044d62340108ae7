"""Tables of the GPU kit's records for docs/on-real-gpus.md."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import host

from pyvgpu import errors
from pyvgpu.calibration import assumptions, calibration_record, guarantees, machine_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyvgpu.calibration.calibration_record import KitRecord

FOLDER = host.RESULTS / "gpu"
NEVER = "pyvgpu has never run on a GPU."
UNFINISHED = "did not finish"

# What became of a failure, by its stage and claim.
CAUSES = {
    ("quota", "the device holds no more than the quota"): (
        "fixed: [the reserve for a context](memory.md#the-reserve-for-a-context) has the memory "
        "that NVML attributes to no process; not measured on a GPU since"
    ),
    ("tools", "shows the quota"): (
        "remains: [`ncu` is not limited](enforced.md#not-prevented-but-detected)"
    ),
    ("queue", UNFINISHED): (
        "fixed: the stage called the driver from a thread that must not wait while a launch is "
        "blocked; it finished on the H200"
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A claim that failed in some tests of a stage, or a stage that did not finish."""

    stage: str
    claim: str
    tests: int
    example: str


def records(folder: Path = FOLDER) -> list[KitRecord]:
    """Return all records in *folder*, the last first; DataError for one that is not of a GPU."""
    found = [calibration_record.load(path) for path in sorted(folder.glob("*.json"))]
    for device in found:
        if device.simulated:
            raise errors.DataError(
                f"{device.path}: a record of a simulated device: must be of a GPU; remove it"
            )
    return sorted(found, key=lambda it: it.begun, reverse=True)


def summary(found: Sequence[KitRecord]) -> str:
    """Return the first paragraph of the page."""
    if not found:
        return (
            f"{NEVER} Its tests run on a [simulated driver](simulator.md), and on NVIDIA's own\n"
            "libraries without a GPU. What they cannot show, a record of the GPU kit can.\n"
        )
    count = "one machine with a GPU" if len(found) == 1 else f"{len(found)} machines with a GPU"
    return f"pyvgpu was measured on {count}: see the [results](#results), the last one first.\n"


def text(found: Sequence[KitRecord], picture: str) -> str:
    """Return the results; *picture* is the name of that of the shares."""
    if not found:
        return "There is no record yet.\n"
    parts = []
    if drawn(found):
        parts.append(f"![shares of time: vcore and measured]({picture})\n")
    return "\n".join([*parts, *(_section(device) for device in found)])


def drawn(found: Sequence[KitRecord]) -> list[guarantees.TimeShare]:
    """Return the shares that the picture shows: those of the last record."""
    return list(guarantees.shares(found[0])) if found else []


def _section(of: KitRecord) -> str:
    return "\n".join(_parts(of))


def _parts(of: KitRecord) -> Iterator[str]:
    yield f"### {of.device}, {of.date}\n"
    yield (
        f"Driver {of.driver}, CUDA {_cuda(of)}, Linux {of.fact('facts', 'kernel')}, sandbox: "
        f"{of.fact('facts', 'sandbox')}; GPU kit {of.kit}. The record is `{of.path.name}` in "
        "`benchmarks/results/gpu/`.\n"
    )
    if of.conditions:
        yield "Conditions:\n"
        yield "".join(f"- {condition}\n" for condition in of.conditions)
    evaluated = guarantees.evaluate(of)
    outcomes = [outcome for guarantee in evaluated for outcome in guarantee.outcomes]
    yield _table(
        ("guarantee", "verdict", "tried", "words"),
        (
            (guarantee.name, guarantee.verdict, str(len(guarantee.outcomes)), _words(guarantee))
            for guarantee in evaluated
            if guarantee.source or guarantee.outcomes
        ),
    )
    if found := failures(of):
        yield "Failed claims, and stages that did not finish:\n"
        yield _table(
            ("stage", "failure", "tests", "for example", "today"),
            ((it.stage, it.claim, str(it.tests), it.example, _today(it)) for it in found),
        )
    inconclusive = [outcome for outcome in outcomes if outcome.held is None]
    if inconclusive:
        yield "Inconclusive measurements:\n"
        yield "".join(f"- {outcome.what}: {outcome.seen}\n" for outcome in inconclusive)
    yield from _figures(of)


def failures(of: KitRecord) -> list[Failure]:
    """Return the failures of a record: those of claims, then the stages that did not finish."""
    outcomes = [it for guarantee in guarantees.evaluate(of) for it in guarantee.outcomes]
    return [*_failed(outcomes), *_unfinished(of)]


def _failed(outcomes: Iterable[guarantees.TestOutcome]) -> Iterator[Failure]:
    """Yield the claims that failed, each with the number of its tests that did."""
    found: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.held is False:
            stage, _, rest = outcome.what.partition(": ")
            subject, _, claim = rest.rpartition(": ")
            example = f"{subject}: {outcome.seen}" if subject else outcome.seen
            found.setdefault((stage, claim), []).append(example)
    for (stage, claim), examples in found.items():
        yield Failure(stage, claim, len(examples), examples[0])


def _unfinished(of: KitRecord) -> Iterator[Failure]:
    for stage in of.unfinished:
        yield Failure(stage.name, UNFINISHED, 1, stage.reason or stage.state)


def _today(failure: Failure) -> str:
    return CAUSES.get((failure.stage, failure.claim), "not examined yet")


def _figures(of: KitRecord) -> Iterator[str]:
    try:
        model = machine_values.model(of)
    except errors.UsageError:
        yield "The simulator has no model of this device, so its figures are not compared.\n"
        return
    lines = assumptions.compare(assumptions.RowInputs(of, machine_values.values(of), model))
    differing = [line for line in lines if line.differs]
    known = sum(line.measured is not None for line in lines)
    yield f"Of {known} assumed figures, {len(differing)} differ here.\n"
    if differing:
        yield _table(
            ("figure", "assumed", "measured", "what it means"),
            (
                (
                    value.title,
                    assumptions.shown(value.assumed, value.unit),
                    assumptions.shown(value.measured, value.unit),
                    value.consequence,
                )
                for value in differing
            ),
        )


def _cuda(of: KitRecord) -> str:
    version = of.fact("facts", "CUDA version")
    return f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) else "unknown"


def _words(evaluated: guarantees.EvaluatedGuarantee) -> str:
    return f'"{evaluated.words}" ({evaluated.source})' if evaluated.words else ""


def _table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
