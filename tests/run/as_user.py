"""Run pyvgpu's command line as another user: as_user.py UID LIBRARIES ARGUMENT...

The interpreter may lie where that user cannot read, so everything is imported first, by a run
of root's own, and the user's run is a fork of it. LIBRARIES is a copy of the built libraries that
everybody can read.
"""

import ctypes
import os
import sys

from pyvgpu import _region
from pyvgpu.cli import main

PR_SET_DUMPABLE = 4

if __name__ == "__main__":
    uid = int(sys.argv[1])
    _region.__file__ = f"{sys.argv[2]}/../_region.py"  # beside which shim.py looks
    simulate = sys.argv[sys.argv.index("--simulate") + 1]
    if main(["run", "--simulate", simulate, "--vmemory", "1GiB", "true"]):
        sys.exit("the run of root's own failed")
    os.environ["XDG_CACHE_HOME"] = f"{os.environ['XDG_CACHE_HOME']}-{uid}"
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # A change of user without an exec takes /proc/self away; an ordinary login has it.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    sys.exit(main(sys.argv[3:]))
