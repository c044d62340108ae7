"""Parsing of the quota options that `pyvgpu run` and `pyvgpu set` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import quantity, quota

if TYPE_CHECKING:
    import argparse


def parse(options: argparse.Namespace) -> quota.QuotaChange:
    """Return the values of --vcore, --vmemory, --policy, --vcore-limit and --priority.

    None for an option that is not given.
    """
    size, policy, priority = options.vmemory, options.policy, options.priority
    return quota.QuotaChange(
        vcore=_vcore(options.vcore, "--vcore"),
        vmemory=None if size is None else quantity.parse_size(size, "--vmemory"),
        policy=None if policy is None else quota.TimePolicy.parse(policy, "--policy"),
        vcore_limit=_vcore(options.vcore_limit, "--vcore-limit"),
        priority=None if priority is None else quota.Priority.parse(priority, "--priority"),
    )


def _vcore(text: str | None, option: str) -> int | None:
    return None if text is None else quantity.parse_vcore(text, option)
