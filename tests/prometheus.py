"""Has the official parser read what a worker writes for Prometheus.

    prometheus.py LIBRARY
"""

import ctypes as c
import sys

from prometheus_client.parser import text_string_to_metric_families

CONFIG = b'{"model_key": "m", "stats_interval": 60, "kvbridge": {"pool": "prometheus"}}'


class Engine(c.Structure):
    """kvb_engine, as far as it is not 0."""

    _fields_ = [
        (name, c.c_uint32)
        for name in "size tokens_per_block rank tp_size pp_size cp_size ranks".split()
    ]


def main():
    """Compares the families, samples and labels with what is documented."""
    library = c.CDLL(sys.argv[1])

    def call(name, *arguments):
        status = getattr(library, name)(*arguments)
        if status != 0:
            sys.exit(f"{name} answered {status}")

    config, worker = c.c_void_p(), c.c_void_p()
    call("kvb_config_from_json", CONFIG, c.c_size_t(len(CONFIG)), c.byref(config))
    engine = Engine(c.sizeof(Engine), 16, 0, 1, 1, 1, 1)
    call("kvb_worker_new", config, c.byref(engine), None, c.byref(worker))
    needed = c.c_size_t()
    library.kvb_worker_prometheus(worker, None, c.c_size_t(0), c.byref(needed))
    buffer = c.create_string_buffer(needed.value + 64)
    call("kvb_worker_prometheus", worker, buffer, c.c_size_t(len(buffer)), c.byref(needed))
    library.kvb_worker_free(worker)
    library.kvb_config_free(config)

    families = {family.name: family for family in text_string_to_metric_families(buffer.value.decode())}
    types = {name: family.type for name, family in families.items()}
    assert types["kvbridge_lookups"] == "counter", types
    assert types["kvbridge_saves_in_flight"] == "gauge", types
    phases = families["kvbridge_load_phase_seconds"].samples
    labels = {(sample.labels["phase"], sample.labels["clock"]) for sample in phases}
    assert len(phases) == len(labels) == 12, phases
    for family in families.values():
        assert family.documentation and family.samples, family
        assert all(sample.labels["rank"] == "0" for sample in family.samples), family
    print(f"{len(families)} families")


main()
