"""Lends Mooncake's Python client to kvbridge: the store "host" for engines in a Python process.

    lend.py LIBRARY MASTER [SEGMENT_MIB]

stores a few pages through kvbridge in the pool of that master, with a soft pin and a group, and reads
them back. LIBRARY is libkvbridge.so.
"""

import ctypes as c
import sys

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

import kvbridge as kvb

# Codes of Mooncake's.
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
REPLICA_IS_NOT_READY = -703
OBJECT_NOT_FOUND = -704
OBJECT_ALREADY_EXISTS = -705
OBJECT_HAS_LEASE = -706
# A transfer or the master was lost. Buffers of such a call were seen to be written to later.
LOST = {-800, -900, -901}
# Of these, what the master did not answer.
SILENT = {-900, -901}


def abilities():
    """What this build of Mooncake's client can be asked for: (soft pins with a TTL, groups)."""
    config = ReplicateConfig()
    soft_pin = hasattr(config, "soft_pin_ttl_ms") and hasattr(config, "soft_pin_action")
    return soft_pin, hasattr(config, "group_ids")


def check(settings):
    """Refuses settings that this build cannot honour. Call it before a segment is mounted: a server that
    cannot do what it is asked for shall not become a part of the pool."""
    soft_pin, groups = abilities()
    if settings.get("soft_pin_ttl_ms") and not soft_pin:
        raise ValueError("soft_pin_ttl_ms needs Mooncake 0.3.13: its ReplicateConfig has no soft_pin_ttl_ms")
    if settings.get("group_blocks") and not groups:
        raise ValueError("group_blocks needs Mooncake 0.3.13: its ReplicateConfig has no group_ids")


class Lent:
    """A client that is set up, as a table of functions. Keep it until `released` is set."""

    def __init__(self, client, replicas=1, is_tenants=False, confirms=True):
        self.client = client
        self.replicas = replicas
        # Whether puts ask for what they have put, which leases it as a lookup does.
        self.confirms = confirms
        self.released = False
        soft_pin, groups = abilities()
        self.table = kvb.StoreTable(
            c.sizeof(kvb.StoreTable),
            None,
            exist=kvb.BatchFunction(_batch(self._exist)),
            put=kvb.BatchFunction(_batch(self._put)),
            get=kvb.BatchFunction(_batch(self._get)),
            remove=kvb.BatchFunction(_batch(self._remove)),
            register_memory=kvb.RangeFunction(_guarded(self._register)),
            unregister_memory=kvb.RangeFunction(_guarded(self._unregister)),
            health=kvb.HealthFunction(_guarded(self._health)),
            release=kvb.ReleaseFunction(self._release),
            # One piece each: above some 2,000 transfers to one peer at once Mooncake loses that peer.
            pieces_per_key=1,
            keys_per_call=1024,
            soft_pin_ttl=soft_pin,
            groups=groups,
            tenant=is_tenants,
        )

    def _exist(self, call, keys):
        return [
            code if code in (0, 1) else _failure(code) for code in self.client.batch_is_exist(keys)
        ]

    def _put(self, call, keys):
        config = ReplicateConfig()
        config.replica_num = self.replicas
        if call.soft_pin_ttl_ms:
            config.soft_pin_action = type(config.soft_pin_action).ENABLE
            config.soft_pin_ttl_ms = call.soft_pin_ttl_ms
        if call.groups:
            config.group_ids = [call.groups[i].text() for i in range(call.count)]
        addresses, sizes = _pieces(call)
        outcomes = {
            0: kvb.PUT_STORED,
            NO_AVAILABLE_HANDLE: kvb.PUT_NO_SPACE,
            OBJECT_ALREADY_EXISTS: kvb.PUT_ALREADY_THERE,
        }
        codes = self.client.batch_put_from_multi_buffers(keys, addresses, sizes, config)
        if self.confirms:
            codes = self._confirmed(keys, codes)
        return [outcomes[code] if code in outcomes else _failure(code) for code in codes]

    def _confirmed(self, keys, codes):
        """A put is answered 0 also while another client writes the key, and for half a minute if that one died
        over it: asks for those keys, and makes another code of the 0 of what is not there."""
        asked = [key for key, code in zip(keys, codes) if code == 0]
        # Where the master does not answer, another call would wait as long.
        silence = next((code for code in codes if code in SILENT), None)
        if silence is not None:
            return [code or silence for code in codes]
        there = dict(zip(asked, self.client.batch_is_exist(asked) if asked else []))

        def word(key):
            answer = there.get(key, INVALID_PARAMS)
            return {1: 0, 0: REPLICA_IS_NOT_READY}.get(answer, answer)

        return [code or word(key) for key, code in zip(keys, codes)]

    def _get(self, call, keys):
        addresses, sizes = _pieces(call)
        results = self.client.batch_get_into_multi_buffers(keys, addresses, sizes)
        outcomes = []
        for i, result in enumerate(results):
            if result in (OBJECT_NOT_FOUND, REPLICA_IS_NOT_READY):
                outcomes.append(kvb.GET_MISSING)
            elif result < 0:
                outcomes.append(_failure(result))
            elif result != sum(sizes[i]):
                # A smaller object was read into a part of the buffers.
                outcomes.append(kvb.GET_FAILED)
            else:
                call.sizes[i] = result
                outcomes.append(kvb.GET_LANDED)
        return outcomes

    def _remove(self, call, keys):
        outcomes = {
            0: kvb.REMOVE_REMOVED,
            OBJECT_NOT_FOUND: kvb.REMOVE_MISSING,
            OBJECT_HAS_LEASE: kvb.REMOVE_LEASED,
        }
        codes = [self.client.remove(key, bool(call.force)) for key in keys]
        return [outcomes[code] if code in outcomes else _failure(code) for code in codes]

    def _register(self, _, address, size):
        return self.client.register_buffer(address, size)

    def _unregister(self, _, address, size):
        return self.client.unregister_buffer(address)

    def _health(self, _):
        return {0: 0, 2: kvb.STORE_UNREACHABLE}.get(self.client.health_check(), -1)

    def _release(self, _):
        self.released = True


