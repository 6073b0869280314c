"""The library through its C ABI, and the Rust side of the suite as a process to take turns with."""

import ctypes as c
import json
import subprocess
import time

import numpy as np

KVB1, TRTLLM = 0, 1
INT32, INT64 = 0, 1


class Bytes(c.Structure):
    _fields_ = [("data", c.c_char_p), ("size", c.c_size_t)]


class Tokens(c.Structure):
    _fields_ = [("data", c.c_void_p), ("count", c.c_size_t), ("element_type", c.c_int32)]

    def __init__(self, array):
        kind = {np.dtype(np.int32): INT32, np.dtype(np.int64): INT64}[array.dtype]
        super().__init__(array.ctypes.data, len(array), kind)


class Engine(c.Structure):
    _fields_ = (
        [("struct_size", c.c_uint32), ("tokens_per_block", c.c_uint32)]
        + [(name, c.c_uint32) for name in ("tp_rank", "tp_size", "pp_size", "cp_size", "ranks_on_node")]
        + [(name, c.c_int32) for name in ("serving", "drafter", "max_draft_len", "device_kind", "device_ordinal")]
        + [(name, c.c_uint8) for name in ("attention_dp", "draft_shares_cache", "supplies_fences")]
    )


class Request(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("request_id", c.c_uint64),
        ("prompt", Tokens),
        ("cache_salt", Bytes),
        ("lora_identity", Bytes),
        ("lora_task_id", c.c_int64),
        ("media_digests", c.c_void_p),
        ("media_count", c.c_size_t),
    ] + [
        (name, c.c_uint8)
        for name in ("has_cache_salt", "has_lora_identity", "has_lora_task_id", "has_media", "context_only")
    ]

    def __init__(self, request_id, array):
        super().__init__(c.sizeof(Request), request_id, Tokens(array))


class Group(c.Structure):
    _fields_ = [
        ("id", c.c_uint32),
        ("window", c.c_uint32),
        ("number_format", Bytes),
        ("layout_tag", Bytes),
        ("layer_ids", c.POINTER(c.c_uint32)),
        ("layer_count", c.c_size_t),
    ]


class Region(c.Structure):
    _fields_ = [(name, c.c_uint64) for name in ("base", "size", "stride", "slot_count", "reservation_base")]


class GroupPages(c.Structure):
    _fields_ = [
        ("group_id", c.c_uint32),
        ("first_block", c.c_uint32),
        ("indices", c.c_void_p),
        ("count", c.c_size_t),
        ("replace", c.c_uint8),
    ]


class Step(c.Structure):
    _fields_ = [
        ("request_id", c.c_uint64),
        ("new_tokens", Tokens),
        ("pages", c.c_void_p),
        ("page_lists", c.c_size_t),
        ("computed_position", c.c_uint64),
        ("scheduled_tokens", c.c_uint64),
    ]


class Pass(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("steps", c.c_void_p), ("step_count", c.c_size_t)]


class Summary(c.Structure):
    _fields_ = [("struct_size", c.c_uint32)] + [
        (name, c.c_uint64) for name in ("pass_number", "load_requests", "load_blocks", "save_requests", "save_blocks")
    ]


class Library:
    """Calls by name, each checked."""

    def __init__(self, path):
        self.functions = c.CDLL(path)

    def __call__(self, name, *arguments):
        status = getattr(self.functions, f"kvb_{name}")(*arguments)
        if status != 0:
            text, needed = c.create_string_buffer(4096), c.c_size_t()
            self.functions.kvb_last_error(text, c.c_size_t(4096), c.byref(needed))
            raise RuntimeError(f"kvb_{name}: status {status}: {text.value.decode()}")

    def make(self, name, *arguments):
        handle = c.c_void_p()
        self(name, *arguments, c.byref(handle))
        return handle


