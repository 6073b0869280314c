"""Mooncake's Python client lent to kvbridge, against a real pool: what the example does, and what a pool
does with soft pins, groups and options that it refuses.

    lending.py LIBRARY MASTER POOL_MIB MASTER_PID

The pool holds so many MiB, and nobody else uses it. Ends its master.
"""

import ctypes as c
import json
import os
import signal
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples", "lend"))

import kvbridge as kvb  # noqa: E402
import lend  # noqa: E402
import lending_server  # noqa: E402

PAGE = 256 << 10
# What is slow here is no defect.
SETTINGS = {"model_key": "m", "kvbridge": {"store": "host", "lookup_timeout_ms": 10_000}}


class Rig:
    """A store on a client that lends the pool nothing, and memory for a batch of pages."""

    def __init__(self, path, master, capacity):
        self.client = lend.connect(master, 0, SETTINGS)
        # Most checks are about what a pool of a few pages evicts, where a lease on all that is new would decide.
        self.lent = lend.Lent(self.client, confirms=False)
        self.library = kvb.Library(path)
        self.lines = []
        self.library.set_log(lambda level, text: self.lines.append((level, text)))
        self.store = kvb.Store(self.library, SETTINGS, self.lent.table)
        self.pages = capacity // PAGE
        self.batch = 16
        self.memory = c.create_string_buffer(PAGE * self.batch)
        address = c.addressof(self.memory)
        assert self.client.register_buffer(address, len(self.memory)) == 0
        self.pieces = [(address + i * PAGE, PAGE) for i in range(self.batch)]
        self.fresh = 0

    def put(self, keys, **options):
        """Stores pages, one batch after the other, until none finds the pool full."""
        groups = options.pop("groups", None)
        for first in range(0, len(keys), self.batch):
            part = keys[first : first + self.batch]
            own = groups[first : first + self.batch] if groups else None
            until = time.monotonic() + 20
            while True:
                out = self.store.put(part, self.pieces[: len(part)], groups=own, **options)
                if all(code == kvb.PUT_STORED for code in out):
                    break
                # The master evicts beside, every few milliseconds.
                refused = {kvb.PUT_STORED, kvb.PUT_NO_SPACE}
                assert set(out) <= refused and time.monotonic() < until, out
                time.sleep(0.02)

    def press(self, share):
        """Stores fresh pages of this share of the pool."""
        count = int(self.pages * share)
        self.put([f"fresh/{self.fresh + i}" for i in range(count)])
        self.fresh += count

    def present(self, keys):
        """Which keys are there. It leases them, so that they stay for a while."""
        out = self.store.exist(keys)
        assert set(out) <= {kvb.PRESENT, kvb.ABSENT}, out
        return [code == kvb.PRESENT for code in out]

    def empty(self):
        """Takes everything out, whoever holds a lease."""
        self.client.remove_all(True)

    def warnings(self):
        """What was warned about since the last time."""
        found = [text for level, text in self.lines if level <= kvb.LOG_WARN]
        self.lines.clear()
        return found


