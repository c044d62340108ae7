"""Contents of `pyvgpu support-bundle`, filtered so that they contain no secrets.

``shapes`` has the allow-lists of fields that may leave this machine; ``machine`` and ``cluster``
collect; ``pack`` writes the archive. A field that no shape names is left out.
"""
