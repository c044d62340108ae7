"""Evaluation of GPU kit records: assumed and measured values, and kept or broken guarantees.

Nothing here measures. `benchmarks/gpukit` creates the records, `pyvgpu calibrate` shows them, and
the page docs/on-real-gpus.md is generated from them.
"""
