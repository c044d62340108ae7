"""Claim templates for pods with plain resource limits; quotas over a namespace's claims."""
