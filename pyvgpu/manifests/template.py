"""Templates as helm's, of which this is a part: text with actions in double braces.

Known are `if`, `else if`, `else`, `with`, `range` over lists, `define`, comments, and pipelines of
values and functions: `.` and `$` with fields below them, strings, whole numbers, `true` and
`false`, parentheses; a field that is a function is called, as `.Files.Get` is. Variables are not
known, nor whatever else there is: what has it is an error.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ACTION = re.compile(r"\{\{(-(?=\s))?(\s*/\*.*?\*/\s*|.*?)((?<=\s)-)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"""\s+|(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>\d+)\b|(?P<mark>[|()])
    |(?P<path>\$?(?:\.[A-Za-z]\w*)+|\$|\.)|(?P<word>[A-Za-z]\w*)""",
    re.VERBOSE,
)
_COMMENT = re.compile(r"\s*/\*.*\*/\s*", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "nil": None}


class TemplateError(errors.DataError):
    """A template that is none, or that says itself that it cannot be rendered."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """What a template sees."""

    dot: Any
    root: Any
    engine: Engine

    def at(self, dot: Any) -> Scope:
        """Return the same with another dot."""
        return Scope(dot, self.root, self.engine)


class Engine:
    """Functions, and the templates that were defined in any file."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions
        self._defined: dict[str, Block] = {}

    def add(self, text: str, name: str) -> Block:
        """Read the template *text* of file *name*; what it defines is known from now on."""
        return _Parser(text, name, self._defined).block()

    def render(self, block: Block, data: Any) -> str:
        """Return what a template makes of *data*."""
        return block.render(Scope(data, data, self))

    def include(self, name: str, data: Any) -> str:
        """Return what a defined template makes of *data*."""
        if name not in self._defined:
            raise TemplateError(f"include {name!r}: no template defines it")
        return self.render(self._defined[name], data)

    def function(self, name: str, where: str) -> Callable[..., Any]:
        """Return the function of this name; TemplateError if there is none."""
        if name == "include":
            return self.include
        if name not in self._functions:
            raise TemplateError(f"{where}: {name}: there is no such function")
        return self._functions[name]


def true(value: Any) -> bool:
    """Tell whether a condition holds: not of what is empty, 0 or nothing."""
    return bool(value)


