"""The part of Go's templates that the chart is written in."""

import pytest

from pyvgpu.manifests import functions, template

DATA = {
    "a": {"name": "x", "list": [1, "two"], "none": [], "zero": 0, "no": False},
    "root": "R",
    "text": 'say "ä" \\ &',
    "Files": {"Get": {"a/b": " x\n"}.get},
}


def render(text, data=DATA):
    engine = template.Engine(functions.FUNCTIONS)
    return engine.render(engine.add(text, "t"), data)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        pytest.param("a{{ .a.name }}b", "axb", id="value"),
        pytest.param("{{ .a.missing }}", "", id="nothing"),
        pytest.param("{{ .a.no }} {{ .a.zero }} {{ true }}", "false 0 true", id="constants"),
        pytest.param(" x \n{{- .root -}}\n y", " xRy", id="trimmed"),
        pytest.param("x{{/* {{ no }} */}}y", "xy", id="comment-with-braces"),
        pytest.param("x {{- /* a\nb */ -}} y", "xy", id="comment"),
        pytest.param(
            "{{ if .a.zero }}1{{ else if .a.none }}2{{ else }}3{{ end }}", "3", id="else"
        ),
        pytest.param(
            "{{ if .a.zero }}1{{ else if .a.list }}2{{ else }}3{{ end }}", "2", id="elif"
        ),
        pytest.param("{{ with .a }}{{ .name }}{{ $.root }}{{ end }}", "xR", id="with"),
        pytest.param("{{ with .a.none }}1{{ else }}{{ .root }}{{ end }}", "R", id="with-else"),
        pytest.param("{{ range .a.list }}[{{ . }}]{{ end }}", "[1][two]", id="range"),
        pytest.param("{{ range .a.none }}1{{ else }}2{{ end }}", "2", id="range-of-nothing"),
        pytest.param("{{ range .a.none }}1{{ end }}", "", id="range-of-nothing-at-all"),
        pytest.param(
            '{{ define "d" }}<{{ . }}>{{ end }}{{ include "d" .root }}', "<R>", id="define"
        ),
        pytest.param('{{ include "d" . }}{{ define "d" }}later{{ end }}', "later", id="before"),
        pytest.param("{{ .root | quote }}", '"R"', id="pipe"),
        pytest.param("{{ .text | quote }}", '"say \\"ä\\" \\\\ &"', id="quote"),
        pytest.param('{{ .a.zero | default "d" }}', "d", id="default"),
        pytest.param('{{ default "d" .root }}', "R", id="no-default"),
        pytest.param("{{ if and .root (not (or .a.no .a.zero)) }}y{{ end }}", "y", id="logic"),
        pytest.param('{{ if eq .root "S" "R" }}y{{ end }}', "y", id="equal-to-one"),
        pytest.param('{{ if ne .root "R" }}y{{ end }}', "", id="unequal"),
        pytest.param('{{ has "two" .a.list }}{{ has "x" .a.list }}', "truefalse", id="has"),
        pytest.param('{{ printf "a-%s-c" .root }}', "a-R-c", id="printf"),
        pytest.param('{{ dir "/run/x/y.sock" }}', "/run/x", id="dir"),
        pytest.param("{{ toJson .a.list }}", '[1,"two"]', id="json"),
        pytest.param('[{{ .Files.Get "a/b" | trim }}]', "[x]", id="file"),
        pytest.param('{{ with .a }}[{{ $.Files.Get "a/b" }}]{{ end }}', "[ x\n]", id="root"),
        pytest.param("k: {{- toYaml .a | nindent 2 }}", None, id="yaml"),
    ],
)
def test_it_makes_what_go_does(text, made):
    if made is None:
        made = 'k:\n  list:\n    - 1\n    - two\n  name: x\n  "no": false\n  none: []\n  zero: 0'
    assert render(text) == made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("\n{{ if .a }}", "t:2: if: has no end", id="no-end"),
        pytest.param("{{ end }}", "t:1: end: there is nothing to end", id="end"),
        pytest.param("{{ else }}{{ end }}", "nothing to end", id="else"),
        pytest.param("{{ $x := 1 }}", "is nothing that is known here", id="variable"),
        pytest.param("{{ lookup }}", "lookup: there is no such function", id="function"),
        pytest.param("{{ .root.x }}", "t:1: .root.x: there is nothing that has x", id="below"),
        pytest.param("{{ (.root }}", "a parenthesis is not closed", id="open"),
        pytest.param("{{ .root ) }}", "ends before its end", id="closed"),
        pytest.param("{{ .root | }}", "a command with nothing in it", id="no-command"),
        pytest.param('{{ include "none" . }}', "no template defines it", id="undefined"),
        pytest.param("{{ dir }}", "t:1: dir: ", id="arguments"),
        pytest.param("{{ .root .text }}", "t:1: .*what is no function", id="no-function"),
        pytest.param("{{ .root | .text }}", "t:1: .*what is no function", id="no-function-after"),
        pytest.param('{{ fail "because" }}', "because", id="fail"),
        pytest.param("{{ range .a }}{{ end }}", "t:1: .*must be a list", id="range-of-a-map"),
    ],
)
def test_what_is_no_template_is_said_with_its_place(text, why):
    with pytest.raises(template.TemplateError, match=why):
        render(text)