class Hasher:
    """kvb_keys_hash_blocks over one prompt."""

    def __init__(self, library, scheme, token_ids, block):
        self.hash_bytes = {KVB1: 32, TRTLLM: 16}[scheme]
        self.tokens = np.ascontiguousarray(token_ids)
        self.request = Request(1, self.tokens)
        self.buffer = c.create_string_buffer(len(token_ids) // block * self.hash_bytes)
        self.needed = c.c_size_t()
        self.function = library.functions.kvb_keys_hash_blocks
        self.arguments = (
            c.c_int32(scheme),
            c.byref(self.request),
            c.c_uint32(block),
            c.c_uint32(0),
            self.buffer,
            c.c_size_t(len(self.buffer)),
            c.byref(self.needed),
        )

    def __call__(self):
        status = self.function(*self.arguments)
        assert status == 0 and self.needed.value == len(self.buffer)

    def hashes(self):
        self()
        raw, width = self.buffer.raw, self.hash_bytes
        return [raw[at : at + width] for at in range(0, len(raw), width)]


class Decoding:
    """A scheduler and its worker with requests that decode in step, so that all complete a block in the same pass."""

    BLOCK, PROMPT, PAGES, PAGE_BYTES = 32, 512, 64, 64

    def __init__(self, library, requests):
        self.library = library
        self.count = requests
        config = json.dumps(
            {"model_key": "bench", "global_segment_size": "1GiB", "kvbridge": {"pool": f"bench-{requests}"}}
        ).encode()
        self.config = library.make("config_from_json", config, c.c_size_t(len(config)))
        self.engine = Engine(c.sizeof(Engine), self.BLOCK, tp_size=1, max_draft_len=-1)
        self.worker = library.make("worker_new", self.config, c.byref(self.engine), None)
        self.cache = np.zeros(requests * self.PAGES * self.PAGE_BYTES, dtype=np.uint8)
        layout = library.make("layout_new", c.c_uint64(0))
        layers = (c.c_uint32 * 1)(0)
        group = Group(0, 0, Bytes(b"int8", 4), Bytes(None, 0), layers, 1)
        library("layout_add_group", layout, c.byref(group))
        region = Region(
            self.cache.ctypes.data, self.PAGE_BYTES, self.PAGE_BYTES, requests * self.PAGES, 0
        )
        library("layout_add_region", layout, c.c_uint32(0), c.byref(region))
        library("worker_register_layout", self.worker, layout)
        library.functions.kvb_layout_free(layout)
        self.scheduler = library.make(
            "scheduler_new", self.config, c.byref(self.engine), self.worker
        )
        self._admit()

    def _admit(self):
        offered, is_async = c.c_uint64(), c.c_bool()
        self.steps = (Step * self.count)()
        self.token = np.zeros(1, dtype=np.int32)
        self.prompts = []
        for number in range(self.count):
            # No two requests share a block.
            prompt = np.full(self.PROMPT, number, dtype=np.int32)
            self.prompts.append(prompt)
            request = Request(number + 1, prompt)
            self.library(
                "scheduler_match",
                self.scheduler,
                c.byref(request),
                c.c_uint64(0),
                c.byref(offered),
                c.byref(is_async),
            )
            indices = np.arange(number * self.PAGES, (number + 1) * self.PAGES, dtype=np.int32)
            pages = GroupPages(0, 0, indices.ctypes.data, self.PAGES, 0)
            self.library(
                "scheduler_allocated",
                self.scheduler,
                c.c_uint64(number + 1),
                c.c_uint64(0),
                c.byref(pages),
                c.c_size_t(1),
            )
            self.steps[number] = Step(number + 1, Tokens(prompt), None, 0, 0, self.PROMPT)
        self.tokens = self.PROMPT
        self.passing = Pass(c.sizeof(Pass), c.addressof(self.steps), self.count)
        self.metadata = c.c_void_p()
        self.build = self.library.functions.kvb_scheduler_build
        self.free = self.library.functions.kvb_metadata_free
        self.arguments = (self.scheduler, c.byref(self.passing), c.byref(self.metadata))
        self._save(self.count * (self.PROMPT // self.BLOCK))
        for step in self.steps:
            step.new_tokens = Tokens(self.token)
            step.scheduled_tokens = 1
        self.view = np.frombuffer(self.steps, dtype=np.dtype(
            {"names": ["position"], "formats": ["<u8"],
             "offsets": [Step.computed_position.offset], "itemsize": c.sizeof(Step)}))

    def _save(self, expected):
        """A pass that saves, up to the end of its saves."""
        summary = Summary(c.sizeof(Summary))
        self.library("scheduler_build", *self.arguments)
        self.library("metadata_summary", self.metadata, c.byref(summary))
        assert summary.save_blocks == expected, (summary.save_blocks, expected)
        self.library("worker_bind", self.worker, self.metadata, None)
        self.library("worker_start_load", self.worker, None)
        self.library("worker_wait_for_save", self.worker, None)
        self.free(self.metadata)
        time.sleep(0.02 + expected * 4e-6)

    def turn(self, passes):
        """Seconds per request of `passes` passes in which nothing is to be saved."""
        if self.tokens % self.BLOCK + passes >= self.BLOCK:
            while self.tokens % self.BLOCK != self.BLOCK - 1:
                self._pass()
            self._fill_in()
            self._save(self.count)
            self.tokens += 1
        spent = 0.0
        for _ in range(passes):
            spent += self._pass()
        return spent / passes / self.count

    def _fill_in(self):
        """What an engine writes into its steps right before it hands them over."""
        self.view["position"] = self.tokens

    def _pass(self):
        self._fill_in()
        start = time.thread_time()
        status = self.build(*self.arguments)
        self.free(self.metadata)
        spent = time.thread_time() - start
        assert status == 0
        self.tokens += 1
        return spent


class Internals:
    """The Rust side of the suite."""

    def __init__(self, path):
        self.path = path
        self.process = subprocess.Popen(
            [path, "turns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def turn(self, name):
        """Seconds per unit."""
        return self._ask(f"turn {name}") * 1e-9

    def check(self, name):
        """The bytes that the peer must come to as well."""
        return bytes.fromhex(self._ask(f"check {name}"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def rows(self, quick):
        """The figures without a peer, each as one object."""
        arguments = [self.path, "rows"] + (["--quick"] if quick else [])
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode != 0:
            raise RuntimeError(f"{self.path} ended with {process.returncode}")
