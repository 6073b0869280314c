"""Reads with Mooncake's own Python client what abi.c stored.

read_back.py MASTER KEYS BYTES NAME: the keys NAME/0 and on, in one batch, each of BYTES bytes.
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
buffer = ctypes.create_string_buffer(count * size)
address = ctypes.addressof(buffer)
assert store.register_buffer(address, count * size) == 0
keys = [f"{name}/{i}" for i in range(count)]
assert store.batch_is_exist(keys + [f"{name}/none"]) == [1] * count + [0]
landed = store.batch_get_into(keys, [address + i * size for i in range(count)], [size] * count)
assert landed == [size] * count, landed
for i in range(count):
    assert buffer.raw[i * size : (i + 1) * size] == content(i, size), keys[i]
assert store.unregister_buffer(address) == 0
store.close()
print(f"the Python client read {count} keys of {size} bytes")
