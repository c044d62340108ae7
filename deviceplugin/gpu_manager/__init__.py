"""Compatibility with gpu-manager and gpu-admission."""
