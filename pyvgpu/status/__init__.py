"""The status page: what a browser is given, and the numbers that it shows; it changes nothing."""
