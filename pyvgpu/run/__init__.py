"""`pyvgpu run`: starts a program under a quota, supervises it, and cleans up after it."""
