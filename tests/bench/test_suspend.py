"""The figures of `make bench-suspend`."""

import suspend


def test_seconds_of_each_gib_are_what_more_of_them_take_longer():
    rows = [
        {"gib": 1, "suspend_s": 1.5, "resume_s": 1.25},
        {"gib": 4, "suspend_s": 2.25, "resume_s": 2.0},
    ]
    assert suspend.per_gib(rows) == {"suspend_s_per_gib": 0.25, "resume_s_per_gib": 0.25}
