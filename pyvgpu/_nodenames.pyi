"""What the build writes from csrc/scheduler/nodenames.h: its functions, as cffi has them."""

from typing import Any

ffi: Any
