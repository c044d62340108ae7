"""Suspension of pods: their device memory is moved to host memory, and back."""
