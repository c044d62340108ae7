"""Objects get callables through their constructors: none is assigned to an object from outside."""

import ast

import pure
import pytest

FOLDERS = ("pyvgpu", "deviceplugin", "controller", "volumes")


def assigned_callables(tree):
    """Return the assignments of a lambda, a partial or an own method to another object."""
    nodes = list(ast.walk(tree))
    methods = {
        node.name
        for outer in nodes
        if isinstance(outer, ast.ClassDef)
        for node in outer.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list  # not a property
    }
    return [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Assign)
        and any(map(_is_of_another, node.targets))
        and _is_callable(node.value, methods)
    ]


def _is_of_another(target):
    return isinstance(target, ast.Attribute) and not (
        isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    )


def _is_callable(value, methods):
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("functools.partial", "partial")
    if isinstance(value, ast.Attribute):
        return ast.unparse(value.value) == "self" and value.attr in methods
    return isinstance(value, ast.Lambda)


def test_no_object_gets_a_callable_after_its_construction():
    trees = {
        path: ast.parse(path.read_text())
        for folder in FOLDERS
        for path in (pure.ROOT / folder).rglob("*.py")
    }
    assert len(trees) > 300
    found = {path.name: assigned_callables(tree) for path, tree in trees.items()}
    assert {name: assigned for name, assigned in found.items() if assigned} == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("other.changed = self.poll", True),
        ("other.changed = lambda: None", True),
        ("other.part.changed = functools.partial(print, 1)", True),
        ("self.changed = self.poll", False),
        ("other.changed = self.poll()", False),
        ("other.changed = self.seen", False),
        ("other.changed = 5", False),
    ],
)
def test_what_counts_as_a_callable(line, found):
    text = f"class Part:\n    def poll(self):\n        {line}\n"
    assert bool(assigned_callables(ast.parse(text))) is found
