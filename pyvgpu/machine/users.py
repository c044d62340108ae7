"""Names of users, and of their runs."""

from __future__ import annotations

import os
import pwd


def name(uid: int) -> str:
    """Return the name of a user, or the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def run_name(run: str, uid: int) -> str:
    """Return the name by which the caller addresses a *run* of user *uid*: others' as USER/RUN."""
    return run if uid == os.geteuid() else f"{name(uid)}/{run}"
