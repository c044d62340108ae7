"""The driver mirror: find the driver's files, plan a tree of them, create it."""
