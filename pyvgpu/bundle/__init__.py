"""Contents of `pyvgpu support-bundle`, filtered so that they contain no secrets.

``allow_lists`` has the fields that may leave this machine; ``machine_diagnostics`` and
``cluster_diagnostics`` collect. A field that no list names is left out.
"""
