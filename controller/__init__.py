"""The cluster side: what watches and changes pods. In each part the pure half decides."""
