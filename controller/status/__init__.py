"""The status page of the whole cluster: who holds what, who waits and why; it changes nothing."""
