"""Another server on the same pool, written from the description of the keys alone.

peer.py MASTER NAMESPACE MODEL_KEY TOKENS_PER_BLOCK: serves one prompt per line of standard input
(its tokens, separated by blanks) over Mooncake's own Python client and answers with a line of its
own: blocks that the pool served, whole blocks of the prompt, pages of the pool that were wrong.

Hashes and keys are those of the scheme `trtllm`; pages are raw. Their content is what the miniature
engine's model (examples/engine/model.cc) has in one layer group of two layers on one rank.
"""

import array
import ctypes
import hashlib
import os
import struct
import sys

from mooncake.store import MooncakeDistributedStore

MASK = (1 << 64) - 1
CHAIN = 0x9E3779B97F4A7C15
TOKEN = 0xD6E8FEB86659FD93
ROWS = [(layer, factor) for layer in range(2) for factor in range(2)]
BATCH = 64


def scramble(value):
    value = (value + CHAIN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def scope_state():
    """Of a request without salt, adapter and media, for the model's seed 1."""
    state = scramble(1)
    for _ in range(2):
        state = scramble(scramble(state))
    return state


def row_keys():
    """What the rows of group 0, pool 0 on rank 0 are keyed with."""
    keys = []
    for layer, factor in ROWS:
        key = 1
        for part in (0, 0, layer, factor, 0):
            key = scramble(key ^ part)
        keys.append(key)
    return keys


def blake(data):
    return hashlib.blake2b(data, digest_size=16).digest()


def framed(*parts):
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


class Peer:
    def __init__(self, master, namespace, model_key, block):
        self.block = block
        self.size = len(ROWS) * 2 * block
        self.prefix = f"{namespace}/{model_key}/w1r0/lg0/t{block}b{self.size}/"
        self.keys_of_rows = row_keys()
        self.store = MooncakeDistributedStore()
        assert self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 24, "tcp", "", master) == 0
        self.buffer = ctypes.create_string_buffer(BATCH * self.size)
        self.address = ctypes.addressof(self.buffer)
        assert self.store.register_buffer(self.address, len(self.buffer)) == 0

    def keys(self, tokens):
        parent = blake(framed(b"", b""))
        keys = []
        for start in range(0, len(tokens) - self.block + 1, self.block):
            part = tokens[start : start + self.block]
            parent = blake(parent + struct.pack(f"<{self.block}q", *part))
            keys.append(self.prefix + parent.hex())
        return keys

    def pages(self, tokens, count):
        """The bytes of the first `count` blocks."""
        state = scope_state()
        pages = []
        for block in range(count):
            rows = [array.array("H") for _ in ROWS]
            for token in tokens[block * self.block : (block + 1) * self.block]:
                term = ((token & 0xFFFFFFFF) + 1) * TOKEN & MASK
                state = (state ^ term) * CHAIN & MASK
                state ^= state >> 32
                for index, row in enumerate(rows):
                    row.append(((state >> (16 * index)) ^ self.keys_of_rows[index]) & 0xFFFF)
            pages.append(b"".join(row.tobytes() for row in rows))
        return pages

    def batches(self, first, last):
        for start in range(first, last, BATCH):
            numbers = list(range(start, min(start + BATCH, last)))
            addresses = [self.address + i * self.size for i in range(len(numbers))]
            yield numbers, addresses, [self.size] * len(numbers)

    def serve(self, tokens):
        keys = self.keys(tokens)
        # One token at least is computed, or there would be nothing to sample from.
        most = (len(tokens) - 1) // self.block
        hits = 0
        if most > 0:
            for present in self.store.batch_is_exist(keys[:most]):
                if present != 1:
                    break
                hits += 1
        pages = self.pages(tokens, len(keys))
        wrong = 0
        for numbers, addresses, sizes in self.batches(0, hits):
            landed = self.store.batch_get_into([keys[i] for i in numbers], addresses, sizes)
            raw = self.buffer.raw
            for slot, number in enumerate(numbers):
                found = raw[slot * self.size : (slot + 1) * self.size]
                wrong += landed[slot] != self.size or found != pages[number]
        for numbers, addresses, sizes in self.batches(hits, len(keys)):
            for slot, number in enumerate(numbers):
                ctypes.memmove(addresses[slot], pages[number], self.size)
            stored = self.store.batch_put_from([keys[i] for i in numbers], addresses, sizes)
            assert stored == [0] * len(numbers), stored
        return hits, len(keys), wrong


def main():
    # What the client prints goes elsewhere: this pipe is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = Peer(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    for line in sys.stdin:
        print(*peer.serve([int(token) for token in line.split()]), file=answers, flush=True)
    assert peer.store.unregister_buffer(peer.address) == 0
    peer.store.close()


main()
