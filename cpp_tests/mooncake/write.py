"""Stores with Mooncake's own Python client what read_back.py reads.

write.py MASTER KEYS BYTES NAME: the keys NAME/0 and on, in one batch, each of BYTES bytes.
"""

import ctypes
import sys

from mooncake.store import MooncakeDistributedStore


def content(key, size):
    """As `content` in abi.c."""
    return bytes((i * 31 + key * 7 + (i >> 12)) & 255 for i in range(size))


master, count, size, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master) == 0
buffer = ctypes.create_string_buffer(b"".join(content(i, size) for i in range(count)), count * size)
address = ctypes.addressof(buffer)
assert store.register_buffer(address, count * size) == 0
keys = [f"{name}/{i}" for i in range(count)]
stored = store.batch_put_from(keys, [address + i * size for i in range(count)], [size] * count)
assert stored == [0] * count, stored
assert store.unregister_buffer(address) == 0
store.close()
print(f"the Python client stored {count} keys of {size} bytes")
