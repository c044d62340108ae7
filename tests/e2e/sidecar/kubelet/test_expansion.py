"""What a real kubelet makes of ``$(NAME)`` in arguments: the record that the unit tests rest on.

``RECORD=1 make e2e SUITE=sidecar PYTESTFLAGS="-k record"`` writes the record anew.
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
    """Return what the process of a container with these arguments sees."""
    one = rig.container("main", 'printf "%s\\0" "$@"; echo')
    one["args"] = ["sh", *elements]
    one["env"] = [{"name": key, "value": text} for key, text in RECORD["environment"].items()]
    # Kubelet expands values of variables, too; here they are to be what they are.
    for variable in one["env"]:
        variable["value"] = variable["value"].replace("$", "$$")
    space.create("pods", rig.pod("p", one))
    space.until("pods", "p", rig.has_ended)
    command = ["kubectl", "--namespace", space.name, "logs", "p"]
    log = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    return log.split("\0")[:-1]


def test_kubelet_expands_as_the_record_says(space):
    elements = [element for element, _ in RECORD["rows"]]
    rows = [list(it) for it in zip(elements, seen(space, elements), strict=True)]
    if os.environ.get("RECORD"):
        FILE.write_text(written({**RECORD, "rows": rows}))
    assert rows == RECORD["rows"]


def written(record):
    """Return the text of the file: a row on a line."""
    head = {key: text for key, text in record.items() if key != "rows"}
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in record["rows"])
    text = json.dumps(head, indent=1, ensure_ascii=False)
    return f'{text[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
