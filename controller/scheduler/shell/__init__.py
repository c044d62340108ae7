"""I/O of the scheduler extender: API server, lease, HTTP verbs; it decides nothing."""
