"""A command moved into an annotation by the webhook reaches the process byte for byte.

All pods start at once, and each test checks its own.
"""

import base64

import pytest
import rig
import sidecars

pytestmark = pytest.mark.e2e

HARD = {
    "references": ["$(NAME)", "$$(NAME)", "$$$$", "$(NONE)", "a$(NAME)b$(NAME)", "$", "$("],
    "text": ["é ü 語", "two\nlines", "", " ", '"', "'", "\\"],
    "long": ["x" * 100_000],
}
PLACES = ("command", "args", "both")
NAMED = {"name": "NAME", "value": "value"}
SHOWS = "/bin/busybox base64 -w 0 /proc/1/cmdline; echo; trap 'exit 143' TERM; " + rig.RUNS


def pods(space, arguments, place):
    """Return a plain pod, and one with its command moved."""
    words = ["/bin/busybox", "sh", "-c", SHOWS, *HARD[arguments]]
    cut = {"command": len(words), "both": 2, "args": 4}[place]
    side = sidecars.sidecar("")
    side = {**side, "command": words[:cut], "args": words[cut:], "env": [*side["env"], NAMED]}
    name = f"{arguments}-{place}"
    moved = rig.pod(f"{name}-moved", side, rig.container("main", "sleep 1000"))
    moved = sidecars.admitted(space, moved)
    assert moved["spec"]["containers"][0]["command"][0].startswith("$(")
    return rig.pod(f"{name}-plain", side), moved


@pytest.fixture(scope="module")
def shown():
    with rig.space() as made:
        for arguments in HARD:
            for place in PLACES:
                for pod in pods(made, arguments, place):
                    made.create("pods", pod)
        yield made


@pytest.mark.row(21)
@pytest.mark.parametrize("arguments", HARD)
@pytest.mark.parametrize("place", PLACES)
def test_process_sees_the_original_bytes(shown, arguments, place):
    names = [f"{arguments}-{place}-{kind}" for kind in ("plain", "moved")]
    seen = [base64.b64decode(shown.first_line(name, "side")) for name in names]
    assert seen[0]
    assert seen[0] == seen[1]
