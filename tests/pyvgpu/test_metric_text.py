"""Metrics that pyvgpu formats itself are read correctly by Prometheus' own parser."""

from prometheus_client import parser

from pyvgpu.http import metric_text


def test_any_label_value_is_read_back():
    value = 'a"b\\c\nd{}, é'
    labels = metric_text.labels(("one", "other"), (value, "x"))
    text = metric_text.family("f_total", "counter", "What it says.", [(labels, 1.5), ("", 2)])
    (family,) = parser.text_string_to_metric_families(text)
    assert (family.name, family.type, family.documentation) == ("f", "counter", "What it says.")
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"one": value, "other": "x"}, 1.5),
        ({}, 2.0),
    ]
