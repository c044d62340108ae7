"""A real kubelet's expansion of ``$(NAME)`` in arguments, recorded for the unit tests.

``RECORD=1 make e2e SUITE=sidecar PYTESTFLAGS="-k record"`` rewrites the record.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import rig

pytestmark = pytest.mark.e2e

FILE = Path(__file__).parents[3] / "controller/webhook/kubelet_expansion.json"
RECORD = json.loads(FILE.read_text())


def seen(space, elements):
    """Return the arguments that the process of a container sees."""
    one = rig.container("main", 'printf "%s\\0" "$@"; echo')
    one["args"] = ["sh", *elements]
    one["env"] = [{"name": key, "value": text} for key, text in RECORD["environment"].items()]
    # kubelet expands values of variables, too; escape them to keep them literal.
    for variable in one["env"]:
        variable["value"] = variable["value"].replace("$", "$$")
    space.create("pods", rig.pod("p", one))
    space.until("pods", "p", rig.has_ended)
    command = ["kubectl", "--namespace", space.name, "logs", "p"]
    log = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    return log.split("\0")[:-1]


def test_kubelet_expands_as_recorded(space):
    elements = [element for element, _ in RECORD["rows"]]
    rows = [list(pair) for pair in zip(elements, seen(space, elements), strict=True)]
    if os.environ.get("RECORD"):
        FILE.write_text(written({**RECORD, "rows": rows}))
    assert rows == RECORD["rows"]


def written(record):
    """Return the text of the file, with one row per line."""
    head = {key: text for key, text in record.items() if key != "rows"}
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in record["rows"])
    text = json.dumps(head, indent=1, ensure_ascii=False)
    return f'{text[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
