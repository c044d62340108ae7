"""The scenario `oversubscribe`: notebooks that reserve more memory than their device has."""
