"""Admission of pods and claims: pure mutations and validations, which a server calls."""
