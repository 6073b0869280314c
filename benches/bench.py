"""Runs the benchmark suite: prints one table, writes JSON. See scripts/bench, and suite.py for what a figure is.

Time is the thread's processor time, since a shared machine interrupts long turns more often than short ones.
"""

import argparse
import json
import time

import library
import peer
from library import KVB1, TRTLLM
from suite import Suite

BLOCK = 32
def timed(units, work):
    """A turn that does `work` once and counts `units`."""

    def turn():
        start = time.thread_time()
        work()
        return (time.thread_time() - start) / units

    return turn


def repeated(times, work):
    def all_of_them():
        for _ in range(times):
            work()

    return all_of_them


def hashes(suite, kvb, quick):
    start = peer.seed()
    for block in (32, 64):
        for count in (8 << 10, 128 << 10):
            tokens = peer.tokens(count)
            ours = library.Hasher(kvb, TRTLLM, tokens, block)
            assert ours.hashes() == peer.hash_blocks(tokens, block, start), "hashes differ"
            suite.race(
                "hash_trtllm",
                f"{count >> 10} k tokens, T = {block}",
                "× peer",
                timed(count // block, ours),
                timed(count // block, lambda: peer.hash_blocks(tokens, block, start)),
            )
    for count in (8 << 10, 128 << 10) if quick else (8 << 10, 128 << 10, 1 << 20):
        tokens = peer.tokens(count)
        ours = library.Hasher(kvb, KVB1, tokens.astype("int32"), BLOCK)
        suite.race(
            "hash_kvb1",
            f"{count >> 10} k tokens",
            "× peer",
            timed(count // BLOCK, ours),
            timed(count // BLOCK, lambda: peer.hash_blocks(tokens, BLOCK, start)),
        )


def through_rust(suite, internals):
    """What the C ABI does not reach: our turns are the Rust side's."""
    start = peer.seed()
    for requests, count in ((256, BLOCK), (8, 8 << 10)):
        name = f"many/{requests}x{count}"
        lists = [peer.tokens(count, number * count) for number in range(requests)]
        expected = peer.hash_many(lists, BLOCK, start)[-1][-1]
        assert internals.check(name) == expected, "hashes differ"
        suite.race(
            "hash_trtllm_many",
            f"{requests} requests × {count // BLOCK} blocks",
            "× peer",
            lambda: internals.turn(name),
            timed(requests * count // BLOCK, lambda: peer.hash_many(lists, BLOCK, start)),
        )
    hashed = peer.hash_blocks(peer.tokens(8 << 10), BLOCK, start)
    for groups, world in ((1, 1), (1, 8), (4, 8)):
        keys = peer.Keys("trtllm", "llama-3.1-70b-instruct", world, groups, BLOCK, 65_536)
        name = f"keys/{groups}x{world}"
        spelled = keys.page_keys(hashed)
        assert internals.check(name) == spelled[-1].encode(), "keys differ"
        suite.race(
            "keys",
            f"8 k tokens, {groups}×{world}, trtllm",
            "× peer",
            lambda: internals.turn(name),
            timed(len(spelled), lambda: keys.page_keys(hashed)),
        )
    indices = [7 * page for page in range(512)]
    for regions in (2, 64):
        layout = peer.Layout(regions, 8192, 16_384, 4096)
        times = max(1, 8 // regions)
        name = f"resolve/{regions}"
        addresses, sizes = layout.resolve(indices[-1:])
        pieces = [number.to_bytes(8, "little") for piece in zip(addresses[0], sizes[0]) for number in piece]
        assert internals.check(name) == b"".join(pieces), "pieces differ"
        suite.race(
            "resolve",
            f"512 pages, {regions} regions",
            "× peer",
            lambda: internals.turn(name),
            timed(512 * times, repeated(times, lambda: layout.resolve(indices))),
        )


class PeerDecoding:
    """The same requests as library.Decoding, at the peer."""

    def __init__(self, requests):
        block, prompt, pages = library.Decoding.BLOCK, library.Decoding.PROMPT, library.Decoding.PAGES
        self.scheduler = peer.Scheduler(block)
        for number in range(requests):
            listed = range(number * pages, (number + 1) * pages)
            record = peer.Record([number] * prompt, listed, block)
            self.scheduler.records[number + 1] = record
        self.steps = [peer.Step(number + 1, prompt) for number in range(requests)]
        self.tokens = prompt

    def turn(self, passes):
        block = self.scheduler.block
        if self.tokens % block + passes >= block:
            while self.tokens % block != 0:
                self._pass()
        return sum(self._pass() for _ in range(passes)) / passes / len(self.steps)

    def _pass(self):
        # As library.Decoding, which writes its steps right before the pass, too.
        for step in self.steps:
            step.computed_position = self.tokens
        start = time.thread_time()
        self.scheduler.build(self.steps)
        spent = time.thread_time() - start
        self.tokens += 1
        return spent


def builds(suite, kvb):
    passes = 4
    ours = {count: library.Decoding(kvb, count) for count in (128, 1024, 4096)}
    theirs = PeerDecoding(1024)
    suite.race(
        "build",
        "1024 decoding requests, nothing to save",
        "× peer",
        lambda: ours[1024].turn(passes),
        lambda: theirs.turn(passes),
    )
    suite.race(
        "build",
        "4096 decoding requests, per request",
        "÷ 128 requests",
        lambda: ours[4096].turn(passes),
        lambda: ours[128].turn(passes),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="the release libkvbridge.so")
    parser.add_argument("internals", help="the benchmark binary `internals`")
    parser.add_argument("--quick", action="store_true", help="7 rounds instead of 25")
    parser.add_argument("--json", metavar="FILE", help="also write all samples there")
    arguments = parser.parse_args()
    suite = Suite(7 if arguments.quick else 25)
    kvb = library.Library(arguments.library)
    hashes(suite, kvb, arguments.quick)
    builds(suite, kvb)
    internals = library.Internals(arguments.internals)
    through_rust(suite, internals)
    internals.close()
    for row in internals.rows(arguments.quick):
        suite.add(row)
    suite.rows.sort(key=lambda row: row["row"])
    suite.table()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rounds": suite.rounds, "rows": suite.rows}, file, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
