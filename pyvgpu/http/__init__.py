"""HTTP servers of all programs: endpoints, TLS, and the exposition of metrics."""
