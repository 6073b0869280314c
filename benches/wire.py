"""Our store "mooncake-tcp" and Mooncake's own Python client on one pool: who moves a batch of pages faster, lookups and
confirmations included. See scripts/bench.

Time is the clock's, since most of it passes in other processes: run it on a machine that does nothing else.
"""

import argparse
import ctypes as c
import json
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples", "lend"))

import kvbridge as kvb  # noqa: E402
from suite import Suite  # noqa: E402

# Bytes of a page, pages of a batch.
BATCHES = [(4 << 10, 64), (16 << 10, 64), (64 << 10, 64), (256 << 10, 64), (1 << 20, 32)]


class Ours:
    """A client that lends the pool nothing."""

    def __init__(self, library, master):
        settings = {
            "model_key": "bench",
            "master_server_address": master,
            "global_segment_size": 0,
            "kvbridge": {"store": "mooncake-tcp"},
        }
        self.library = library
        self.store = kvb.Store(library, settings)

    def put(self, keys, address, size):
        names, pieces, count, out, _ = self._prepared(keys, address, size)
        start = time.perf_counter()
        self.library.call("kvb_store_put", self.store.handle, names, pieces, count, out)
        spent = time.perf_counter() - start
        assert set(out) == {kvb.PUT_STORED}, list(out)
        return spent

    def get(self, keys, address, size):
        names, pieces, count, out, sizes = self._prepared(keys, address, size)
        start = time.perf_counter()
        self.library.call("kvb_store_get", self.store.handle, names, pieces, count, out, sizes)
        spent = time.perf_counter() - start
        assert set(out) == {kvb.GET_LANDED}, list(out)
        return spent

    @staticmethod
    def _prepared(keys, address, size):
        """The arrays of a call. An engine has them in C; that the interpreter is slow to fill them is nobody's merit."""
        count = len(keys)
        pieces = (kvb.Piece * count)(*((address + i * size, size) for i in range(count)))
        return kvb.texts(keys), pieces, c.c_size_t(count), (c.c_int32 * count)(), (c.c_uint64 * count)()


class Theirs:
    """The same of Mooncake's."""

    def __init__(self, master, address, size):
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


def named(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="the release libkvbridge.so")
    parser.add_argument("master", help="host:port of the pool's master; nobody else uses the pool")
    parser.add_argument("--quick", action="store_true", help="7 rounds instead of 25")
    parser.add_argument("--json", metavar="FILE", help="also write all samples there")
    arguments = parser.parse_args()
    most = max(size * pages for size, pages in BATCHES)
    memory = c.create_string_buffer(os.urandom(most), most)
    address = c.addressof(memory)
    ours = Ours(kvb.Library(arguments.library), arguments.master)
    theirs = Theirs(arguments.master, address, most)
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

    for size, pages in BATCHES:
        workload = f"{pages} pages of {named(size)}"
        suite.race(
            "wire_put", workload, "× Mooncake's client",
            putting(ours, size, pages), putting(theirs, size, pages),
        )
        keys = [f"bench/{named(size)}/{i}" for i in range(pages)]
        ours.put(keys, address, size)
        suite.race(
            "wire_get", workload, "× Mooncake's client",
            getting(ours, keys, size), getting(theirs, keys, size),
        )
    suite.rows.sort(key=lambda row: row["row"])
    suite.table()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rounds": suite.rounds, "rows": suite.rows}, file, ensure_ascii=False, indent=1)
    ours.store.free()
    theirs.client.close()


if __name__ == "__main__":
    main()
