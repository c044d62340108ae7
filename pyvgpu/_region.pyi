"""What the build writes from csrc/core/region.h: the layout, as cffi has it."""

from typing import Any

ffi: Any
