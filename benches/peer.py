"""The peer: what a competent connector in Python does, with numpy and hashlib.

It spells the keys of the scheme trtllm, resolves pages to addresses and decides per pass what to save. Kept as fast as plain Python
allows: names are bound outside of loops, dictionaries are asked once, attributes live in slots.
"""

import hashlib
import struct

import numpy as np


def tokens(count, start=0):
    """Token ids; benches/internals makes the same ones."""
    numbers = np.arange(start, start + count, dtype=np.int64)
    return (numbers * 2_654_435_761 + 12_345) % 128_000


def seed():
    """The seed of a request without salt, adapter and media: two empty parts, each behind its length."""
    return hashlib.blake2b(struct.pack("<II", 0, 0), digest_size=16).digest()


def hash_blocks(token_ids, block, parent):
    """The hashes of all whole blocks of an int64 array."""
    blake2b = hashlib.blake2b
    hashes = []
    for start in range(0, len(token_ids) // block * block, block):
        state = blake2b(parent, digest_size=16)
        state.update(token_ids[start : start + block].tobytes())
        parent = state.digest()
        hashes.append(parent)
    return hashes


def hash_many(requests, block, parent):
    """The hashes of several requests' tokens, one request after the other."""
    return [hash_blocks(token_ids, block, parent) for token_ids in requests]


class Keys:
    """Names the pages of a model."""

    def __init__(self, namespace, model_key, world, groups, block, page_bytes):
        self.namespace = namespace
        self.model_key = model_key
        self.world = world
        self.groups = groups
        self.block = block
        self.page_bytes = page_bytes

    def page_key(self, block_hash, rank, group):
        return (
            f"{self.namespace}/{self.model_key}/w{self.world}r{rank}/lg{group}"
            f"/t{self.block}b{self.page_bytes}/{block_hash.hex()}"
        )

    def page_keys(self, hashes):
        """All pages of all blocks, as a lookup asks for them."""
        page_key = self.page_key
        return [
            page_key(block_hash, rank, group)
            for block_hash in hashes
            for group in range(self.groups)
            for rank in range(self.world)
        ]


class Layout:
    """Where a page's bytes are."""

    def __init__(self, regions, size, stride, slots):
        self.regions = [(4096 + (region << 32), size, stride) for region in range(regions)]
        self.slots = slots

    def resolve(self, indices):
        """Addresses and sizes of the pages' pieces, one list per page."""
        addresses, sizes = [], []
        for index in indices:
            if not 0 <= index < self.slots:
                raise IndexError(index)
            addresses.append([base + stride * index for base, _, stride in self.regions])
            sizes.append([size for _, size, _ in self.regions])
        return addresses, sizes


class Step:
    """One request's part of a pass, as an engine reports it."""

    __slots__ = ("request_id", "new_tokens", "new_pages", "computed_position", "scheduled_tokens")

    def __init__(self, request_id, computed_position):
        self.request_id = request_id
        self.new_tokens = [0]
        self.new_pages = []
        self.computed_position = computed_position
        self.scheduled_tokens = 1


class Record:
    """What the scheduler knows of one request."""

    __slots__ = ("tokens", "hashes", "pages", "saved", "loaded")

    def __init__(self, prompt, pages, block):
        self.tokens = list(prompt)
        self.hashes = hash_blocks(np.asarray(prompt, dtype=np.int64), block, seed())
        self.pages = list(pages)
        self.saved = len(self.hashes)
        self.loaded = 0


class Scheduler:
    """Decides what travels with a pass."""

    def __init__(self, block):
        self.block = block
        self.records = {}

    def build(self, steps):
        block = self.block
        records = self.records
        saves = []
        for step in steps:
            record = records.get(step.request_id)
            if record is None:
                continue
            record.tokens.extend(step.new_tokens)
            if step.new_pages:
                record.pages.extend(step.new_pages)
            complete = len(record.tokens) // block
            known = len(record.hashes)
            if complete > known:
                new = np.asarray(record.tokens[known * block : complete * block], dtype=np.int64)
                parent = record.hashes[-1] if known else seed()
                record.hashes.extend(hash_blocks(new, block, parent))
            frontier = min(
                (step.computed_position + step.scheduled_tokens) // block,
                len(record.hashes),
                len(record.pages),
            )
            if frontier > record.saved:
                first = max(record.saved, record.loaded)
                blocks = range(first, frontier)
                saves.append(
                    (
                        step.request_id,
                        [record.hashes[b] for b in blocks],
                        [record.pages[b] for b in blocks],
                    )
                )
                record.saved = frontier
        return saves
