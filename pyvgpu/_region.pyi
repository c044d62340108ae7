"""What the build writes from csrc/region.h: the layout, as cffi has it."""

from typing import Any

ffi: Any
