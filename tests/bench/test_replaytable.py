"""Tables of replay records: what is within the bound, and what is bold."""

import replaytable

ROWS = [
    {
        "trace": "one",
        "vcore": None,
        "beside": None,
        "bare_busy": 40,
        "to_ideal": 1.0,
        "held": 40.0,
    },
    {"trace": "one", "vcore": 25, "beside": None, "bare_busy": 40, "to_ideal": 1.04, "held": 27.0},
    {"trace": "one", "vcore": 50, "beside": None, "bare_busy": 40, "to_ideal": 1.06, "held": 48.0},
    {
        "trace": "one",
        "vcore": 30,
        "beside": "two",
        "bare_busy": 40,
        "to_ideal": 1.2,
        "control_to_ideal": 1.15,
        "held": 28.0,
    },
    {
        "trace": "two",
        "vcore": 70,
        "beside": "one",
        "bare_busy": 80,
        "to_ideal": 1.2,
        "control_to_ideal": 0.9,
        "held": 66.0,
    },
]


def test_bound_is_of_the_ideal_or_of_the_control_if_that_is_longer():
    kept = [line.kept for line in replaytable.lines({"rows": ROWS})]
    assert kept == [True, False, True, False]


def test_more_than_the_share_is_beyond_the_bound():
    rows = [{**row, "held": row["held"] + 10} for row in ROWS]
    assert not any(line.kept for line in replaytable.lines({"rows": rows}))
    text = replaytable.table({"rows": rows})
    assert "| one | 40 % | 1.00 | 1.04 (**37.0 %**) | **1.06** (**58.0 %**) |" in text
    assert "| one | 30 | two | 1.20 | 1.15 | **38.0 %** |" in text


def test_tables_have_a_row_for_each_program_and_each_part_of_a_pair():
    text = replaytable.table({"rows": ROWS})
    assert "*Alone*: 1 of 2 within the bound." in text
    assert "| one | 40 % | 1.00 | 1.04 | **1.06** |" in text
    assert "*In pairs*: 1 of 2 within the bound." in text
    assert "| one | 30 | two | 1.20 | 1.15 | 28.0 % |" in text
    assert "| two | 70 | one | **1.20** | 0.90 | 66.0 % |" in text
