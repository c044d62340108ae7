"""Values: files over files, `--set` over all, as helm reads them."""

import pytest

from pyvgpu import errors
from pyvgpu.manifests import values


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        pytest.param("a=b", {"a": "b"}, id="string"),
        pytest.param("a.b.c=1", {"a": {"b": {"c": 1}}}, id="number"),
        pytest.param("a=true,b=false,c=null", {"a": True, "b": False, "c": None}, id="words"),
        pytest.param(
            "a=007,b=1.5,c=-3,d=", {"a": "007", "b": "1.5", "c": -3, "d": ""}, id="looks"
        ),
        pytest.param("a={x,2,true}", {"a": ["x", 2, True]}, id="list"),
        pytest.param("a={}", {"a": []}, id="empty-list"),
        pytest.param("a[0].k=v,a[1].k=w", {"a": [{"k": "v"}, {"k": "w"}]}, id="elements"),
        pytest.param("a[0][1]=v", None, id="gap"),
        pytest.param(r"a.b\.c/d=e", {"a": {"b.c/d": "e"}}, id="escaped-dot"),
        pytest.param(r"a=x\,y,b=z", {"a": "x,y", "b": "z"}, id="escaped-comma"),
        pytest.param(r"a={x\,y,z}", {"a": ["x,y", "z"]}, id="escaped-in-list"),
        pytest.param("a=b=c", {"a": "b=c"}, id="equals"),
        pytest.param("a", None, id="no-value"),
        pytest.param("=b", None, id="no-name"),
        pytest.param("a..b=c", None, id="empty-name"),
    ],
)
def test_a_setting_is_read_as_helm_does(setting, found):
    if found is None:
        with pytest.raises(errors.UsageError, match="--set "):
            values.apply({}, setting)
    else:
        assert values.apply({}, setting) == found


def test_a_setting_that_is_a_string_stays_one():
    found = values.apply({}, "a.b=true,c={1,null}", strings=True)
    assert found == {"a": {"b": "true"}, "c": ["1", "null"]}


def test_a_setting_changes_what_is_there_and_nothing_else():
    before = {"a": {"b": 1, "c": [{"d": 2}, 3]}}
    assert values.apply(before, "a.c[0].d=4") == {"a": {"b": 1, "c": [{"d": 4}, 3]}}
    assert before == {"a": {"b": 1, "c": [{"d": 2}, 3]}}


def test_what_is_given_goes_over_the_defaults_and_null_takes_away():
    defaults = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, 2], "f": 3}
    given = values.over({"a": {"b": 4, "x": None}}, {"a": {"c": None}, "e": [5]})
    assert values.merge(defaults, given) == {"a": {"b": 4}, "e": [5], "f": 3}


@pytest.mark.parametrize("text", ["- a", "a: [", "x", "\x00"])
def test_a_file_that_has_no_values_is_said(text):
    with pytest.raises(errors.DataError, match="mine.yaml: "):
        values.parse(text, "mine.yaml")


def test_what_looks_like_a_date_is_a_string_and_an_empty_file_says_nothing():
    assert values.parse("a: 2026-11-22", "x") == {"a": "2026-11-22"}
    assert values.parse("# nothing", "x") == {}
