"""The right device on the right node: a scheduler extender, its pure part and its shell."""
