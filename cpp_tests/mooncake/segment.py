"""Lends memory to a Mooncake pool until SIGTERM or SIGINT.

segment.py MASTER BYTES [FOLDER]: prints "ready" once the memory is mounted. Ends with 0 after it was taken
back, which removes what is stored in it. With a folder, what the master evicts from memory is kept there.
"""

import signal
import sys

ENDS = {signal.SIGINT, signal.SIGTERM}
# Before any thread is there, so that all inherit it: only the wait below takes these signals.
signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)

from mooncake.store import MooncakeDistributedStore  # noqa: E402

master, size = sys.argv[1], int(sys.argv[2])
store = MooncakeDistributedStore()
disk = {"enable_ssd_offload": True, "ssd_offload_path": sys.argv[3]} if sys.argv[3:] else {}
code = store.setup("127.0.0.1", "P2PHANDSHAKE", size, 1 << 20, "tcp", "", master, **disk)
if code != 0:
    sys.exit(f"setup: {code}")
print("ready", flush=True)
signal.sigwait(ENDS)
code = store.close()
if code not in (0, None):
    sys.exit(f"close: {code}")
