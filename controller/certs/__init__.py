"""Serving certificates of the cluster's programs: self-signed, mounted, or from a signer."""
