"""Tables in docs/ agree with the code: options, simulated models, claims of the demo."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

from pyvgpu import models
from pyvgpu.cli import kubectl
from pyvgpu.cli.main import COMMANDS
from pyvgpu.demo import assertions
from pyvgpu.demo.oversubscribe import notebook_claims
from pyvgpu.models import MIB

ROOT = Path(__file__).parents[2]
PAGES = {  # pages that are not named like their command
    "device-plugin": ("agent", "gaia"),
    "cdi": ("containers",),
    "claim-controller": ("dra",),
    "manifests": ("install",),
    "slurm-plugin": ("slurm",),
    "status-page": ("status",),
}


def pages_of(command):
    found = (ROOT / "docs" / f"{name}.md" for name in PAGES.get(command, (command,)))
    return [page for page in found if page.exists()]


DOCUMENTED = [entry for entry in COMMANDS if pages_of(entry[0])]


def options_of(module):
    """Return the options of a command from its parser, each with its value's name."""
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(module).prepare_parser(parser)
    return {
        " ".join([action.option_strings[-1], *value_of(action)])
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }


def value_of(action):
    """Return the name of an option's value in --help, in a list; empty if it takes none."""
    if action.nargs == 0:
        return []
    return [action.metavar or action.dest.upper()]


def table_of(page):
    """Return the options in the first column of a page's tables."""
    rows = re.findall(r"^\| `(--[^`]+)` \|", page.read_text(), re.MULTILINE)
    return {row.replace("\\|", "|") for row in rows}


@pytest.mark.parametrize(("command", "module", "summary"), DOCUMENTED)
def test_table_of_options_matches_the_parser(command, module, summary):
    documented = set().union(*map(table_of, pages_of(command)))
    assert documented == options_of(module)


def test_kubectl_page_has_the_options_of_its_commands():
    own = [module for name, module, _ in kubectl.COMMANDS if name != "explain"]
    assert table_of(ROOT / "docs" / "kubectl.md") == set().union(*map(options_of, own))


def test_run_and_demo_are_documented():
    assert {"run", "demo"} <= {command for command, _, _ in DOCUMENTED}


def test_table_of_models_matches_the_models():
    page = (ROOT / "docs" / "simulator.md").read_text()
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (\d+) \| (\d+) \| (\d+) \| ([0-9.]+) \|$", page, re.M
    )
    assert rows == [
        (
            model.key,
            str(model.memory_bytes // MIB),
            str(model.context_mib),
            str(model.sm_count),
            model.compute_capability,
        )
        for model in models.MODELS
    ]


def test_demo_page_has_every_claim():
    page = (ROOT / "docs" / "demo.md").read_text()
    rows = re.findall(r"^\| ([a-z][^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    claims = [claim for claim, _ in (*assertions.CLAIMS, *notebook_claims.CLAIMS)]
    assert [row for row in rows if row in claims] == claims
