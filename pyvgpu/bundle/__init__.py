"""What `pyvgpu support-bundle` packs for whoever is asked for help; and that no secret is in it.

``shapes`` says what may leave this machine, field by field; ``machine`` and ``cluster`` read;
``pack`` writes the archive. What no shape names is left out, whatever it is.
"""