def shown(value: Any) -> str:
    """Return a value as it stands in the text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Text and actions, one after the other."""

    parts: tuple[str | Action, ...]

    def render(self, scope: Scope) -> str:
        """Return what it makes."""
        return "".join(
            part if isinstance(part, str) else part.render(scope) for part in self.parts
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """A value that is shown, or a choice between blocks."""

    kind: str  # show, if, with or range
    value: Pipeline
    then: Block = Block(())
    otherwise: Block = Block(())

    def render(self, scope: Scope) -> str:
        """Return what it makes."""
        found = self.value.of(scope)
        if self.kind == "show":
            return shown(found)
        if not true(found):
            return self.otherwise.render(scope)
        if self.kind == "if":
            return self.then.render(scope)
        if self.kind == "with":
            return self.then.render(scope.at(found))
        if not isinstance(found, list):
            raise TemplateError(f"{self.value.where}: range: must be a list")
        return "".join(self.then.render(scope.at(it)) for it in found)


@dataclasses.dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each with what the one before it gave as its last argument."""

    commands: tuple[tuple[Operand, ...], ...]
    where: str

    def of(self, scope: Scope) -> Any:
        """Return its value."""
        given: list[Any] = []
        for first, *rest in self.commands:
            called = first.function(scope, self.where)
            arguments = [it.of(scope, self.where) for it in rest] + given
            if called is None:
                if arguments:
                    raise TemplateError(f"{self.where}: something is given to what is no function")
                given = [first.of(scope, self.where)]
                continue
            try:
                given = [called(*arguments)]
            except TypeError as exc:
                raise TemplateError(f"{self.where}: {first.value}: {exc}") from exc
        return given[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A constant, a path, a function's name or a pipeline in parentheses."""

    kind: str
    value: Any

    def function(self, scope: Scope, where: str) -> Callable[..., Any] | None:
        """Return the function that this is, if it is one."""
        if self.kind == "word":
            return scope.engine.function(self.value, where)
        found = self.of(scope, where) if self.kind == "path" else None
        return found if callable(found) else None

    def of(self, scope: Scope, where: str) -> Any:
        """Return its value."""
        if self.kind == "pipeline":
            return self.value.of(scope)
        if self.kind != "path":
            return self.value
        found = scope.root if self.value.startswith("$") else scope.dot
        for field in filter(None, self.value.lstrip("$").split(".")):
            if not isinstance(found, dict):
                raise TemplateError(f"{where}: {self.value}: there is nothing that has {field}")
            found = found.get(field)
        return found


class _Parser:
    """Reads one file."""

    def __init__(self, text: str, name: str, defined: dict[str, Block]) -> None:
        self._name = name
        self._defined = defined
        self._pieces = self._cut(text)
        self._ending: tuple[str, str, str] | None = None  # the action that ended a block

    def block(self) -> Block:
        """Return the whole file."""
        found = self._block()
        if self._ending:
            raise TemplateError(f"{self._ending[2]}: {self._ending[0]}: there is nothing to end")
        return found

    def _cut(self, text: str) -> Iterator[str | tuple[str, str, str]]:
        """Give text, and actions: their first word, the rest, and where they are."""
        at, trim = 0, False
        for match in _ACTION.finditer(text):
            before = text[at : match.start()]
            before = before.lstrip() if trim else before
            yield before.rstrip() if match[1] else before
            at, trim = match.end(), bool(match[3])
            if not _COMMENT.fullmatch(match[2]):
                word, _, rest = match[2].strip().partition(" ")
                line = 1 + text.count("\n", 0, match.start())
                yield word, rest, f"{self._name}:{line}"
        yield text[at:].lstrip() if trim else text[at:]

    def _block(self) -> Block:
        """Return what comes until an `else`, an `end` or the end of the file."""
        parts: list[str | Action] = []
        self._ending = None
        for piece in self._pieces:
            if isinstance(piece, str):
                parts.append(piece)
                continue
            word, rest, where = piece
            if word in ("else", "end"):
                self._ending = piece
                break
            if word == "define":
                self._define(rest, where)
            elif word in ("if", "with", "range"):
                parts.append(self._choice(word, rest, where))
            else:
                parts.append(Action("show", _pipeline(f"{word} {rest}", where)))
        return Block(tuple(parts))

    def _define(self, rest: str, where: str) -> None:
        name = json.loads(rest)
        self._defined[name] = self._block()
        self._must_end("define", where)

    def _choice(self, kind: str, rest: str, where: str) -> Action:
        then, otherwise = self._block(), Block(())
        if self._ending and self._ending[0] == "else":
            more = self._ending[1].strip()
            if more:
                word, _, condition = more.partition(" ")
                otherwise = Block((self._choice(word, condition, where),))
                return Action(kind, _pipeline(rest, where), then, otherwise)
            otherwise = self._block()
        self._must_end(kind, where)
        return Action(kind, _pipeline(rest, where), then, otherwise)

    def _must_end(self, kind: str, where: str) -> None:
        if not self._ending or self._ending[0] != "end":
            raise TemplateError(f"{where}: {kind}: has no end")
        self._ending = None


def _pipeline(text: str, where: str) -> Pipeline:
    tokens = list(_tokens(text, where))
    found, rest = _commands(tokens, where)
    if rest:
        raise TemplateError(f"{where}: {text.strip()}: ends before its end")
    return found


def _tokens(text: str, where: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise TemplateError(f"{where}: {text[at:].strip()}: is nothing that is known here")
        at = match.end()
        if match.lastgroup:
            yield match.lastgroup, match[0]


def _commands(tokens: list[tuple[str, str]], where: str) -> tuple[Pipeline, list[tuple[str, str]]]:
    commands: list[list[Operand]] = [[]]
    while tokens:
        kind, text = tokens.pop(0)
        if text == ")" and kind == "mark":
            tokens.insert(0, (kind, text))
            break
        if text == "|" and kind == "mark":
            commands.append([])
        elif text == "(" and kind == "mark":
            inner, tokens = _commands(tokens, where)
            if not tokens or tokens.pop(0)[1] != ")":
                raise TemplateError(f"{where}: a parenthesis is not closed")
            commands[-1].append(Operand("pipeline", inner))
        else:
            commands[-1].append(_operand(kind, text))
    if not all(commands):
        raise TemplateError(f"{where}: there is a command with nothing in it")
    return Pipeline(tuple(map(tuple, commands)), where), tokens


def _operand(kind: str, text: str) -> Operand:
    if kind == "string":
        return Operand("constant", json.loads(text))
    if kind == "number":
        return Operand("constant", int(text))
    if text in _CONSTANTS:
        return Operand("constant", _CONSTANTS[text])
    return Operand(kind, text)
