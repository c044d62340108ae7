"""Redaction of records: names of hosts and users, UUIDs of devices.

They come in with paths, environments and the last words of a program that failed. Names that
stages give to their facts and figures are the kit's own, and stay.
"""

import contextlib
import functools
import os
import pwd
import re
import socket

SHORTEST = 2  # a name of one letter would be found everywhere
KEPT = {"root", "localhost", "nobody"}  # the last one: user 65534
HOMES = re.compile(r"(?<![\w/])(/home|/Users)/[^/\s'\":,]+")
UUIDS = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
VALUES = ("value", "detail", "reason")


def home_folder():
    """Return this user's home folder; "~" of a user without one, such as in a container."""
    return os.path.expanduser("~")  # noqa: PTH111 - pathlib's raises an error without one


def names():
    """Return what this host and its user are called, and what stands for each instead."""
    found = {}
    host = socket.gethostname()
    for name in (host, host.split(".")[0], socket.getfqdn(), os.environ.get("HOSTNAME", "")):
        found[name] = "HOST"
    with contextlib.suppress(KeyError):
        entry = pwd.getpwuid(os.geteuid())
        found[entry.pw_name] = "USER"
    for variable in ("USER", "LOGNAME", "SUDO_USER"):
        found[os.environ.get(variable, "")] = "USER"
    return {name: other for name, other in found.items()
            if len(name) >= SHORTEST and name not in KEPT}  # fmt: skip


@functools.cache
def _pattern():
    known = sorted(names(), key=len, reverse=True)
    return (
        re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, known))})(?![\w-])") if known else None
    )


def clean(value):
    """Return *value*, whatever JSON has, without such names."""
    if isinstance(value, str):
        home = home_folder()
        if home not in ("/", "/root", "~"):
            value = value.replace(home, "~")
        value = UUIDS.sub(r"\1-UUID", HOMES.sub(r"\1/USER", value))
        return _pattern().sub(lambda m: names()[m[1]], value) if _pattern() else value
    if isinstance(value, list):
        return [clean(each) for each in value]
    if isinstance(value, dict):
        return {key: clean(each) for key, each in value.items()}
    return value


def without_names(lines):
    """Return *lines*, as report.read_lines gives them, without names of hosts and users."""
    return [
        (kind, {key: clean(value) if key in VALUES else value for key, value in fields.items()})
        for kind, fields in lines
    ]
