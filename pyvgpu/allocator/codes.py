"""Numbers that stand for what is said of a node: whether a pod has a place there, or why not.

Compiled code has them as numbers of C, so they are in a module of their own.
"""

FITS = 0  # there is a place, as far as numbers tell
CLOSED = 1  # no device is open to this pod
SMALL = 2  # none is large enough
FEWER = 3  # fewer are large enough than a container asks for
TAKEN = 4  # none has so much left
FEW = 5  # fewer have so much left than a container asks for
UNKNOWN = 6  # nothing is known of the node
NONSENSE = 7  # what is asked for is nothing in the node's units
DAMAGED = 8  # what is known of the node cannot be believed
APART = 9  # no devices with room are near enough to each other
TOGETHER = 10  # all containers fit, each of them alone

FULL = 1_000_000_000  # of what is used of a device: all of it
BEST = 10  # of scores
