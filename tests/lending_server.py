"""A server of one rank on a kvb_store, through ctypes: it saves and loads whole prompts. Saves run on
a thread of the library, which then calls the functions that Python lends."""

import ctypes as c
import time

import kvbridge as kvb

BLOCK = 16  # tokens
PATIENCE = 60  # seconds for what has no deadline of its own


class Tokens(c.Structure):
    """kvb_tokens"""

    _fields_ = [("data", c.c_void_p), ("count", c.c_size_t), ("element_type", c.c_int32)]


class Group(c.Structure):
    """kvb_group"""

    _fields_ = [
        ("id", c.c_uint32),
        ("window", c.c_uint32),
        ("number_format", kvb.Bytes),
        ("layout_tag", kvb.Bytes),
        ("layer_ids", c.POINTER(c.c_uint32)),
        ("layer_count", c.c_size_t),
    ]


class Region(c.Structure):
    """kvb_region"""

    _fields_ = [(name, c.c_uint64) for name in "base size stride slot_count reservation_base".split()]


class Request(c.Structure):
    """kvb_request up to the prompt"""

    _fields_ = [("struct_size", c.c_uint32), ("request_id", c.c_uint64), ("prompt", Tokens)]


class GroupPages(c.Structure):
    """kvb_group_pages"""

    _fields_ = [
        ("group_id", c.c_uint32),
        ("first_block", c.c_uint32),
        ("indices", c.POINTER(c.c_int32)),
        ("count", c.c_size_t),
        ("replace", c.c_uint8),
    ]


class Step(c.Structure):
    """kvb_step"""

    _fields_ = [
        ("request_id", c.c_uint64),
        ("new_tokens", Tokens),
        ("pages", c.POINTER(GroupPages)),
        ("page_lists", c.c_size_t),
        ("computed_position", c.c_uint64),
        ("scheduled_tokens", c.c_uint64),
    ]


class Pass(c.Structure):
    """kvb_pass up to the steps"""

    _fields_ = [("struct_size", c.c_uint32), ("steps", c.POINTER(Step)), ("step_count", c.c_size_t)]


class Ids(c.Structure):
    """kvb_ids"""

    _fields_ = [("data", c.POINTER(c.c_uint64)), ("count", c.c_size_t)]


class Stats(c.Structure):
    """kvb_stats up to the pages that the pool did not take"""

    _fields_ = [("struct_size", c.c_uint32)] + [
        (name, c.c_uint64)
        for name in "lookups lookup_blocks hit_blocks lookup_keys missing_keys failed_lookup_keys "
        "loaded_pages loaded_bytes failed_load_pages bad_seals failed_load_requests saved_pages "
        "saved_bytes already_stored_pages no_space_pages failed_save_pages".split()
    ]


class Server:
    """Page i of its cache is `page` bytes at i * page of `memory`."""

    def __init__(self, library, settings, store, page, slots):
        self.library, self.page = library, page
        self.memory = c.create_string_buffer(page * slots)
        self.handles, self.longest = {}, {}
        text = settings.encode()
        config = self._make("kvb_config", "kvb_config_from_json", text, c.c_size_t(len(text)))
        layout = self._make("kvb_layout", "kvb_layout_new", c.c_uint64(0))
        layer, number_format = (c.c_uint32 * 1)(0), kvb.texts(["float16"])
        group = Group(0, 0, number_format[0], kvb.Bytes(), layer, 1)
        region = Region(c.addressof(self.memory), page, page, slots, 0)
        library.call("kvb_layout_add_group", layout, c.byref(group))
        library.call("kvb_layout_add_region", layout, c.c_uint32(0), c.byref(region))
        engine = c.byref(kvb.engine(BLOCK))
        self.worker = self._make("kvb_worker", "kvb_worker_new", config, engine, store.handle)
        library.call("kvb_worker_register_layout", self.worker, layout)
        self.scheduler = self._make(
            "kvb_scheduler", "kvb_scheduler_new", config, engine, self.worker
        )

    def _make(self, noun, function, *arguments):
        handle = c.c_void_p()
        self.library.call(function, *arguments, c.byref(handle))
        self.handles[noun] = handle
        return handle

    def _call(self, name, *arguments):
        """Calls a function of the engine's thread and notes how long it took at most."""
        began = time.monotonic()
        self.library.call(name, *arguments)
        self.longest[name] = max(self.longest.get(name, 0), time.monotonic() - began)

    def stats(self):
        """The worker's counters."""
        stats = Stats(c.sizeof(Stats))
        self._call("kvb_worker_stats", self.worker, c.byref(stats))
        return stats

    def shutdown(self, deadline_ms):
        """Ends the worker."""
        self._call("kvb_worker_shutdown", self.worker, c.c_uint64(deadline_ms))

    def serve(self, number, prompt, compute):
        """Runs a prompt in one pass. compute(first) fills the pages from that block on. Answers how many tokens came from the
        pool, when its pages are free again."""
        call, scheduler, worker = self._call, self.scheduler, self.worker
        tokens = (c.c_int32 * len(prompt))(*prompt)
        given = Tokens(c.addressof(tokens), len(prompt), 0)
        offered, later, pinned = c.c_uint64(), c.c_bool(), c.c_bool()
        request = Request(c.sizeof(Request), number, given)
        call(
            "kvb_scheduler_match",
            scheduler,
            c.byref(request),
            c.c_uint64(0),
            c.byref(offered),
            c.byref(later),
        )
        blocks = -(-len(prompt) // BLOCK)
        pages = GroupPages(0, 0, (c.c_int32 * blocks)(*range(blocks)), blocks, 0)
        one = c.c_size_t(1)
        number = c.c_uint64(number)
        call("kvb_scheduler_allocated", scheduler, number, offered, c.byref(pages), one)
        fresh = len(prompt) - offered.value
        step = Step(number, given, c.pointer(pages), 1, 0, fresh)
        metadata = c.c_void_p()
        whole = Pass(c.sizeof(Pass), c.pointer(step), 1)
        call("kvb_scheduler_build", scheduler, c.byref(whole), c.byref(metadata))
        call("kvb_worker_bind", worker, metadata, None)
        self.library.free("kvb_metadata_free", metadata)
        call("kvb_worker_start_load", worker, None)
        compute(offered.value // BLOCK)
        call("kvb_worker_wait_for_save", worker, None)
        call("kvb_scheduler_finished", scheduler, number, c.c_int32(0), c.byref(pinned))
        announced, saved, loaded = c.c_size_t(int(pinned.value)), Ids(), Ids()
        began = time.monotonic()
        while pinned.value:
            assert time.monotonic() - began < PATIENCE, "the pages do not come back"
            call(
                "kvb_worker_get_finished",
                worker,
                c.byref(number),
                announced,
                None,
                c.c_size_t(0),
                c.byref(saved),
                c.byref(loaded),
            )
            if saved.count:
                break
            announced = c.c_size_t(0)
            time.sleep(0.001)
        return offered.value

    def free(self):
        """Frees all but the store."""
        for noun in ("kvb_scheduler", "kvb_worker", "kvb_layout", "kvb_config"):
            self.library.free(f"{noun}_free", self.handles[noun])