def pages_go_there_and_back(rig):
    keys = [f"round/{i}" for i in range(rig.batch)]
    content = os.urandom(len(rig.memory))
    rig.memory[:] = content
    assert rig.store.put(keys, rig.pieces) == [kvb.PUT_STORED] * rig.batch
    c.memset(rig.memory, 0, len(rig.memory))
    assert rig.store.get(keys, rig.pieces) == [kvb.GET_LANDED] * rig.batch
    assert rig.memory.raw == content
    # Mooncake's own client reads the same bytes.
    assert rig.client.get(keys[3]) == content[3 * PAGE : 4 * PAGE]
    missing = rig.store.get(["nothing"], rig.pieces[:1])
    assert missing == [kvb.GET_MISSING], missing
    address, size = rig.pieces[0]
    for other in (size - 1, size // 2):
        out = rig.store.get(keys[:1], [(address, other)])
        assert out == [kvb.GET_FAILED], out
    removed = rig.store.remove(["nothing", keys[0]])
    assert removed == [kvb.REMOVE_MISSING, kvb.REMOVE_LEASED], removed


class Noting:
    """A client that notes what puts ask for."""

    def __init__(self, client):
        self._client, self.puts = client, []

    def __getattr__(self, name):
        return getattr(self._client, name)

    def batch_put_from_multi_buffers(self, keys, addresses, sizes, config):
        self.puts.append((config.soft_pin_ttl_ms, list(config.group_ids or []), keys))
        return self._client.batch_put_from_multi_buffers(keys, addresses, sizes, config)


class Overtaken:
    """A client whose puts find that others are writing these keys."""

    def __init__(self, client, taken):
        self._client, self._taken = client, taken

    def __getattr__(self, name):
        return getattr(self._client, name)

    def batch_put_from_multi_buffers(self, keys, addresses, sizes, config):
        own = [i for i, key in enumerate(keys) if key not in self._taken]
        lists = ([all[i] for i in own] for all in (keys, addresses, sizes))
        codes = iter(self._client.batch_put_from_multi_buffers(*lists, config))
        return [0 if key in self._taken else next(codes) for key in keys]


def a_put_counts_when_the_key_is_there(rig):
    keys = [f"overtaken/{i}" for i in range(rig.batch)]
    client, rig.lent.client = rig.lent.client, Overtaken(rig.lent.client, {keys[1], keys[4]})
    rig.lent.confirms = True
    out = rig.store.put(keys, rig.pieces)
    again = rig.store.put(keys, rig.pieces)
    rig.lent.client, rig.lent.confirms = client, False
    wanted = [kvb.PUT_FAILED if i in (1, 4) else kvb.PUT_STORED for i in range(rig.batch)]
    assert out == again == wanted, (out, again)
    assert rig.present(keys) == [code == kvb.PUT_STORED for code in wanted]


def a_server_saves_on_a_thread_of_the_library(rig):
    page, blocks = 64 << 10, 6
    client = rig.lent.client
    noting = rig.lent.client = Noting(client)
    settings = {**SETTINGS, "soft_pin_ttl_ms": 60_000, "group_blocks": True}
    server = lending_server.Server(rig.library, json.dumps(settings), rig.store, page, 16)
    prompt = list(range(1, blocks * lending_server.BLOCK + 1))
    content = os.urandom(blocks * page)

    def compute(first):
        server.memory[first * page : blocks * page] = content[first * page :]

    assert server.serve(1, prompt, compute) == 0
    c.memset(server.memory, 0, len(server.memory))
    # The block of the last token is always computed.
    loaded = (blocks - 1) * lending_server.BLOCK
    assert server.serve(2, prompt, compute) == loaded
    assert server.memory[: blocks * page] == content
    server.free()
    rig.lent.client = client
    # One page per block here: as many groups as keys, each in its key.
    asked = [put for put in noting.puts if put[2]]
    assert asked and all(ttl == 60_000 for ttl, _, _ in asked), asked
    for _, groups, keys in asked:
        assert len(set(groups)) == len(keys) and all(groups), asked


def soft_pinned_pages_stay_under_pressure_and_go_after_their_time(rig):
    plain, kept, later = ([f"{kind}/{i}" for i in range(16)] for kind in ("plain", "kept", "later"))
    for ttl in (6, 18, 54):
        rig.empty()
        begun = time.monotonic()
        rig.put(kept, soft_pin_ttl_ms=ttl * 1000)
        rig.put(later, soft_pin_ttl_ms=ttl * 1000)
        rig.put(plain)
        rig.press(2)
        if time.monotonic() - begun < ttl - 1:
            break
    else:
        raise AssertionError("the machine is too slow for this")
    assert not any(rig.present(plain)), "what is not pinned goes first"
    assert all(rig.present(kept)), "what is pinned stays"
    # Those that nobody looked at have no lease, and no pin any more.
    time.sleep(max(0, begun + ttl + 0.5 - time.monotonic()))
    rig.press(2)
    assert not any(rig.present(later)), "after its time it goes as others do"


def columns(name, sets, members):
    """Keys of sets in an order in which the members of one are of different ages."""
    return [(f"{name}/{s}/{m}", f"{name}/{s}") for m in range(members) for s in range(sets)]


def survivors(rig, keys, members):
    """How many of each set are there."""
    found = {}
    for (_, group), there in zip(keys, rig.present([key for key, _ in keys])):
        found[group] = found.get(group, 0) + there
    return sorted(found.values())


def grouped_pages_stay_or_go_together(rig):
    sets, members = 16, 3
    for grouped in (False, True):
        rig.empty()
        keys = columns("grouped" if grouped else "alone", sets, members)
        groups = [group for _, group in keys] if grouped else None
        rig.put([key for key, _ in keys], groups=groups)
        # Just over nine tenths, where the master evicts once.
        rig.press(0.915 - sets * members / rig.pages)
        # It does so beside; to ask when it has would lease what is left.
        time.sleep(0.3)
        counts = survivors(rig, keys, members)
        assert min(counts) < members and max(counts) > 0, counts
        partial = [count for count in counts if 0 < count < members]
        # Without groups the same pages leave holes; else this would show nothing.
        assert bool(partial) != grouped, (grouped, counts)


def looking_at_one_keeps_its_group(rig):
    sets, members = 8, 4
    keys = columns("looked", sets, members)
    rig.put([key for key, _ in keys], groups=[group for _, group in keys])
    assert rig.present(["looked/5/2"]) == [True]
    rig.press(2)
    found = dict(zip([key for key, _ in keys], rig.present([key for key, _ in keys])))
    assert all(found[f"looked/5/{m}"] for m in range(members)), found
    assert not any(found[f"looked/{s}/{m}"] for s in range(5) for m in range(members)), found


def what_the_pool_refuses_fails_per_key_with_one_warning(rig):
    keys = [f"refused/{i}" for i in range(rig.batch)]
    failed = [kvb.PUT_FAILED] * rig.batch
    start = "the host's put: 16 of 16 keys failed, the first code is -600"
    rig.warnings()

    def refused(why, put):
        for _ in range(2):
            assert put() == failed, why
        warned = rig.warnings()
        assert len(warned) == 1 and warned[0].startswith(start), (why, warned)
        assert not any(rig.present(keys)), why
        # It works again, which is what ends the silence.
        rig.put([f"{why}/{i}" for i in range(rig.batch)])
        assert rig.warnings() == []
        return warned[0]

    text = refused("above a day", lambda: rig.store.put(keys, rig.pieces, 86_400_001))
    assert "a soft_pin_ttl_ms above the maximum of the pool" in text, text
    assert "soft_pin_ttl_ms" not in refused("no replica", lambda: _with_replicas(rig, 0, keys))


def a_server_whose_pin_is_above_the_maximum_goes_on_without_the_pool(rig):
    page, blocks = 64 << 10, 6
    times = {"lookup_timeout_ms": 2000, "load_timeout_ms": 2000, "save_timeout_ms": 5000}
    settings = {**SETTINGS, "kvbridge": {**SETTINGS["kvbridge"], **times}}
    prompts = [[1000 * i + j for j in range(blocks * lending_server.BLOCK)] for i in range(3)]

    def server(**more):
        text = json.dumps({**settings, **more})
        return lending_server.Server(rig.library, text, rig.store, page, 16)

    def lives(server, number):
        """How many tokens of each prompt came from the pool, round by round."""
        return [
            [server.serve(number + 3 * i + j, prompt, lambda first: None) for j, prompt in enumerate(prompts)]
            for i in range(3)
        ]

    rig.warnings()
    refused = server(soft_pin_ttl_ms=86_400_001)
    assert lives(refused, 1) == [[0] * 3] * 3, "nothing was saved"
    stats = refused.stats()
    assert stats.saved_pages == 0 and stats.failed_save_pages == 3 * 3 * blocks, stats.failed_save_pages
    warned = rig.warnings()
    assert len(warned) == 1 and "soft_pin_ttl_ms above the maximum" in warned[0], warned
    refused.shutdown(5000)
    waits = {
        "kvb_scheduler_match": times["lookup_timeout_ms"],
        "kvb_worker_start_load": times["load_timeout_ms"],
        "kvb_worker_shutdown": 5000,
    }
    for name, took in refused.longest.items():
        # What a machine that has much else to do may take beyond it.
        limit = waits.get(name, 0) / 1000 + 1.5
        assert took <= limit, f"{name} took {took:.1f} s, at most {limit:.1f} s"
    refused.free()
    # Another one, that asks for what the pool takes, is served.
    served = server(soft_pin_ttl_ms=60_000)
    loaded = [(blocks - 1) * lending_server.BLOCK] * 3
    assert lives(served, 101) == [[0] * 3, loaded, loaded]
    assert served.stats().failed_save_pages == 0 and rig.warnings() == []
    served.free()


def _with_replicas(rig, count, keys):
    rig.lent.replicas = count
    out = rig.store.put(keys, rig.pieces)
    rig.lent.replicas = 1
    return out


def a_full_pool_has_no_space(rig):
    rig.warnings()
    outcomes = []
    for first in range(0, 2 * rig.pages, rig.batch):
        keys = [f"full/{first + i}" for i in range(rig.batch)]
        outcomes += rig.store.put(keys, rig.pieces)
        # With a lease none of them makes room for the next.
        rig.present(keys)
    assert set(outcomes) == {kvb.PUT_STORED, kvb.PUT_NO_SPACE}, set(outcomes)
    large = c.create_string_buffer((rig.pages + 1) * PAGE)
    piece = (c.addressof(large), len(large))
    assert rig.store.put(["large"], [piece]) == [kvb.PUT_NO_SPACE]
    assert rig.warnings() == [], "a full pool is no trouble"


def a_build_without_the_fields_is_refused_before_it_mounts(_):
    class Older:
        replica_num = 1
        with_soft_pin = False

    newer, lend.ReplicateConfig = lend.ReplicateConfig, Older
    try:
        assert lend.abilities() == (False, False)
        for field, value in (("soft_pin_ttl_ms", 5), ("group_blocks", True)):
            try:
                # No master is there, so that a client that asked for one would say something else.
                lend.connect("127.0.0.1:1", 1 << 20, {**SETTINGS, field: value})
            except ValueError as error:
                assert field in str(error)
            else:
                raise AssertionError(f"{field} was not refused")
        lend.check(SETTINGS)
    finally:
        lend.ReplicateConfig = newer


def an_exception_of_python_is_a_failure(rig):
    client, rig.lent.client = rig.lent.client, None
    rig.warnings()
    for _ in range(2):
        assert rig.store.exist(["a", "b"]) == [kvb.UNKNOWN] * 2
        assert rig.store.put(["a"], rig.pieces[:1]) == [kvb.PUT_FAILED]
    warned = rig.warnings()
    assert [text.split(":")[0] for text in warned] == ["the host's exist", "the host's put"], warned
    rig.lent.client = client
    assert rig.present(["a", "b"]) == [False, False]


def a_dead_master_is_unreachable(rig, pid):
    assert rig.present(["nothing"]) == [False]
    rig.warnings()
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while rig.store.exist(["nothing"]) != [kvb.UNKNOWN]:
        assert time.monotonic() < until
    warned = rig.warnings()
    assert warned and f"the first code is {kvb.STORE_UNREACHABLE}" in warned[0], warned


def main(path, master, capacity, pid):
    """Prints a line per check."""
    rig = Rig(path, master, int(capacity) << 20)
    for check in (
        pages_go_there_and_back,
        a_put_counts_when_the_key_is_there,
        a_server_saves_on_a_thread_of_the_library,
        soft_pinned_pages_stay_under_pressure_and_go_after_their_time,
        grouped_pages_stay_or_go_together,
        looking_at_one_keeps_its_group,
        what_the_pool_refuses_fails_per_key_with_one_warning,
        a_server_whose_pin_is_above_the_maximum_goes_on_without_the_pool,
        a_full_pool_has_no_space,
        a_build_without_the_fields_is_refused_before_it_mounts,
        an_exception_of_python_is_a_failure,
        lambda rig: a_dead_master_is_unreachable(rig, int(pid)),
    ):
        rig.empty()
        name = check.__name__ if check.__name__ != "<lambda>" else "a_dead_master_is_unreachable"
        begun = time.monotonic()
        try:
            check(rig)
            word = "passed"
        except Exception:  # pylint: disable=broad-except
            word = f"failed: {traceback.format_exc()}"
        print(f"{word.split(':')[0]}: {name.replace('_', ' ')}", flush=True)
        print(f"  {time.monotonic() - begun:.1f} s {word}", flush=True)
    rig.client.unregister_buffer(rig.pieces[0][0])
    rig.store.free()
    print(f"{'passed' if rig.lent.released else 'failed'}: the client is released", flush=True)
    rig.library.set_log(None)


main(*sys.argv[1:])