def _failure(code):
    """A code that is no outcome. 3 is KVB_PUT_FAILED and its like."""
    if code in LOST:
        return kvb.STORE_UNREACHABLE
    return code if -19999 <= code < 0 else 3


def _pieces(call):
    """Addresses and sizes of the pieces, key by key."""
    addresses, sizes, start = [], [], 0
    for i in range(call.count):
        end = call.piece_ends[i]
        pieces = call.pieces[start:end]
        addresses.append([piece.address for piece in pieces])
        sizes.append([piece.size for piece in pieces])
        start = end
    return addresses, sizes


def _guarded(function):
    """ctypes would print an exception and answer 0."""

    def run(*arguments):
        try:
            return function(*arguments)
        except Exception as error:  # pylint: disable=broad-except
            print(f"{function.__name__}: {error!r}", file=sys.stderr)
            return -1

    return run


def _batch(function):
    """A function of the table: `function` answers one outcome per key."""

    def run(_, pointer):
        call = pointer.contents
        outcomes = function(call, [call.keys[i].text() for i in range(call.count)])
        if len(outcomes) != call.count:
            # What a client that is not set up answers.
            return INVALID_PARAMS
        for i, outcome in enumerate(outcomes):
            call.outcomes[i] = outcome
        return 0

    return _guarded(run)


def connect(master, segment_bytes, settings):
    """A client of the pool of this master, lending it so much memory."""
    check(settings)
    client = MooncakeDistributedStore()
    code = client.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 16 << 20, "tcp", "", master)
    if code != 0:
        raise RuntimeError(f"setup: {code}")
    return client


def main(path, master, segment="64"):
    """Stores pages and reads them back."""
    settings = {
        "model_key": "example",
        "soft_pin_ttl_ms": 60_000,
        "group_blocks": True,
        "kvbridge": {"store": "host"},
    }
    client = connect(master, int(segment) << 20, settings)
    lent = Lent(client)
    library = kvb.Library(path)
    library.set_log(lambda level, text: print(f"kvbridge: {text}"))
    store = kvb.Store(library, settings, lent.table)

    page, count = 64 << 10, 4
    memory = c.create_string_buffer(bytes(range(1, count + 1)) * page, page * count)
    address = c.addressof(memory)
    client.register_buffer(address, page * count)
    pieces = [(address + i * page, page) for i in range(count)]
    keys = [f"example/page-{i}" for i in range(count)]
    before = memory.raw
    put = store.put(keys, pieces, settings["soft_pin_ttl_ms"], ["example/block"] * count)
    assert put == [kvb.PUT_STORED] * count, put
    c.memset(address, 0, page * count)
    got = store.get(keys, pieces)
    assert got == [kvb.GET_LANDED] * count and memory.raw == before, got
    print(f"{count} pages were stored with a soft pin and a group, and read back")

    client.unregister_buffer(address)
    store.free()
    assert lent.released
    library.set_log(None)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
