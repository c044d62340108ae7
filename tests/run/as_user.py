"""Run pyvgpu's command line as another user: as_user.py UID LIBRARIES ARGUMENT...

The interpreter may be in a folder that the user cannot read, so a run as root imports everything
first, and the user's run is a fork of it. LIBRARIES is a copy of the built libraries that every
user can read.
"""

import ctypes
import os
import sys

from pyvgpu import _region
from pyvgpu.cli import main

PR_SET_DUMPABLE = 4

if __name__ == "__main__":
    uid = int(sys.argv[1])
    _region.__file__ = f"{sys.argv[2]}/../_region.py"  # shim.py searches beside it
    simulate = sys.argv[sys.argv.index("--simulate") + 1]
    if main(["run", "--simulate", simulate, "--vmemory", "1GiB", "true"]):
        sys.exit("the run of root's own failed")
    os.environ["XDG_CACHE_HOME"] = f"{os.environ['XDG_CACHE_HOME']}-{uid}"
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # A change of user without exec makes /proc/self unreadable; an ordinary login can read it.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    sys.exit(main(sys.argv[3:]))
