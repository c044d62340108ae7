"""One Linux machine: its reservations, its arbiter, its processes, cgroups and mounts."""
