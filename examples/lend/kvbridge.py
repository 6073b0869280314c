"""As much of kvbridge.h as lending a store needs, through ctypes.

ctypes.CDLL gives up the GIL for the length of a call and takes it for each callback, on whatever
thread that comes.
"""

import ctypes as c
import json

PRESENT, ABSENT, UNKNOWN = 1, 0, 2
PUT_STORED, PUT_ALREADY_THERE, PUT_NO_SPACE, PUT_FAILED = range(4)
GET_LANDED, GET_MISSING, GET_WRONG_SIZE, GET_FAILED = range(4)
REMOVE_REMOVED, REMOVE_MISSING, REMOVE_LEASED, REMOVE_FAILED = range(4)
STORE_UNREACHABLE, STORE_STILL_IN_USE = -20011, -20013
LOG_WARN, LOG_INFO = 2, 3


class Bytes(c.Structure):
    """kvb_bytes"""

    _fields_ = [("data", c.c_void_p), ("size", c.c_size_t)]

    def text(self):
        """The text that it points to."""
        return c.string_at(self.data, self.size).decode() if self.size else ""


class Piece(c.Structure):
    """kvb_piece"""

    _fields_ = [("address", c.c_uint64), ("size", c.c_uint64)]


class Engine(c.Structure):
    """kvb_engine, as far as it is not 0: a shorter struct is one of an earlier version."""

    _fields_ = [
        (name, c.c_uint32)
        for name in "struct_size tokens_per_block tp_rank tp_size pp_size cp_size ranks_on_node".split()
    ]


def engine(tokens_per_block):
    """One rank with a cache in host memory."""
    return Engine(c.sizeof(Engine), tokens_per_block, 0, 1, 1, 1, 1)


class PutOptions(c.Structure):
    """kvb_put_options"""

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("soft_pin_ttl_ms", c.c_uint64),
        ("groups", c.POINTER(Bytes)),
        ("group_count", c.c_size_t),
    ]


class StoreCall(c.Structure):
    """kvb_store_call"""

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("force", c.c_uint8),
        ("count", c.c_size_t),
        ("keys", c.POINTER(Bytes)),
        ("pieces", c.POINTER(Piece)),
        ("piece_ends", c.POINTER(c.c_size_t)),
        ("outcomes", c.POINTER(c.c_int32)),
        ("sizes", c.POINTER(c.c_uint64)),
        ("soft_pin_ttl_ms", c.c_uint64),
        ("groups", c.POINTER(Bytes)),
        ("tenant", Bytes),
    ]


BatchFunction = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(StoreCall))
RangeFunction = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_uint64, c.c_uint64)
HealthFunction = c.CFUNCTYPE(c.c_int32, c.c_void_p)
ReleaseFunction = c.CFUNCTYPE(None, c.c_void_p)
LogFunction = c.CFUNCTYPE(
    None, c.c_void_p, c.c_int32, c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t
)


class StoreTable(c.Structure):
    """kvb_store_table"""

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("context", c.c_void_p),
        ("exist", BatchFunction),
        ("put", BatchFunction),
        ("get", BatchFunction),
        ("remove", BatchFunction),
        ("register_memory", RangeFunction),
        ("unregister_memory", RangeFunction),
        ("health", HealthFunction),
        ("release", ReleaseFunction),
        ("pieces_per_key", c.c_uint32),
        ("keys_per_call", c.c_uint32),
        ("soft_pin_ttl", c.c_uint8),
        ("groups", c.c_uint8),
        ("tenant", c.c_uint8),
        ("device_memory", c.c_uint8),
        ("serial", c.c_uint8),
    ]


class Error(Exception):
    """A call that failed: its status and the library's text."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Library:
    """libkvbridge.so"""

    def __init__(self, path):
        self._functions = c.CDLL(path)
        self._log = None

    def call(self, name, *arguments):
        """Calls a function that answers a status."""
        status = getattr(self._functions, name)(*arguments)
        if status != 0:
            text = c.create_string_buffer(4096)
            self._functions.kvb_last_error(text, c.c_size_t(len(text)), None)
            raise Error(status, text.value.decode())

    def free(self, name, handle):
        """Frees a handle."""
        getattr(self._functions, name)(handle)

    def set_log(self, hear, level=LOG_INFO):
        """Has hear(level, text) called for each line, on any thread; None ends that."""
        if hear is None:
            function = c.cast(None, LogFunction)
        else:
            function = LogFunction(
                lambda _, level, target, target_size, text, size: hear(
                    level, c.string_at(text, size).decode()
                )
            )
        self.call("kvb_set_log", function, None, c.c_int32(level))
        # Only now: the one before may have been running until then.
        self._log = function


class Store:
    """An open kvb_store. Free it before Python ends."""

    def __init__(self, library, settings, table=None, tokens_per_block=16):
        self._library = library
        text = json.dumps(settings).encode()
        config, self.handle = c.c_void_p(), c.c_void_p()
        library.call("kvb_config_from_json", text, c.c_size_t(len(text)), c.byref(config))
        given = c.byref(table) if table is not None else None
        try:
            library.call(
                "kvb_store_open", config, c.byref(engine(tokens_per_block)), given, c.byref(self.handle)
            )
        finally:
            library.free("kvb_config_free", config)

    def free(self):
        """Gives the handle back."""
        self._library.free("kvb_store_free", self.handle)
        self.handle = c.c_void_p()

    def exist(self, keys):
        """One of PRESENT, ABSENT, UNKNOWN per key."""
        names = texts(keys)
        out = (c.c_int32 * len(keys))()
        self._library.call("kvb_store_exist", self.handle, names, c.c_size_t(len(keys)), out)
        return list(out)

    def put(self, keys, pieces, soft_pin_ttl_ms=0, groups=None):
        """Stores one piece (address, size) per key: one of PUT_* each."""
        names, values = texts(keys), (Piece * len(pieces))(*pieces)
        options = PutOptions(c.sizeof(PutOptions), soft_pin_ttl_ms)
        if groups is not None:
            list_of_groups = texts(groups)
            options.groups, options.group_count = list_of_groups, len(groups)
        out = (c.c_int32 * len(keys))()
        self._library.call(
            "kvb_store_put_with_options",
            self.handle,
            names,
            values,
            c.c_size_t(len(keys)),
            c.byref(options),
            out,
        )
        return list(out)

    def get(self, keys, pieces):
        """Reads one object per key into its piece (address, size): one of GET_* each."""
        names, buffers = texts(keys), (Piece * len(pieces))(*pieces)
        out, sizes = (c.c_int32 * len(keys))(), (c.c_uint64 * len(keys))()
        self._library.call(
            "kvb_store_get", self.handle, names, buffers, c.c_size_t(len(keys)), out, sizes
        )
        return list(out)

    def remove(self, keys):
        """Removes objects: one of REMOVE_* per key."""
        names = texts(keys)
        out = (c.c_int32 * len(keys))()
        self._library.call("kvb_store_remove", self.handle, names, c.c_size_t(len(keys)), out)
        return list(out)


def texts(texts):
    """A list of kvb_bytes, which keeps what it points to."""
    encoded = [text.encode() for text in texts]
    # One buffer for all: asking ctypes for an address takes longer than all the rest.
    joined = b"".join(encoded)
    address = c.cast(c.c_char_p(joined), c.c_void_p).value
    array = (Bytes * max(len(encoded), 1))()
    for entry, text in zip(array, encoded):
        entry.data, entry.size = address, len(text)
        address += len(text)
    array.joined = joined
    return array
