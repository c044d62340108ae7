"""Cluster-side programs that watch and change pods; in each, pure code makes the decisions."""
