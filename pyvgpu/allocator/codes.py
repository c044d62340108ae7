"""Result codes of evaluating a node: whether a pod fits there, or why not.

In a module of their own, because compiled code uses them as C integers.
"""

FITS = 0  # fits, as far as plain numbers show
CLOSED = 1  # no device is open to this pod
SMALL = 2  # no device is large enough
FEWER = 3  # too few devices are large enough for a container
TAKEN = 4  # no device has enough left
FEW = 5  # too few devices have enough left for a container
UNKNOWN = 6  # the node is unknown
NONSENSE = 7  # the request is not valid in the node's units
DAMAGED = 8  # the node's annotation is not valid
APART = 9  # no devices with room are near enough to each other
TOGETHER = 10  # each container fits alone, but not all together
PLACES = 11  # no GPU has places for the MIG instances

FULL = 1_000_000_000  # a device's used part: all of it
BEST = 10  # the highest score
