"""Our store "mooncake-tcp" and Mooncake's own Python client on one pool: who moves a batch of pages faster, lookups and
confirmations included. With --mooncake our store "mooncake" and the same functions of Mooncake's C library, called bare. See
scripts/bench.

Time is the clock's, since most of it passes in other processes: run it on a machine that does nothing else.
"""

import argparse
import ctypes as c
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples", "lend"))

import kvbridge as kvb  # noqa: E402
from suite import Suite  # noqa: E402

# Bytes of a page, pages of a batch.
BATCHES = [(4 << 10, 64), (16 << 10, 64), (64 << 10, 64), (256 << 10, 64), (1 << 20, 32)]
MOONCAKE_BATCHES = [(64 << 10, 64), (1 << 20, 32)]


class Ours:
    """A store of ours that lends the pool nothing. Only the calls are timed: an engine has their arrays in C, and that the interpreter is
    slow to fill them is nobody's merit. With "mooncake", whose calls may be late, a kvb_store copies what it moves."""

    def __init__(self, ours, master, **kvbridge):
        settings = {
            "model_key": "bench",
            "master_server_address": master,
            "global_segment_size": 0,
            "protocol": "tcp",
            "kvbridge": kvbridge,
        }
        self.library = ours
        self.store = kvb.Store(ours, settings)

    def _call(self, function, keys, address, size, wanted, *more):
        names, count = kvb.texts(keys), len(keys)
        pieces = (kvb.Piece * count)(*((address + i * size, size) for i in range(count)))
        out = (c.c_int32 * count)()
        start = time.perf_counter()
        self.library.call(function, self.store.handle, names, pieces, c.c_size_t(count), out, *more)
        spent = time.perf_counter() - start
        assert set(out) == {wanted}, list(out)
        return spent

    def put(self, keys, address, size):
        return self._call("kvb_store_put", keys, address, size, kvb.PUT_STORED)

    def get(self, keys, address, size):
        sizes = (c.c_uint64 * len(keys))()
        return self._call("kvb_store_get", keys, address, size, kvb.GET_LANDED, sizes)

    def close(self):
        self.store.free()


class Theirs:
    """The same of Mooncake's."""

    def __init__(self, master, address, size):
        # Not beside the C library: each brings all of Mooncake.
        from mooncake.store import MooncakeDistributedStore

        self.client = MooncakeDistributedStore()
        assert self.client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master) == 0
        assert self.client.register_buffer(address, size) == 0

    def put(self, keys, address, size):
        places = [address + i * size for i in range(len(keys))]
        start = time.perf_counter()
        codes = self.client.batch_put_from(keys, places, [size] * len(keys))
        spent = time.perf_counter() - start
        assert set(codes) == {0}, codes
        return spent

    def get(self, keys, address, size):
        places = [address + i * size for i in range(len(keys))]
        start = time.perf_counter()
        sizes = self.client.batch_get_into(keys, places, [size] * len(keys))
        spent = time.perf_counter() - start
        assert set(sizes) == {size}, sizes
        return spent

    def close(self):
        self.client.close()


class Bare:
    """The C functions that the store "mooncake" calls, of the same library. Made after that store, which bounds the library's waits."""

    def __init__(self, master, mooncake, address, size):
        self.functions = c.CDLL(mooncake)
        self.functions.mooncake_store_create.restype = c.c_void_p
        # It blocks signals in the thread that calls it.
        maker = threading.Thread(target=self._make, args=(master, address, size))
        maker.start()
        maker.join()
        assert self.code == 0, self.code

    def _make(self, master, address, size):
        self.client = c.c_void_p(self.functions.mooncake_store_create())
        lent = own = c.c_uint64(0)
        self.code = self.functions.mooncake_store_setup(
            self.client, b"127.0.0.1", b"P2PHANDSHAKE", lent, own, b"tcp", b"", master.encode()
        ) or self.functions.mooncake_store_register_buffer(
            self.client, c.c_void_p(address), c.c_size_t(size)
        )

    def _arguments(self, keys, address, size):
        count = len(keys)
        names = (c.c_char_p * count)(*(key.encode() for key in keys))
        places = (c.c_void_p * count)(*(address + i * size for i in range(count)))
        sizes = (c.c_size_t * count)(*[size] * count)
        return self.client, names, places, sizes, c.c_size_t(count)

    def put(self, keys, address, size):
        arguments, codes = self._arguments(keys, address, size), (c.c_int * len(keys))()
        start = time.perf_counter()
        self.functions.mooncake_store_batch_put_from(*arguments, None, codes)
        spent = time.perf_counter() - start
        assert set(codes) == {0}, list(codes)
        return spent

    def get(self, keys, address, size):
        arguments, sizes = self._arguments(keys, address, size), (c.c_int64 * len(keys))()
        start = time.perf_counter()
        self.functions.mooncake_store_batch_get_into(*arguments, sizes)
        spent = time.perf_counter() - start
        assert set(sizes) == {size}, list(sizes)
        return spent

    def close(self):
        self.functions.mooncake_store_destroy(self.client)


def named(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="the release libkvbridge.so")
    parser.add_argument("master", help="host:port of the pool's master; nobody else uses the pool")
    parser.add_argument("--mooncake", metavar="FILE", help="Mooncake's C library, which is measured instead")
    parser.add_argument("--quick", action="store_true", help="7 rounds instead of 25")
    parser.add_argument("--json", metavar="FILE", help="also write all samples there")
    arguments = parser.parse_args()
    batches = MOONCAKE_BATCHES if arguments.mooncake else BATCHES
    most = max(size * pages for size, pages in batches)
    memory = c.create_string_buffer(os.urandom(most), most)
    address = c.addressof(memory)
    library = kvb.Library(arguments.library)
    if arguments.mooncake:
        ours = Ours(library, arguments.master, store="mooncake", library=arguments.mooncake)
        theirs = Bare(arguments.master, arguments.mooncake, address, most)
        name, against = "mooncake", "of bare calls"
    else:
        ours = Ours(library, arguments.master, store="mooncake-tcp")
        theirs = Theirs(arguments.master, address, most)
        name, against = "wire", "× Mooncake's client"
    suite = Suite(7 if arguments.quick else 25)
    fresh = iter(range(1 << 40))

    def putting(side, size, pages):
        def turn():
            first = next(fresh)
            keys = [f"bench/{first}/{i}" for i in range(pages)]
            spent = side.put(keys, address, size)
            # Room for the next ones; nobody has asked for these, so that no lease holds them.
            assert set(ours.store.remove(keys)) == {kvb.REMOVE_REMOVED}
            return spent / pages

        return turn

    def getting(side, keys, size):
        return lambda: side.get(keys, address, size) / len(keys)

    for size, pages in batches:
        workload = f"{pages} pages of {named(size)}"
        suite.race(
            f"{name}_put", workload, against,
            putting(ours, size, pages), putting(theirs, size, pages),
        )
        keys = [f"bench/{named(size)}/{i}" for i in range(pages)]
        ours.put(keys, address, size)
        suite.race(
            f"{name}_get", workload, against,
            getting(ours, keys, size), getting(theirs, keys, size),
        )
    suite.rows.sort(key=lambda row: row["row"])
    suite.table()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rounds": suite.rounds, "rows": suite.rows}, file, ensure_ascii=False, indent=1)
    ours.close()
    theirs.close()


if __name__ == "__main__":
    main()
