"""HTML report of a demonstration: verdicts, and charts of time and memory.

The page is one self-contained file without network access or scripts. matplotlib draws the charts;
it is an optional dependency, because nothing else needs it.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import importlib.util
import io
import string
import time
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import errors
from pyvgpu.demo import shares
from pyvgpu.demo.observations import GIB, SHARERS, TENANTS, EventKind, Role
from pyvgpu.quantity import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyvgpu.demo.assertions import ClaimVerdict
    from pyvgpu.demo.observations import Observations

STEP_SECONDS = 0.25  # of the picture of shares
_INK, _GREY = "#24292f", "#8b949e"
_COLOURS = {  # distinguishable with colour blindness, too (Okabe and Ito)
    Role.STEADY: "#009e73",
    Role.GROWER: "#e69f00",
    Role.DOOMED: "#cc79a7",
    Role.SMALL: "#0072b2",
    Role.LARGE: "#d55e00",
    Role.IDLE: "#56b4e9",
}
_STYLE: Any = {
    "svg.hashsalt": "pyvgpu",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}
_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
<title>$title</title>
<style>
body { margin: 2rem auto; max-width: 56rem; padding: 0 1rem; background: #fff; color: #24292f;
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.about { color: #57606a; margin-top: .2rem; }
p.sum { font-size: 1.1rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid #d0d7de; padding: .45rem .6rem .45rem 0; vertical-align: top; }
td.mark { white-space: nowrap; font-weight: 600; }
.holds { color: #1a7f37; }
.failed { color: #cf222e; }
.seen { color: #57606a; overflow-wrap: anywhere; }
figure { margin: 0; }
img { width: 100%; height: auto; }
figcaption { color: #57606a; font-size: .9rem; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="about">$about</p>
<p class="sum $kind">$sum</p>
<table>
$rows
</table>
$figures
</body>
</html>
""")


@dataclasses.dataclass(frozen=True, slots=True)
class _Picture:
    """A chart of the page."""

    heading: str
    caption: str
    svg: bytes


def check_possible(path: Path) -> None:
    """Raise unless a report can be created and written to *path*."""
    if importlib.util.find_spec("matplotlib") is None:
        raise errors.UnavailableError(
            "--report: matplotlib, which draws the charts, is not installed; "
            "`pip install 'pyvgpu[report]'` installs it"
        )
    try:
        possible = not path.is_dir() and path.parent.is_dir()
    except OSError as exc:
        raise errors.UsageError(
            f"--report '{path}': {errors.reason_of(exc)}; must name a file, such as report.html"
        ) from exc
    if not possible:
        raise errors.UsageError(
            f"--report '{path}': must name a file in an existing folder, such as report.html"
        )


def write(path: Path, seen: Observations, verdicts: Sequence[ClaimVerdict]) -> None:
    """Write the page about *seen* to *path*."""
    text = page(seen, verdicts, time.strftime("%Y-%m-%d %H:%M"))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise errors.OutputError(f"{path}: cannot be written: {exc.strerror}") from exc


