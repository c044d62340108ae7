"""I/O of the webhook: node watch and HTTPS server; it decides nothing."""
