"""What a container gets: its CDI edits, its folder and region files, the driver's limits."""
