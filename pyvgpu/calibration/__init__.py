"""What a record of the GPU kit says: what was assumed, what was measured, what was promised.

Nothing here measures. `benchmarks/gpukit` makes the records, `pyvgpu calibrate` shows them, and
the page docs/on-real-gpus.md is made of them.
"""
