#!/usr/bin/env python3
"""Release checks: `make release`, and the bill of materials of `make dist`.

release.py check            list what prevents the checked-out commit from being released
release.py bill FOLDER      write the bill of materials (CycloneDX) of this machine's wheel in
                            FOLDER with its dependencies

A release is a commit with a tag such as v0.1.0, which gives the package its version. The
changelog, the chart and the images in manifests have the version of the coming release.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).parents[1]
EXTRAS = "kubernetes,node"  # also in the bill of materials
_ENTRY = re.compile(r"^## \[([^]]+)\](?: - (.*))?$", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
UNRELEASED = "unreleased"


def main() -> None:
    """Run the command given on the command line."""
    match sys.argv[1:]:
        case ["check"]:
            found = problems(changelog(), charted(), tags())
            found += unclean()
            sys.exit("\n".join(f"release: {problem}" for problem in found) or 0)
        case ["bill", folder]:
            install_and_bill(pathlib.Path(folder).absolute())
        case _:
            sys.exit(__doc__)


def problems(text: str, chart: tuple[str, str], tagged: list[str]) -> list[str]:
    """Return what is wrong with a release of a commit that has the tags *tagged*.

    *text* is the changelog, *chart* the version and appVersion of the chart.
    """
    if not tagged:
        return [
            "this commit has no tag: `git tag v0.1.0` names a release",
            *disagreements(text, chart),
        ]
    wrong = disagreements(text, chart)
    version, date = next(iter(entries(text)), ("", ""))
    if tagged != [f"v{version}"]:
        wrong.append(f"tag {' and '.join(tagged)}: must be v{version}, as in the changelog")
    if date == UNRELEASED:
        wrong.append(f"CHANGELOG.md [{version}]: must have its date, such as 2026-12-01")
    return wrong


def disagreements(text: str, chart: tuple[str, str]) -> list[str]:
    """Return versions that differ between changelog and chart, or are malformed."""
    found = list(entries(text))
    wrong = [
        f"CHANGELOG.md [{version}]: must be a version, such as 0.2.0"
        for version, _ in found
        if not _VERSION.fullmatch(version)
    ]
    wrong += [
        f"CHANGELOG.md [{version}] - {date}: must be a date, such as 2026-12-01"
        + (f", or {UNRELEASED}" if at == 0 else "")
        for at, (version, date) in enumerate(found)
        if not (_DATE.fullmatch(date) or (at == 0 and date == UNRELEASED))
    ]
    if not wrong:
        ordered = [tuple(map(int, version.split("."))) for version, _ in found]
        if sorted(set(ordered), reverse=True) != ordered:
            wrong.append("CHANGELOG.md: versions must descend, each once")
    newest = found[0][0] if found else ""
    wrong += [
        f"Chart.yaml {name} {given}: must be {newest}, as in the changelog"
        for name, given in zip(("version", "appVersion"), chart, strict=True)
        if given != newest
    ]
    return wrong


def entries(text: str) -> list[tuple[str, str]]:
    """Return the versions of a changelog, the newest first, each with its date."""
    return [(version, date or "") for version, date in _ENTRY.findall(text)]


def changelog() -> str:
    """Return the text of the changelog."""
    return (HERE / "CHANGELOG.md").read_text()


def version() -> str:
    """Return the version of the coming release, or of the checked-out one."""
    return entries(changelog())[0][0]


def charted() -> tuple[str, str]:
    """Return the chart's version and appVersion."""
    text = (HERE / "deploy/chart/pyvgpu/Chart.yaml").read_text()
    fields = dict(re.findall(r"^(version|appVersion): *\"?([^\s\"#]+)", text, re.MULTILINE))
    return fields["version"], fields["appVersion"]


def tags() -> list[str]:
    """Return the version tags of this commit; other tags are ignored."""
    return _git("tag", "--points-at", "HEAD", "--list", "v[0-9]*").split()


def unclean() -> list[str]:
    """Return one problem if files differ from the commit."""
    changed = _git("status", "--porcelain", "--untracked-files=no").splitlines()
    return [f"{len(changed)} files differ from the commit: {changed[0]}"] if changed else []


def install_and_bill(folder: pathlib.Path) -> None:
    """Write the bill of materials of this machine's wheel in *folder*, installed alone."""
    machine = sysconfig.get_platform().removeprefix("linux-")
    (wheel,) = folder.glob(f"pyvgpu-*_{machine}.whl")
    for former in folder.glob("pyvgpu-*.cdx.json"):
        former.unlink()
    with tempfile.TemporaryDirectory() as made:
        python = pathlib.Path(made, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", made], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", f"{wheel}[{EXTRAS}]"], check=True)
        # The installer and pip's own dependencies are not part of an installed pyvgpu.
        subprocess.run([*pip, "uninstall", "--yes", "setuptools", "pip"], check=True)
        print(bill(folder, python, wheel.name.split("-")[1]))


def bill(folder: pathlib.Path, python: pathlib.Path, number: str) -> pathlib.Path:
    """Write the bill of materials of pyvgpu *number* and of what *python* has installed."""
    written = folder / f"pyvgpu-{number}.cdx.json"
    tool = pathlib.Path(sys.executable).with_name("cyclonedx-py")
    options = ["--output-reproducible", "--pyproject", HERE / "pyproject.toml"]
    options += ["--output-format", "JSON", "--output-file", written]
    subprocess.run([tool, "environment", *options, python], check=True)
    document = json.loads(written.read_text())
    document["metadata"]["component"]["version"] = number  # pyproject.toml takes it from git
    written.write_text(json.dumps(document, indent=2) + "\n")
    return written


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"release: git says: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
