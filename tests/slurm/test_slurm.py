"""Slurm's own programs, the plugin and the shim, on a simulated machine of two H100."""

import pytest
import waiting
from conftest_placeholder import x
