"""Every command in a ```console block of README.md and docs/ runs and prints the shown output.

A block is one shell session, together with following blocks below `<!-- same session -->`. Lines
after "$ " are commands, "> " continues one, anything else is output, in which "..." matches any
text.
"""

import doctest
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import rights
import waiting
from generator import pages

from pyvgpu.cli import top

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
MARK = "\x1e"
AS_SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAME = re.compile(
    r"^```\n(?:(?!```).)*?^<!-- same session -->\n+```console\n", re.MULTILINE | re.DOTALL
)
BLOCKS = [
    pytest.param(match[1], id=f"{page.stem}-{index}")
    for page in PAGES
    for index, match in enumerate(BLOCK.finditer(SAME.sub("", page.read_text())))
]


def session(block):
    """Return the commands of a block and the output shown for each."""
    commands, shown = [], []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
            shown.append("")
        elif line.startswith("> "):
            commands[-1] += f"\n{line[2:]}"
        else:
            shown[-1] += f"{line}\n"
    return commands, shown


def with_names_of_its_own(block):
    """Make run names unique: they are shared by the whole machine, and so by concurrent tests."""
    for name in set(re.findall(r"--name ([-a-z0-9]+)", block)):
        block = re.sub(rf"(?<![-\w]){name}(?![-\w])", f"{name}-{secrets.token_hex(4)}", block)
    return block


@pytest.fixture
def environment(tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYVGPU_", "LD_", "CUDA_"))}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYVGPU_SIMULATED_MACHINES": str(tmp_path / "machines"),
        "PYTHONWARNINGS": "ignore",
        "COLUMNS": "100",
    }


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_commands_print_what_the_page_shows(block, environment):
    commands, shown = session(with_names_of_its_own(block))
    script = "".join(f"{command}\nprintf '{MARK}'\n" for command in commands)
    ran = subprocess.run(
        ["sh", "-c", script],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=waiting.WHOLE,
        check=False,
    )
    results = ran.stdout.split(MARK)
    assert len(results) == len(commands) + 1, f"the session ended early: {ran.stdout}"
    for command, expected, result in zip(commands, shown, results, strict=False):
        matches = doctest.OutputChecker().check_output(
            expected, rights.without_line(result), AS_SHOWN
        )
        assert matches, f"{command}\nexpected:\n{expected}\nprinted:\n{result}"


def test_pages_have_console_blocks():
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_relative_links_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        there = page.parent / target
        made = {(ROOT / "docs" / name).resolve() for name in pages.REFERENCE}
        assert there.exists() or there.resolve() in made, f"{page.name} links to {target}"


def test_recorded_demo_has_the_current_claims():
    from pyvgpu.demo import assertions

    recorded = (ROOT / "docs" / "demo.md").read_text()
    for claim, _ in assertions.CLAIMS:
        assert f"\nholds   {claim}\n" in recorded
    assert f"\n{len(assertions.CLAIMS)} of {len(assertions.CLAIMS)} claims hold\n" in recorded


def test_the_picture_of_top_shows_three_runs():
    assert "(docs/pictures/top.svg)" in (ROOT / "README.md").read_text()
    picture = (ROOT / "docs" / "pictures" / "top.svg").read_text()
    text = re.sub(r"<[^>]*>|&#160;", " ", picture)  # tags, and spaces
    assert "3 runs on 1 device" in " ".join(text.split())
    for column in top._COLUMNS:
        assert column.heading in text, "the columns have changed: make terminal-pictures"
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", picture), "it loads nothing from elsewhere"


def test_the_picture_of_the_oversubscribed_demo_has_the_current_claims():
    from pyvgpu.demo.oversubscribe import notebook_claims

    picture = (ROOT / "docs" / "pictures" / "demo-oversubscribe.svg").read_text()
    text = " ".join(re.sub(r"<[^>]*>|&#160;", " ", picture).split())
    for claim, _ in notebook_claims.CLAIMS:
        assert f"holds {claim}" in text, "the claims have changed: make terminal-pictures"
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", picture), "it loads nothing from elsewhere"


def test_the_newest_record_is_named():
    newest = max((ROOT / "benchmarks" / "results" / "gpu").glob("*.json")).stem
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert re.search(
        rf"The latest measurements on a real GPU are of an? \w+, on {newest[:10]} ", readme
    )