def page(seen: Observations, verdicts: Sequence[ClaimVerdict], when: str) -> str:
    """Return the page about *seen*, created at *when*."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        pictures = (_draw_time(seen), _draw_memory(seen), _draw_quotas(seen))
    holding = sum(verdict.holds for verdict in verdicts)
    plan = seen.plan
    return _PAGE.substitute(
        title="pyvgpu: tenants of one device",
        about=html.escape(
            f"{plan.device}, {format_size(plan.memory)}; {len(TENANTS)} tenants; {when}; "
            f"pyvgpu {pyvgpu.__version__}"
        ),
        kind="holds" if holding == len(verdicts) else "failed",
        sum=f"{holding} of {len(verdicts)} claims hold",
        rows="\n".join(map(_row, verdicts)),
        figures="\n".join(map(_figure, pictures)),
    )


def _row(verdict: ClaimVerdict) -> str:
    kind, mark = ("holds", "✓ holds") if verdict.holds else ("failed", "✗ failed")
    claim, seen = html.escape(verdict.claim), html.escape(verdict.seen)
    return (
        f'<tr><td class="mark {kind}">{mark}</td>'
        f'<td><strong>{claim}</strong><br><span class="seen">{seen}</span></td></tr>'
    )


def _figure(picture: _Picture) -> str:
    heading, caption = html.escape(picture.heading), html.escape(picture.caption)
    source = base64.b64encode(picture.svg).decode("ascii")
    return (
        f"<h2>{heading}</h2>\n<figure>"
        f'<img alt="{heading}: {caption}" src="data:image/svg+xml;base64,{source}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _draw_time(seen: Observations) -> _Picture:
    """Draw each tenant's share of the device's time, by the kernels that it completed."""
    figure = _new_figure(3.4)
    axes = figure.subplots()
    window = shares.window(seen)
    if window:
        axes.axvspan(window.begin, window.end, color="#f0f3f6", linewidth=0)
    begin, end = _span(seen)
    for role, vcore in SHARERS.items():
        points = shares.series(shares.done(seen, role), end, STEP_SECONDS)
        axes.step(*_percent(points), color=_COLOURS[role], linewidth=1.8, label=str(role))
        axes.axhline(vcore, color=_COLOURS[role], linewidth=1, linestyle=(0, (4, 3)))
        _say_beside(axes, vcore, f"{role}: {vcore}", _COLOURS[role])
    idle = shares.series(shares.counted(seen.samples, Role.IDLE), end, STEP_SECONDS)
    axes.step(*_percent(idle), color=_COLOURS[Role.IDLE], linewidth=1.8)
    _say_beside(axes, 0, "idle", _COLOURS[Role.IDLE])
    _scale(axes, (begin, end), 100, "% of the device's time")
    caption = f"Completed kernels in steps of {STEP_SECONDS:g} s; dashed: the vcore. " + (
        "Shares are measured in the shaded time."
        if window
        else "The tenants did not run concurrently."
    )
    return _Picture("Achieved share over time", caption, _save(figure))


def _draw_memory(seen: Observations) -> _Picture:
    """Draw the memory of each tenant, and its quota."""
    figure = _new_figure(0.95 * len(TENANTS) + 0.4)
    rows = figure.subplots(len(TENANTS), sharex=True)
    begin, end = _span(seen)
    times = [sample.seconds for sample in seen.samples]
    killed = seen.first(Role.DOOMED, EventKind.KILLED)
    for role, axes in zip(TENANTS, rows, strict=True):
        quota = seen.plan.quota(role) / GIB
        held = [sample.of(role).charged / GIB for sample in seen.samples]
        axes.fill_between(times, held, step="post", color=_COLOURS[role], alpha=0.75, linewidth=0)
        axes.axhline(quota, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        _say_beside(axes, quota / 2, f"{role}\n{quota:.2f} GiB", _INK)
        _scale(axes, (begin, end), quota * 1.15, "")
        axes.set_yticks([0, quota], ["0", f"{quota:.2g}"])
        if role is Role.DOOMED and killed:
            axes.axvline(killed.seconds, color=_INK, linewidth=1)
            axes.annotate(
                "kill -9",
                (killed.seconds, quota * 0.5),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
    rows[0].set_title("GiB", loc="left", fontsize=9)
    rows[-1].set_xlabel("seconds")
    for axes in rows[:-1]:
        axes.set_xlabel("")
    caption = "Charges of each run's ledger; dashed: its quota. Each has its own scale."
    return _Picture("Memory over time", caption, _save(figure))


def _draw_quotas(seen: Observations) -> _Picture:
    """Draw the most that each tenant used of its quota."""
    figure = _new_figure(3.0)
    axes = figure.subplots()
    window = shares.window(seen)
    bars: list[tuple[str, float, str]] = []
    for role in TENANTS:
        largest = max((x.of(role).charged for x in seen.samples), default=0)
        bars.append((f"{role}, memory", 100 * largest / seen.plan.quota(role), _COLOURS[role]))
    for role, vcore in SHARERS.items():
        had = 100 * shares.of(seen, role, window)[0] if window else 0.0
        bars.append((f"{role}, time", 100 * had / vcore, _COLOURS[role]))
    top = max(105, *(part + 5 for _, part, _ in bars))
    for place, (_, part, colour) in enumerate(bars):
        axes.barh(place, part, height=0.66, color=colour)
        _say_beside(axes, place, f"{part:.1f} %", _INK)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.invert_yaxis()
    axes.axvline(100, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, top)
    axes.set_xlabel("% of the quota")
    caption = "For memory the maximum ever held, for time the share in the shaded time above."
    return _Picture("Use of the quotas", caption, _save(figure))


def _new_figure(height: float) -> Any:
    """Return a figure of that height in inches; without a window, so it needs no display."""
    from matplotlib import figure

    return figure.Figure(figsize=(8, height), layout="constrained")


def _scale(axes: Any, span: tuple[float, float], top: float, label: str) -> None:
    axes.set_xlim(span)
    axes.set_ylim(-0.01 * top, top)
    axes.set_xlabel("seconds")
    axes.set_ylabel(label)


def _percent(points: shares.Points) -> tuple[list[float], list[float]]:
    return [seconds for seconds, _ in points], [100 * share for _, share in points]


def _span(seen: Observations) -> tuple[float, float]:
    """Return the time span that has observations."""
    moments = [x.seconds for x in seen.samples] + [x.seconds for x in seen.events]
    starts = [x.seconds for x in seen.events if x.kind is EventKind.START]
    return max(0.0, min(starts, default=0.0) - 0.5), max(moments, default=1.0)


def _say_beside(axes: Any, height: float, text: str, colour: str) -> None:
    """Write a label to the right of the chart, at a height in data coordinates."""
    axes.annotate(
        text,
        (1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        annotation_clip=False,
    )


def _save(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
