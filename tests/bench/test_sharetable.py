"""Tables of launch patterns and other laws in a record of `make bench-share`."""

import patterns
import sharetable

KEPT = {
    "name": "30/60: both async 300 us",
    "group": "neighbours",
    "law": "slices",
    "evaluated": True,
    "passed": True,
    "control_fails": True,
    "claims": [
        {"mean_error": 0.5, "mean_bound": 1.0, "worst_error": 0.6, "worst_bound": 3.0},
    ],
    "control": [
        {"mean_error": 20.0, "mean_bound": 1.0, "worst_error": 20.0, "worst_bound": 3.0},
    ],
}
MISSED = {
    "name": "90: 1 ms kernels",
    "group": patterns.GROUP,
    "law": "today",
    "evaluated": True,
    "passed": False,
    "claims": [
        {
            "figure": "share, %",
            "least": None,
            "most": 91,
            "value": 95.5,
            "control": 100.0,
            "faults": ["missed"],
        }
    ],
}
UNDER_OTHER_LAWS = """\
*Under other laws*

| row | law | of the bound |
|---|---|---:|
| 30/60: both async 300 us | slices | 50 % |

*Launch patterns*

| program | law | figure | value | bound | control |
|---|---|---|---:|---:|---:|
| **90: 1 ms kernels** (missed) | today | share, % | **95.50** | at most 91 | 100.00 |
"""


def test_other_rows_are_shown_with_their_law_and_misses():
    assert sharetable.table({"rows": [], "others": [KEPT, MISSED]}) == UNDER_OTHER_LAWS


def test_record_without_other_rows_shows_none():
    assert sharetable.table({"rows": []}) == ""
