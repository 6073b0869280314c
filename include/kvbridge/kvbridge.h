/** @file
 * kvbridge: a shared pool of KV-cache pages for LLM inference engines.
 *
 * What one server has prefilled, every other server that runs the same model can load instead of
 * computing it again. An engine makes a kvb_config, a kvb_worker on every rank and a kvb_scheduler
 * on its leader (under attention data parallelism on every rank), and calls per pass:
 * kvb_scheduler_match and kvb_scheduler_allocated for new requests, kvb_scheduler_build, on every
 * rank kvb_worker_bind and kvb_worker_start_load, after the forward pass kvb_worker_wait_for_save,
 * then kvb_scheduler_finished and kvb_worker_get_finished; kvb_worker_take_failed_loads any time
 * behind the load and before results count.
 *
 * Conventions, said once and valid for every function:
 *
 * - Status. Functions return kvb_status: KVB_OK or why nothing was done. A miss is an outcome, not
 *   an error. The text of the calling thread's latest failure is copied by kvb_last_error.
 * - Errors. Besides those that are named, every function may answer KVB_NULL_POINTER,
 *   KVB_INVALID_ARGUMENT, KVB_NO_MEMORY, KVB_POISONED and KVB_PANIC, and one with a non-const
 *   receiver KVB_BUSY.
 * - Outputs. They are written only on success. A NULL output is refused before anything is done.
 * - Parameters. The receiver, inputs, outputs; pointer and length side by side. Length 0 ignores
 *   the pointer. Inputs are borrowed for the call; what is kept is copied. Pointers must be
 *   aligned for their type.
 * - Handles. Opaque, made by `_new`, `_open`, `_from_` and `_build` functions, owned by the caller,
 *   given back once to their `_free` function, in any order. A pointer that is no live handle is
 *   refused where that can be seen, but do not rely on it.
 * - Threads. A const receiver may be called from several threads at once. A non-const receiver
 *   takes one call at a time: a second one answers KVB_BUSY and does nothing. No handle is tied to
 *   a thread.
 * - Blocking. A function that can wait says so in a line "Blocks:". The others do not.
 * - Structs. One that begins with struct_size may grow: set it to sizeof the struct. Of a shorter
 *   one the missing tail counts as zero; of a longer one, the tail that this library does not
 *   know is ignored on the way in and left alone on the way out, so zero it first. Elements of
 *   arrays are frozen.
 * - Numbers. Flags are uint8_t, 0 or 1; enumerations come in as int32_t constants; both are
 *   checked. Token counts and positions are in tokens, sizes and addresses in bytes.
 * - Buffers. `buffer`, `capacity`, `out_needed`: too little room answers KVB_TOO_SMALL with the
 *   bytes that are needed in out_needed, and writes nothing else. Ask with capacity 0. A char
 *   buffer gets a terminated text, and out_needed counts the terminator.
 * - Host functions. A C++ exception that one throws is contained: it never ends the process. Other
 *   ways out of it, such as longjmp, are not allowed. Calls from inside the log callback answer
 *   KVB_BUSY and do nothing, but for kvb_last_error.
 */

#ifndef KVBRIDGE_KVBRIDGE_H
#define KVBRIDGE_KVBRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== what functions answer ==== */

/**
 * What a function answers: `KVB_OK` or the reason why it did nothing. Numbers are pinned and
 * never reused: 1-9 the caller's arguments, 10-19 state, 20-29 pool, 30-39 device and machine,
 * 40-49 configuration and engine, 90 panic. Treat a number you do not know as a failure.
 */
typedef int32_t kvb_status;

/** Done; the outputs are written. */
#define KVB_OK 0

/** An argument has a value that the function does not take. */
#define KVB_INVALID_ARGUMENT 1

/** A required pointer is NULL; the text names it. */
#define KVB_NULL_POINTER 2

/** A buffer is too small. The size needed was written, nothing else, and nothing was consumed. */
#define KVB_TOO_SMALL 3

/** A number lies outside what its object has (a page index, a group id, a position). */
#define KVB_OUT_OF_RANGE 4

/** The feature is specified, but this build does not have it. */
#define KVB_UNSUPPORTED 5

/** Bytes that should decode do not. */
#define KVB_MALFORMED 6

/** The call is not allowed in the state its receiver is in. */
#define KVB_BAD_STATE 10

/** Another call on the same handle is running, and this one may not run beside it. */
#define KVB_BUSY 11

/** The receiver was shut down. */
#define KVB_CLOSED 12

/** An earlier call on this handle ended in KVB_PANIC. Only its free function still works. */
#define KVB_POISONED 13

/** What the engine reports contradicts what it reported before. Nothing was changed. */
#define KVB_CONTRADICTION 14

/** A call to the pool failed as a whole. */
#define KVB_POOL_FAILED 20

/**
 * Pages that the engine counts as computed did not arrive, and no request can be handed back
 * (tensor parallelism): the batch must not run. To go on, throw the pass away on all ranks, preempt
 * the requests that load and allocate them with 0 honoured tokens, and describe the others again.
 * With async_load every later call answers this too: the worker must be made anew.
 */
#define KVB_LOAD_FAILED 21

/** The pool cannot do what the configuration asks for; the text names what is missing. */
#define KVB_POOL_REFUSED 22

/** The device reported an error. */
#define KVB_DEVICE_FAILED 30

/** The device that was asked for is not there. */
#define KVB_NO_DEVICE 31

/** Memory could not be had. */
#define KVB_NO_MEMORY 32

/** A thread could not be started. */
#define KVB_NO_THREAD 33

/** The device reported an error after which it works no more in this process. */
#define KVB_DEVICE_LOST 34

/** The configuration is wrong; the text lists every problem found. */
#define KVB_CONFIG_INVALID 40

/** The configuration file cannot be read. */
#define KVB_CONFIG_UNREADABLE 41

/** The engine as described may not use the library this way. */
#define KVB_ENGINE_REFUSED 42

/** A defect of the library, caught at the boundary. The handle is poisoned. */
#define KVB_PANIC 90

/* ==== the log ==== */

/** Something failed that the operator should know. */
#define KVB_LOG_ERROR 1

/** Something was degraded or ignored. */
#define KVB_LOG_WARN 2

/** What was opened, registered, shut down; statistics lines. */
#define KVB_LOG_INFO 3

/** Decisions per pass. */
#define KVB_LOG_DEBUG 4

/** Decisions per block. */
#define KVB_LOG_TRACE 5

/**
 * Receives one log line: `level` is one of `KVB_LOG_*`, `target` the part of the library that
 * speaks. Both texts are UTF-8, not terminated, and valid during the call only.
 *
 * It is called on whatever thread the line arises, also on threads of the library, by several at
 * once. It must return soon and must not call `kvb_set_log`. An exception that it throws ends in
 * the library: that line is lost and the call goes on. `kvb_last_error` has the exception's text
 * on the thread that logged, and a warning behind the next line that gets through has it, too.
 */
typedef void (*kvb_log_callback)(void *context,
                                 int32_t level,
                                 const char *target,
                                 size_t target_size,
                                 const char *message,
                                 size_t message_size);

/* ==== the library as a whole ==== */

/**
 * The version of this interface. It grows by appending alone; a number that changes means that
 * hosts must be built anew, and is the library's SONAME.
 */
#define KVB_ABI_VERSION 1

/**
 * The library's version, "major.minor.patch", as a terminated string that lives as long as the
 * process.
 */
const char *kvb_version(void);

/** The KVB_ABI_VERSION that the library was built with. Compare it with the header's. */
uint32_t kvb_abi_version(void);

/**
 * Copies the text of the calling thread's latest failed call: the function, what was wrong, why.
 * Calls that succeed leave it as it is; it is empty when none failed yet.
 *
 * Unlike other buffers this one is also written when it is too small: the text is cut, at a whole
 * character, and terminated all the same, so that a fixed array is enough for printing.
 * `out_needed` may be NULL.
 *
 * Returns KVB_TOO_SMALL when the text was cut. No status of this function replaces the text.
 */
kvb_status kvb_last_error(char *buffer, size_t capacity, size_t *out_needed);

/**
 * Sets the one callback that receives the library's log, or with NULL removes it. Without one
 * nothing is logged; nothing ever goes to standard output or error. `max_level` is the finest
 * level wanted, one of KVB_LOG_*; it is ignored when there is no callback.
 *
 * The callback is the process's: the last call wins. When this returns, the callback set before
 * is not running and is never called again, so that its context may be freed.
 *
 * Threads: any. Blocks: until lines that are being delivered are through.
 * Errors: KVB_INVALID_ARGUMENT, a level that is none; KVB_BUSY, called from the callback.
 */
kvb_status kvb_set_log(kvb_log_callback callback_or_null, void *context, int32_t max_level);

/* ==== plain data that several nouns share ==== */

/** kvb_tokens.element_type: `const int32_t *` */
#define KVB_TOKENS_INT32 0

/** kvb_tokens.element_type: `const int64_t *` */
#define KVB_TOKENS_INT64 1

/** kvb_engine.serving: prefills and decodes. */
#define KVB_SERVING_AGGREGATED 0

/** kvb_engine.serving: disaggregated, prefills only. */
#define KVB_SERVING_CONTEXT 1

/** kvb_engine.serving: disaggregated, decodes only. */
#define KVB_SERVING_GENERATION 2

/** kvb_engine.drafter: no speculative decoding. */
#define KVB_DRAFTER_NONE 0

/** kvb_engine.drafter: one-model multi-token prediction, one layer per draft token. */
#define KVB_DRAFTER_MTP_VANILLA 1

/** kvb_engine.drafter: one-model multi-token prediction, one layer used repeatedly. */
#define KVB_DRAFTER_MTP_EAGLE 2

/** kvb_engine.drafter: EAGLE3 with its layers inside the target model. */
#define KVB_DRAFTER_EAGLE3 3

/** kvb_engine.drafter: anything else; refused. */
#define KVB_DRAFTER_OTHER 4

/** kvb_engine.device_kind: the cache is memory that the CPU reads and writes. */
#define KVB_DEVICE_HOST 0

/** kvb_engine.device_kind: the cache is memory of a CUDA device. It needs the driver, 12.0 or newer. */
#define KVB_DEVICE_CUDA 1

/** Borrowed bytes; size 0 ignores the pointer. Texts are UTF-8 and need no terminator. */
typedef struct kvb_bytes {
  /** Where they start. */
  const uint8_t *data;
  /** How many there are. */
  size_t size;
} kvb_bytes;

/** A piece of host memory. */
typedef struct kvb_piece {
  /** Its address; ignored when the size is 0. */
  uint64_t address;
  /** Its size in bytes. */
  uint64_t size;
} kvb_piece;

/**
 * Borrowed token ids in the width that the engine has them. Equal values mean the same tokens in
 * both.
 */
typedef struct kvb_tokens {
  /** The first token; aligned for its type. */
  const void *data;
  /** How many there are; 0 ignores the pointer and the type. */
  size_t count;
  /** KVB_TOKENS_*. */
  int32_t element_type;
} kvb_tokens;

/** The engine's description of itself; the same for every handle of one rank. */
typedef struct kvb_engine {
  /** sizeof(kvb_engine) */
  uint32_t struct_size;
  /** Tokens per block; at least 1. */
  uint32_t tokens_per_block;
  /** This rank among the tensor-parallel ranks; under attention DP the owner's index. */
  uint32_t tp_rank;
  /** Number of tensor-parallel ranks; under attention DP of owners. */
  uint32_t tp_size;
  /** Pipeline-parallel stages: 1 (0 counts as 1); more are refused. */
  uint32_t pp_size;
  /** Context-parallel ranks: 1 (0 counts as 1); more are refused. */
  uint32_t cp_size;
  /** Ranks that share this node's memory (0 counts as 1). */
  uint32_t ranks_on_node;
  /** KVB_SERVING_*. */
  int32_t serving;
  /** KVB_DRAFTER_*. */
  int32_t drafter;
  /** Draft tokens per step; -1 while it is not resolved. */
  int32_t max_draft_len;
  /** KVB_DEVICE_*. */
  int32_t device_kind;
  /**
   * Number of the device that the context is of which is current when the layout is registered; -1 for
   * any. Ignored for host memory.
   */
  int32_t device_ordinal;
  /** Flag: every rank holds whole attention heads and owns its requests. */
  uint8_t attention_dp;
  /** Flag: the drafter's layers are layers of the same KV cache. */
  uint8_t draft_shares_cache;
  /** Flag: each kvb_worker_bind brings an allocation fence. */
  uint8_t supplies_fences;
} kvb_engine;

/**
 * A request: its prompt and everything else that decides what its KV is. Requests share pages
 * only when salt, adapter and media are the same too.
 */
typedef struct kvb_request {
  /** sizeof(kvb_request) */
  uint32_t struct_size;
  /**
   * The engine's id; unique among live requests. It may come again after kvb_scheduler_finished
   * or kvb_scheduler_reset, also before its end was announced to kvb_worker_get_finished. What
   * failed to load is remembered by id.
   */
  uint64_t request_id;
  /** The whole prompt. */
  kvb_tokens prompt;
  /** Keeps tenants apart. Counts when has_cache_salt is 1, also when it is empty. */
  kvb_bytes cache_salt;
  /**
   * The adapter, as bytes that the engine chooses (a content digest, a name). Counts when
   * has_lora_identity is 1.
   */
  kvb_bytes lora_identity;
  /** The adapter's task id; the key scheme trtllm needs it. Counts when has_lora_task_id is 1. */
  int64_t lora_task_id;
  /** Digests of all media items, 32 bytes each, in prompt order, duplicates kept. */
  const uint8_t *media_digests;
  /** How many media items have a digest. */
  size_t media_count;
  /** Flag. */
  uint8_t has_cache_salt;
  /** Flag. */
  uint8_t has_lora_identity;
  /** Flag. */
  uint8_t has_lora_task_id;
  /** Flag: the prompt stands for media. Without digests such a request takes no part. */
  uint8_t has_media;
  /** Flag: only the prefill is done here. With a drafter all requests must be so. */
  uint8_t context_only;
} kvb_request;

/**
 * Pages of one layer group, from one block ordinal on. What overlaps with pages reported before
 * must be identical, and a gap is an error.
 */
typedef struct kvb_group_pages {
  /** Id of the layer group. */
  uint32_t group_id;
  /** Ordinal of the block that the first index belongs to. */
  uint32_t first_block;
  /** Memory-pool slots, one per block; -1 is no page and keeps its place. */
  const int32_t *indices;
  /** How many there are. */
  size_t count;
  /** Flag: this is the group's whole list now. */
  uint8_t replace;
} kvb_group_pages;

/**
 * Ids as a view into the handle that gave them: valid until the next call on it that has a
 * non-const receiver.
 */
typedef struct kvb_ids {
  /** The first id. */
  const uint64_t *data;
  /** How many there are. */
  size_t count;
} kvb_ids;

/* ==== configuration ==== */

/**
 * A validated configuration: one JSON object, immutable once read.
 *
 * Threads: shared. Made by kvb_config_from_file and kvb_config_from_json, freed by
 * kvb_config_free; what was made from it does not need it any more.
 */
typedef struct kvb_config kvb_config;

/**
 * Reads the configuration file at `path_or_null` (UTF-8). With NULL, whatever `path_size` is, it
 * is the file that the environment variable KVBRIDGE_CONFIG names, else the one that
 * MOONCAKE_CONFIG_PATH names. The environment is read in this call only, and never changed.
 *
 * Threads: any. Blocks: while the file is read.
 * Errors: KVB_INVALID_ARGUMENT, a path that is not NULL and empty, or has a NUL in it;
 * KVB_CONFIG_UNREADABLE; KVB_CONFIG_INVALID with every problem of the file, one a line.
 */
kvb_status kvb_config_from_file(const char *path_or_null,
                                size_t path_size,
                                kvb_config **out);

/**
 * Reads a configuration from the bytes of its JSON text.
 *
 * Threads: any. Errors: KVB_CONFIG_INVALID with every problem of the text, one a line.
 */
kvb_status kvb_config_from_json(const uint8_t *json, size_t size, kvb_config **out);

/**
 * Writes the effective configuration as JSON text: every field, also those left to their
 * defaults. Reading it gives the same configuration.
 *
 * Errors: KVB_TOO_SMALL.
 */
kvb_status kvb_config_render(const kvb_config *config,
                             char *buffer,
                             size_t capacity,
                             size_t *out_needed);

/** Frees a configuration. NULL is fine. */
void kvb_config_free(kvb_config *config);

/* ==== cache layout ==== */

/**
 * A cache layout: which bytes a page consists of, per layer group. It is built step by step, then
 * registered with a worker, which keeps a copy.
 *
 * Threads: exclusive. Made by kvb_layout_new, freed by kvb_layout_free at any time after its use.
 */
typedef struct kvb_layout kvb_layout;

/**
 * A layer group: layers that share one page index space, such as one attention window. It names
 * pages, so it must be the same on every rank and every server.
 */
typedef struct kvb_group {
  /** The engine's id for the group; unique in the layout. */
  uint32_t id;
  /** Attention window in tokens; 0 for full attention. */
  uint32_t window;
  /**
   * How numbers are encoded: float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, nvfp4,
   * mxfp8, mxfp4, int4, or "custom:" and a text.
   */
  kvb_bytes number_format;
  /** The engine's word for the order of bytes inside a region, such as "HND"; may be empty. */
  kvb_bytes layout_tag;
  /** The layers of the group, each once. */
  const uint32_t *layer_ids;
  /** How many there are. */
  size_t layer_count;
} kvb_group;

/**
 * One strided byte range: page i's part of it starts at base + i * stride and has `size` bytes. A
 * page is the concatenation of its group's regions in the order they were added.
 */
typedef struct kvb_region {
  /** Address of slot 0. */
  uint64_t base;
  /** Bytes per slot. */
  uint64_t size;
  /** Bytes from one slot to the next; at least `size`. */
  uint64_t stride;
  /** Number of slots. */
  uint64_t slot_count;
  /** Start of the virtual reservation that the region lies in; 0 without one. */
  uint64_t reservation_base;
} kvb_region;

/** A block pool as a native KVCacheManager lays it out. */
typedef struct kvb_pool {
  /** Address of the pool. */
  uint64_t base;
  /** Number of blocks. */
  uint64_t num_blocks;
  /** Number of layers. */
  uint32_t num_layers;
  /** 2 for key and value, 1 where there is no value (MLA). */
  uint32_t kv_factor;
  /** Elements per block, layer and factor. */
  uint64_t block_size;
  /** Bits per element. */
  uint32_t element_bits;
  /** Flag. 0: [blocks, layers, factor, block_size]; 1: [layers, blocks, factor, block_size]. */
  uint8_t layer_first;
  /** Flag: the bytes are the same on every rank of the tensor-parallel group. */
  uint8_t replicated;
  /** Start of the virtual reservation that the pool lies in; 0 without one. */
  uint64_t reservation_base;
} kvb_pool;

/**
 * Begins an empty layout. `mapping_bytes` is the size of the physical mappings that the cache's
 * memory is made of, beyond which one registration must not reach; 0 if it does not matter.
 *
 * Threads: any.
 */
kvb_status kvb_layout_new(uint64_t mapping_bytes, kvb_layout **out);

/**
 * Adds a layer group without regions.
 *
 * Errors: KVB_INVALID_ARGUMENT, the id is taken, a layer comes twice, a text is not UTF-8.
 */
kvb_status kvb_layout_add_group(kvb_layout *layout, const kvb_group *group);

/**
 * Appends a region to a group's sharded page: bytes that belong to this rank.
 *
 * Errors: KVB_INVALID_ARGUMENT, the group is not there, or the region is empty, overlaps with
 * itself or does not fit into 64-bit addresses.
 */
kvb_status kvb_layout_add_region(kvb_layout *layout,
                                 uint32_t group_id,
                                 const kvb_region *region);

/**
 * Appends a region to a group's replicated page: bytes that are the same on every rank of the
 * tensor-parallel group. They are stored once, written by rank 0 and read by all.
 *
 * Errors: as kvb_layout_add_region.
 */
kvb_status kvb_layout_add_replicated_region(kvb_layout *layout,
                                            uint32_t group_id,
                                            const kvb_region *region);

/**
 * Appends the regions of one KVCacheManager block pool: one, or one per layer when the layers
 * come first.
 *
 * Errors: as kvb_layout_add_region; also when a page's bytes are not whole.
 */
kvb_status kvb_layout_add_pool(kvb_layout *layout,
                               uint32_t group_id,
                               const kvb_pool *pool);

/** Frees a layout; workers that registered it have their copy. NULL is fine. */
void kvb_layout_free(kvb_layout *layout);

/* ==== a pool behind functions of the host ==== */

/**
 * An outcome or a return value of a function of kvb_store_table: the pool, or the part of it that
 * holds the key, cannot be reached. The library counts the pool as down, and the pieces of a get as
 * still in use.
 */
#define KVB_STORE_UNREACHABLE -20011

/**
 * An outcome or a return value: it failed, and the pool may still read or write the pieces. They are
 * never used again, and never freed. The library counts the pool as down.
 */
#define KVB_STORE_STILL_IN_USE -20013

/**
 * What kvb_store_call.outcomes holds before the call: a key that keeps it got no answer. It counts
 * like KVB_STORE_UNREACHABLE, and so does a function that throws.
 */
#define KVB_STORE_NO_ANSWER -20009

/**
 * A batch for a function of kvb_store_table. All that it points to is valid during the call only.
 * Its struct_size is the library's: read a field only if it lies within.
 */
typedef struct kvb_store_call {
  /** Bytes of this struct in the library. */
  uint32_t struct_size;
  /** Flag, for remove: also what is leased. */
  uint8_t force;
  /** How many keys there are; at least 1, at most the table's keys_per_call. */
  size_t count;
  /** The keys. A NUL stands behind each; its size does not count it. */
  const kvb_bytes *keys;
  /**
   * For put and get: the pieces of all keys, one key behind the other. A put must not write to
   * them.
   */
  const kvb_piece *pieces;
  /**
   * For put and get: key i has the pieces from `piece_ends[i - 1]` (0 for the first key) up to
   * `piece_ends[i]`. An object is its pieces, one behind the other.
   */
  const size_t *piece_ends;
  /**
   * One per key, to be written: KVB_ABSENT or KVB_PRESENT, KVB_PUT_*, KVB_GET_*, KVB_REMOVE_*, or a
   * negative code, one of the pool's own from -19999 to -1 or a KVB_STORE_*. Holds
   * KVB_STORE_NO_ANSWER.
   */
  int32_t *outcomes;
  /**
   * For get, one per key, to be written: the object's bytes, with KVB_GET_LANDED exactly those of
   * its pieces, with KVB_GET_WRONG_SIZE others. Holds 0.
   */
  uint64_t *sizes;
  /** For put: how long to keep the objects before others are evicted, in milliseconds; 0: no soft pin. */
  uint64_t soft_pin_ttl_ms;
  /**
   * For put: NULL, or one eviction group per key, each with a NUL behind it. Objects of a group are
   * evicted together; an empty one stands for no group.
   */
  const kvb_bytes *groups;
  /** The configuration's tenant_id with a NUL behind it; size 0 if it has none. */
  kvb_bytes tenant;
} kvb_store_call;

/**
 * Carries out one batch: exist, put, get or remove. Returns 0 when it wrote the outcomes, else a
 * negative code that stands for every key.
 */
typedef int32_t (*kvb_store_batch_function)(void *context, const kvb_store_call *call);

/** Takes a range of memory into use, or out of it. Returns 0, or a code. */
typedef int32_t (*kvb_store_range_function)(void *context, uint64_t address, uint64_t size);

/** Returns 0 while the pool can be used, as far as is known without asking anyone, else a code. */
typedef int32_t (*kvb_store_health_function)(void *context);

/** Takes the table's context back. */
typedef void (*kvb_store_release_function)(void *context);

/**
 * A pool behind functions of the host, for kvbridge.store = "host". The table is copied; the
 * functions and what `context` points to stay valid until `release` was called. The manual is
 * docs/lending.md.
 *
 * Threads: functions are called on threads of the library, several at once unless `serial` is 1;
 * `release` on any thread, after all others. A function may take as long as it likes: the library
 * goes on without it at its deadline, and keeps what the call was given. It must not throw; if it
 * does, all keys of the call have failed as with KVB_STORE_NO_ANSWER. It may call the library, but
 * should not on a handle that goes through this table: with `serial` such a call waits until its
 * deadline.
 */
typedef struct kvb_store_table {
  /** sizeof(kvb_store_table) */
  uint32_t struct_size;
  /** Passed to each function. */
  void *context;
  /** Which keys are there, complete: KVB_ABSENT or KVB_PRESENT. Required. */
  kvb_store_batch_function exist;
  /**
   * Stores one object per key: KVB_PUT_*. A key that is there keeps its bytes, and an object is
   * visible only once it is complete. Required.
   */
  kvb_store_batch_function put;
  /** Reads one object per key into pieces of exactly its size: KVB_GET_*. Required. */
  kvb_store_batch_function get;
  /** Removes objects: KVB_REMOVE_*. Called for kvb_store_remove. NULL: every key of it fails. */
  kvb_store_batch_function remove;
  /** Called with a range before pieces lie in it. NULL: the pool need not know. */
  kvb_store_range_function register_memory;
  /** Called with a range that was registered, when no piece in it is in use any more. NULL: as above. */
  kvb_store_range_function unregister_memory;
  /** Whether the pool can be used. Nothing calls it yet. NULL: as far as is known, it can. */
  kvb_store_health_function health;
  /**
   * Called once, on any thread, when no handle has the pool open and no function of the table is
   * running, if kvb_store_open answered KVB_OK. NULL: nobody tells.
   */
  kvb_store_release_function release;
  /** Most pieces per key; 0 counts as 1. */
  uint32_t pieces_per_key;
  /** Most keys per call; 0: no limit. */
  uint32_t keys_per_call;
  /** Flag: put honours soft_pin_ttl_ms. */
  uint8_t soft_pin_ttl;
  /** Flag: put honours groups. */
  uint8_t groups;
  /** Flag: keys of different tenants are kept apart. */
  uint8_t tenant;
  /** Flag: pieces may be memory of a device. */
  uint8_t device_memory;
  /** Flag: one call at a time. A call that hangs then holds the others up until their deadlines. */
  uint8_t serial;
} kvb_store_table;

/* ==== a pool by itself: for tools and tests, engines need only the worker ==== */

/** kvb_store_exist: the pool does not have it. */
#define KVB_ABSENT 0

/** kvb_store_exist: the pool has it, complete. */
#define KVB_PRESENT 1

/** kvb_store_exist: the pool did not say. Never a hit. */
#define KVB_UNKNOWN 2

/** kvb_store_put: stored. */
#define KVB_PUT_STORED 0

/** kvb_store_put: the pool has an object of this key, or is just getting one; that stays. */
#define KVB_PUT_ALREADY_THERE 1

/** kvb_store_put: no room now. */
#define KVB_PUT_NO_SPACE 2

/** kvb_store_put: not stored for another reason. */
#define KVB_PUT_FAILED 3

/** kvb_store_get: the whole object landed. */
#define KVB_GET_LANDED 0

/** kvb_store_get: there is no such object; its buffer is untouched. */
#define KVB_GET_MISSING 1

/**
 * kvb_store_get: the object does not have the buffer's size; out_sizes has its own. The buffer is
 * untouched.
 */
#define KVB_GET_WRONG_SIZE 2

/** kvb_store_get: the read failed; the buffer may hold anything. */
#define KVB_GET_FAILED 3

/** kvb_store_remove: gone. */
#define KVB_REMOVE_REMOVED 0

/** kvb_store_remove: there was none. */
#define KVB_REMOVE_MISSING 1

/** kvb_store_remove: it was found by somebody a moment ago, whose lease has not ended. */
#define KVB_REMOVE_LEASED 2

/** kvb_store_remove: not removed for another reason. */
#define KVB_REMOVE_FAILED 3

/**
 * An open pool. Workers open their own from the configuration; a store is opened by hand to share
 * one connection between handles of a process, by tools and by tests.
 *
 * Threads: shared. Made by kvb_store_open, freed by kvb_store_free; workers made on it do not
 * need it any more.
 */
typedef struct kvb_store kvb_store;

/** What a put asks for beyond storing. Zero asks for nothing. */
typedef struct kvb_put_options {
  /** sizeof(kvb_put_options) */
  uint32_t struct_size;
  /** Keep the objects this long, in milliseconds, before others are evicted; 0: no soft pin. */
  uint64_t soft_pin_ttl_ms;
  /** One eviction group per key: objects of a group are evicted together. An empty one stands for no group. */
  const kvb_bytes *groups;
  /** How many groups there are: 0, or as many as keys. */
  size_t group_count;
} kvb_put_options;

/** An embedded pool's numbers; counters start with the pool. */
typedef struct kvb_pool_stats {
  /** sizeof(kvb_pool_stats) */
  uint32_t struct_size;
  /** Most bytes it holds. */
  uint64_t capacity;
  /** Bytes taken up now. */
  uint64_t used_bytes;
  /** Complete objects now. */
  uint64_t objects;
  /** Objects that were evicted. */
  uint64_t evicted_objects;
  /** Puts, counted by key, that found no room. */
  uint64_t refused_puts;
} kvb_pool_stats;

/**
 * Opens the pool that the configuration names. `table_or_null` is the host's functions for the
 * store kind "host", which needs them, and NULL for every other.
 *
 * Threads: any. Blocks: while the pool is opened; the embedded one and the host's do not, "mooncake" up to 40
 * seconds and one more per GiB that is lent, "mooncake-tcp" up to 25.
 * Errors: KVB_ENGINE_REFUSED; KVB_UNSUPPORTED, the kind of store is not in this build;
 * KVB_INVALID_ARGUMENT, table and kind do not go together, or the table is wrong; KVB_NULL_POINTER,
 * a function of it is missing;
 * KVB_CONFIG_INVALID, the embedded pool is open with another capacity; KVB_POOL_REFUSED, the text
 * names what does not go together; KVB_POOL_FAILED, the pool cannot be reached; KVB_NO_MEMORY;
 * KVB_NO_THREAD.
 */
kvb_status kvb_store_open(const kvb_config *config,
                          const kvb_engine *engine,
                          const kvb_store_table *table_or_null,
                          kvb_store **out);

/**
 * Makes a store that breaks another one by script, for tests of what a host does when its pool
 * fails. `script` is JSON text: {"faults": [{"call": "get", "fault": "lose", "from": 3}]}; the
 * manual is docs/faults.md. The other store stays as it is, on the same pool; workers made on the
 * new one go through the faults. Both are freed by kvb_store_free, in any order; freeing the new
 * one ends calls that the script lets hang.
 *
 * Errors: KVB_INVALID_ARGUMENT with every problem of the script, one a line.
 */
kvb_status kvb_store_wrap_faulty(const kvb_store *store,
                                 const uint8_t *script,
                                 size_t script_size,
                                 kvb_store **out);

/**
 * Asks which of `count` keys the pool has: one KVB_PRESENT, KVB_ABSENT or KVB_UNKNOWN per key.
 * What is present is leased for a while: neither evicted nor removed.
 *
 * Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty.
 */
kvb_status kvb_store_exist(const kvb_store *store,
                           const kvb_bytes *keys,
                           size_t count,
                           int32_t *out_presence);

/**
 * Stores one object per key, with the bytes of the value of the same position: one KVB_PUT_* per
 * key. The values are read during the call. An object without bytes is KVB_PUT_FAILED in a Mooncake pool.
 *
 * Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty;
 * KVB_NULL_POINTER.
 */
kvb_status kvb_store_put(const kvb_store *store,
                         const kvb_bytes *keys,
                         const kvb_piece *values,
                         size_t count,
                         int32_t *out_outcomes);

/**
 * As kvb_store_put, with options; a pool that cannot do what they ask for answers KVB_PUT_FAILED for
 * every key.
 *
 * Blocks: for one call of the pool. Errors: as kvb_store_put; KVB_INVALID_ARGUMENT, there are groups,
 * but not one per key.
 */
kvb_status kvb_store_put_with_options(const kvb_store *store,
                                      const kvb_bytes *keys,
                                      const kvb_piece *values,
                                      size_t count,
                                      const kvb_put_options *options_or_null,
                                      int32_t *out_outcomes);

/**
 * Reads one object per key into the buffer of the same position, which must have exactly its
 * size: one KVB_GET_* per key. `out_sizes` gets the object's size in bytes where it is known,
 * else 0. Buffers must not overlap.
 *
 * Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty;
 * KVB_NULL_POINTER.
 */
kvb_status kvb_store_get(const kvb_store *store,
                         const kvb_bytes *keys,
                         const kvb_piece *buffers,
                         size_t count,
                         int32_t *out_outcomes,
                         uint64_t *out_sizes);

/**
 * Removes objects: one KVB_REMOVE_* per key.
 *
 * Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty.
 */
kvb_status kvb_store_remove(const kvb_store *store,
                            const kvb_bytes *keys,
                            size_t count,
                            int32_t *out_outcomes);

/**
 * The pool's numbers at this moment.
 *
 * Errors: KVB_UNSUPPORTED for pools that are not embedded.
 */
kvb_status kvb_store_stats(const kvb_store *store, kvb_pool_stats *out);

/**
 * Frees a store. An embedded pool and what is in it live as long as some store or worker has it
 * open, a client of Mooncake's too. NULL is fine.
 *
 * Blocks: while a pool over the network closes, at most 3 s.
 */
void kvb_store_free(kvb_store *store);

/* ==== one pass's transfers ==== */

/**
 * One pass's transfers, as the scheduler decided them. It holds no address and nothing that
 * belongs to one rank, so that the leader's can be broadcast to all ranks as bytes.
 *
 * Threads: shared, immutable. Made by kvb_scheduler_build and kvb_metadata_decode, freed by
 * kvb_metadata_free at any time: a worker that it was bound to has its own hold on it.
 */
typedef struct kvb_metadata kvb_metadata;

/** What a metadata holds. */
typedef struct kvb_summary {
  /** sizeof(kvb_summary) */
  uint32_t struct_size;
  /** Number of the pass, counted by the scheduler that built it. */
  uint64_t pass;
  /** Requests with blocks to load. */
  uint64_t load_requests;
  /** Blocks to load. */
  uint64_t load_blocks;
  /** Requests with blocks to save. */
  uint64_t save_requests;
  /** Blocks to save. */
  uint64_t save_blocks;
  /** Requests that wait outside the batch for their load, also for none. */
  uint64_t parked_requests;
  /** Blocks that they load. */
  uint64_t parked_blocks;
} kvb_summary;

/**
 * Writes the metadata as bytes that kvb_metadata_decode reads on any rank with the same build.
 *
 * Errors: KVB_TOO_SMALL.
 */
kvb_status kvb_metadata_encode(const kvb_metadata *metadata,
                               uint8_t *buffer,
                               size_t capacity,
                               size_t *out_needed);

/**
 * Reads what kvb_metadata_encode wrote. The bytes are not used any more when this returns.
 *
 * Threads: any. Errors: KVB_MALFORMED for bytes of another version, or damaged ones.
 */
kvb_status kvb_metadata_decode(const uint8_t *bytes, size_t size, kvb_metadata **out);

/** Counts what the metadata holds, for logs and tests. */
kvb_status kvb_metadata_summary(const kvb_metadata *metadata, kvb_summary *out);

/** Frees a metadata. NULL is fine. */
void kvb_metadata_free(kvb_metadata *metadata);

/* ==== what asynchronous loads wait for ==== */

/** kvb_fence.kind: nothing to wait for, also where an engine supplies fences: no copies of its own are under way. */
#define KVB_FENCE_NONE 0

/** kvb_fence.kind: `event` is a CUevent. */
#define KVB_FENCE_CUDA_EVENT 1

/** kvb_fence.kind: `wait` is called. */
#define KVB_FENCE_CALLBACK 2

/**
 * Returns when the pages may be written. It is called once per kvb_worker_bind at most, on a load
 * thread of the library, also after that call returned; other loads of the same metadata wait
 * for it. It must not call the library. What it throws fails the loads that wait
 * for it, and is the answer of every later kvb_worker_start_load and kvb_worker_get_finished. `context` must stay valid until it
 * was called, or until kvb_worker_unregister_layout or kvb_worker_shutdown returned KVB_OK.
 */
typedef void (*kvb_fence_wait)(void *context);

/**
 * What the asynchronous loads of a metadata wait for before they write into pages: copies of the
 * engine's own that may still write to them or read from them. Synchronous loads do not wait for it.
 */
typedef struct kvb_fence {
  /** KVB_FENCE_*; the fields of other kinds are ignored. */
  int32_t kind;
  /**
   * The CUevent to wait for, as it was recorded last. It must be recorded already and alive until
   * it was waited for, as `context` must. For a cache on a CUDA device alone.
   */
  uint64_t event;
  /** The function to call. */
  kvb_fence_wait wait;
  /** What it is called with. */
  void *context;
} kvb_fence;

/* ==== one rank's mover ==== */

/**
 * One rank's mover: it owns the connection to the pool, the registered cache memory, the staging
 * memory and the threads that save and, with async_load, load. Synchronous loads run on the
 * caller's thread.
 *
 * Threads: exclusive; functions with a const receiver may run beside any other and each other.
 * Made by kvb_worker_new, freed by kvb_worker_free. Before its cache memory is freed the layout
 * must be unregistered or the worker shut down.
 */
typedef struct kvb_worker kvb_worker;

/** What the engine has to arrange; read once, before pools are registered. */
typedef struct kvb_declarations {
  /** sizeof(kvb_declarations) */
  uint32_t struct_size;
  /** Owners under attention DP may each run a scheduler. */
  bool supports_attention_dp;
  /**
   * Requests that lost pages are handed back by kvb_worker_take_failed_loads; false under
   * tensor parallelism, where a lost page is an error of kvb_worker_start_load.
   */
  bool reports_failed_loads;
  /** Local matches must end at a block boundary for the pool to extend them. */
  bool requires_block_aligned_reuse;
  /** The cache manager must not shorten local matches by the lookahead. */
  bool drops_reuse_match_backoff;
  /** Prefill with a one-model drafter is supported. */
  bool supports_speculative_prefill;
  /** A request may be matched again before it is allocated. */
  bool supports_admission_query;
  /** Prompt tokens behind a block that its hash covers. */
  uint32_t prompt_lookahead;
} kvb_declarations;

/**
 * Makes the worker of one rank. It opens the pool that the configuration names, or shares the one
 * of `store_or_null`, which the store kind "host" needs.
 *
 * Threads: any. Blocks: while the pool is opened; the embedded one does not, "mooncake" up to 40
 * seconds and one more per GiB that is lent. With KVB_DEVICE_CUDA also while the driver starts, the
 * first time in a process.
 * Errors: KVB_ENGINE_REFUSED, KVB_CONFIG_INVALID, KVB_UNSUPPORTED or KVB_POOL_REFUSED, the text
 * says what does not go together; KVB_NO_DEVICE, with KVB_DEVICE_CUDA: the driver is missing, older
 * than CUDA 12.0 or lacks functions; KVB_POOL_FAILED, the pool cannot be reached; KVB_NO_MEMORY;
 * KVB_NO_THREAD.
 */
kvb_status kvb_worker_new(const kvb_config *config,
                          const kvb_engine *engine,
                          kvb_store *store_or_null,
                          kvb_worker **out);

/** What the engine has to arrange. */
kvb_status kvb_worker_declarations(const kvb_worker *worker, kvb_declarations *out);

/**
 * Takes the cache memory that the layout describes into use. The worker keeps a copy of the
 * layout.
 *
 * With KVB_DEVICE_CUDA the CUDA context that is current on the calling thread is the cache's. It must stay
 * alive as long as the slots. Every call leaves the thread with the context that was current before.
 *
 * Every slot of every region must stay valid until kvb_worker_unregister_layout or
 * kvb_worker_shutdown returned. A layout that is registered after an unregistration must describe
 * the same pages; addresses and slot counts may differ.
 *
 * With stage_through_host = false it is registered with the pool itself.
 *
 * Blocks: while staging memory is set up.
 * Errors: KVB_BAD_STATE, a layout is registered, or the role is capacity; KVB_INVALID_ARGUMENT or
 * KVB_CONFIG_INVALID, the layout is incomplete or does not go with the configuration, or a region's first or last byte or the
 * current context is not of the device (what lies between is not looked at); KVB_CONTRADICTION, other pages than before; KVB_NO_DEVICE, no CUDA
 * context is current; KVB_DEVICE_FAILED; KVB_DEVICE_LOST; KVB_CLOSED; KVB_NO_MEMORY;
 * KVB_NO_THREAD; KVB_POOL_FAILED, the pool refuses the staging memory or, with stage_through_host = false, the cache's;
 * KVB_POOL_REFUSED, with the same, pages have more pieces than the pool takes; KVB_BUSY, it did not answer in time:
 * with the same it may use the memory whenever it does, so that this has to stay.
 */
kvb_status kvb_worker_register_layout(kvb_worker *worker,
                                      const kvb_layout *layout);

/**
 * Gives the cache memory back: when this returns KVB_OK nothing of the library touches it.
 *
 * Blocks: until asynchronous loads under way ended, at most load_timeout_ms (they fail), and queued
 * saves, at most save_timeout_ms; with stage_through_host = false as long again for late calls of the pool.
 * Errors: KVB_BAD_STATE, no layout is registered; KVB_BUSY, some are still running, and the layout
 * stays registered. With stage_through_host = false also when the pool may still use pages of the cache, or does
 * not give parts of it back; calling again tries those again.
 */
kvb_status kvb_worker_unregister_layout(kvb_worker *worker);

/**
 * Counts how many of the leading blocks are stored in every layer group and shard. `hashes` are
 * block hashes side by side, `size` is in bytes: 16 for each with the key scheme trtllm, 32 with
 * kvb1. What the pool does not answer counts as missing.
 *
 * Blocks: for one existence question per chunk of blocks.
 * Errors: KVB_INVALID_ARGUMENT, no whole hashes; KVB_BAD_STATE, no layout is registered;
 * KVB_CLOSED.
 */
kvb_status kvb_worker_lookup(const kvb_worker *worker,
                             const uint8_t *hashes,
                             size_t size,
                             size_t *out_blocks);

/**
 * Binds the metadata of the next pass in place of the bound one. Loads of that one that were
 * never started are reported as failed; saves that were never queued count as not submitted. Its
 * asynchronous loads are queued, once; they write into pages after `fence_or_null`. The metadata
 * may be freed afterwards.
 *
 * What is wrong with the metadata, or keeps its asynchronous loads from being queued, is an error
 * of the next kvb_worker_start_load or kvb_worker_get_finished; such loads count as failed.
 * Blocks: no. Errors: KVB_INVALID_ARGUMENT, the fence; nothing is bound then.
 */
kvb_status kvb_worker_bind(kvb_worker *worker,
                           const kvb_metadata *metadata,
                           const kvb_fence *fence_or_null);

/**
 * Loads what the bound metadata restores. When this returns the pages are in the cache, before
 * any work that is put on `stream` later, and were written after what it had. `stream` is a raw CUstream or
 * cudaStream_t of the cache's context, NULL its legacy default stream; it is ignored for host memory. A
 * second call on one metadata starts nothing.
 *
 * Blocks: for the pool's reads, and with KVB_DEVICE_CUDA for what `stream` has and the copies behind it.
 * Errors: what kvb_worker_bind could not say; KVB_BAD_STATE, nothing is bound, or there is something to load and no
 * layout is registered; KVB_INVALID_ARGUMENT, there is something to load, and the stream is of another context, or capturing: nothing was
 * started; under tensor parallelism KVB_LOAD_FAILED. On a single rank or an owner under
 * attention DP a lost page is no error: see kvb_worker_take_failed_loads. With stage_through_host = false
 * KVB_LOAD_FAILED on any rank, and in every later call, when the pool may still write into pages of a load that
 * failed: none of its requests is handed back. KVB_DEVICE_LOST in every call once the device is: what was to be
 * loaded is handed back where requests are.
 */
kvb_status kvb_worker_start_load(kvb_worker *worker,
                                 void *stream);

/**
 * Queues the saves of the bound metadata. They read the cache after everything that was put on
 * `stream` before, which is as in kvb_worker_start_load; one that is capturing a graph is refused. The pass counts as run from here on, so call it only behind a forward pass
 * that ran. A second call on one metadata queues nothing.
 *
 * The pages of its saves are read later: they must keep their bytes until kvb_worker_get_finished
 * reported their request, also those that have left an attention window meanwhile or were
 * reported as -1, unless kvb_stats.saves_in_flight was 0 in between.
 *
 * Blocks: no.
 * Errors: KVB_BAD_STATE, nothing is bound, its synchronous loads were never started, or there is something to
 * save and no layout is registered; KVB_CLOSED; KVB_DEVICE_FAILED; KVB_DEVICE_LOST, in every call once the device is;
 * KVB_INVALID_ARGUMENT, the stream is of another context, or capturing. The pass does not count as run then.
 */
kvb_status kvb_worker_wait_for_save(kvb_worker *worker,
                                    void *stream);

/**
 * Reads and clears the requests that lost a page. The engine runs them again, without the tokens
 * that it counted as restored: call kvb_scheduler_reset and match again. Always empty under
 * tensor parallelism.
 */
kvb_status kvb_worker_take_failed_loads(kvb_worker *worker, kvb_ids *out_ids);

/**
 * Announces requests that ended, were cancelled or preempted, and reports every announced one
 * whose transfers are done, each once: its pages are the engine's again as far as this rank goes.
 * Announces requests that wait for an asynchronous load, and reports each once when its load
 * ended: then, and when all ranks reported it, it may run. One that lost a page is in
 * kvb_worker_take_failed_async_loads too. Announcements persist, so call it every pass, also
 * without ids. Of a life of a request that was announced as finished no load is reported any more;
 * the id may come again meanwhile, and in both lists of
 * one call it is a life that ended and the next one, whose load is announced by the first call after
 * it was bound. An id that is announced again before it was reported is reported
 * once: keep the set of ranks that reported it, not their number. An id whose pages were not pinned
 * need not be announced.
 *
 * Blocks: no. Errors: what kvb_worker_bind could not say, once; KVB_LOAD_FAILED or
 * KVB_DEVICE_FAILED in every call from then on, and in every kvb_worker_start_load, when a load
 * thread failed: under tensor parallelism also when a page was lost. Such a worker loads nothing any
 * more; free it and make another one. Announcements are taken in any case, and what was to be reported is
 * kept. Once the device is lost this is no error: requests go on being reported, the loads of a single rank as failed,
 * those under tensor parallelism that lost a page never.
 */
kvb_status kvb_worker_get_finished(kvb_worker *worker,
                                   const uint64_t *finished_ids,
                                   size_t finished_count,
                                   const uint64_t *loading_ids,
                                   size_t loading_count,
                                   kvb_ids *out_saved,
                                   kvb_ids *out_loaded);

/**
 * Reads and clears the requests that kvb_worker_get_finished reported as loaded although a page
 * was lost. The engine runs them again: call kvb_scheduler_reset and match again; the next offer
 * ends before the block that failed. Loads of reservations are named by the reservation's id; reset
 * goes by the request's. Always empty under tensor parallelism.
 */
kvb_status kvb_worker_take_failed_async_loads(kvb_worker *worker, kvb_ids *out_ids);

/**
 * Ends the worker from any state: queued saves run until the deadline, later ones are dropped and
 * counted, the thread is joined, the connection closed. When this returns KVB_OK nothing of the
 * library touches the cache memory. Afterwards functions that move pages answer KVB_CLOSED;
 * calling this again is fine.
 *
 * Blocks: up to `deadline_ms` milliseconds, and while the pool is closed.
 * Errors: KVB_BUSY, a call of the pool is stuck, or a thread waits for the engine's stream or fence; what it may use is kept for ever, and so must be
 * the cache memory.
 */
kvb_status kvb_worker_shutdown(kvb_worker *worker,
                               uint64_t deadline_ms);

/**
 * Frees a worker. One that was not shut down is so first, with a deadline of ten seconds. A
 * scheduler made on it may be freed before or after, and offers nothing any more. NULL is fine.
 *
 * Blocks: as kvb_worker_shutdown.
 */
void kvb_worker_free(kvb_worker *worker);

/* ==== what a worker has counted ==== */

/** kvb_stats.breaker_state: calls reach the pool. */
#define KVB_BREAKER_CLOSED 0

/** kvb_stats.breaker_state: the pool did not answer lately, or keeps too much; no call is made. */
#define KVB_BREAKER_OPEN 1

/** kvb_stats.breaker_state: one call finds out whether the pool answers again. */
#define KVB_BREAKER_PROBING 2

/** Counters since the worker was made; bytes are payload bytes. */
typedef struct kvb_stats {
  /** sizeof(kvb_stats) */
  uint32_t struct_size;
  /** Lookups of a chain of blocks. */
  uint64_t lookups;
  /** Blocks whose existence was asked for. */
  uint64_t lookup_blocks;
  /** Blocks at the head of a lookup that were stored in every group and shard. */
  uint64_t hit_blocks;
  /** Keys whose existence was asked for by lookups. */
  uint64_t lookup_keys;
  /** Keys of lookups that the pool does not hold. */
  uint64_t missing_keys;
  /** Keys of lookups that got no definite answer; they count as misses. */
  uint64_t failed_lookup_keys;
  /** Pages that were loaded into the cache. */
  uint64_t loaded_pages;
  /** Their bytes. */
  uint64_t loaded_bytes;
  /** Pages that should have been loaded and were not. */
  uint64_t failed_load_pages;
  /** Pages whose seal did not match; they count as failed too. */
  uint64_t bad_seals;
  /** Requests that lost a page. */
  uint64_t failed_load_requests;
  /** Pages that the pool took. */
  uint64_t saved_pages;
  /** Their bytes. */
  uint64_t saved_bytes;
  /** Pages to save that were in the pool already. */
  uint64_t already_stored_pages;
  /** Pages that the pool had no room for. */
  uint64_t no_space_pages;
  /** Pages that the pool did not take for another reason. */
  uint64_t failed_save_pages;
  /** Pages whose save was queued and never tried. */
  uint64_t dropped_save_pages;
  /** Calls of the pool. */
  uint64_t store_calls;
  /** Requests with saves in flight now. */
  uint64_t saves_in_flight;
  /** Asynchronous loads in flight now, also those that nobody waits for any more. */
  uint64_t loads_in_flight;
  /** Those of them that no thread has begun. */
  uint64_t loads_queued;
  /** Runs of missing blocks with a stored block behind them, in the answers to lookups. */
  uint64_t holes;
  /** Missing blocks in them. */
  uint64_t hole_blocks;
  /** Tokens of stored blocks behind the first missing one: they are computed all the same. */
  uint64_t tokens_behind_holes;
  /** Calls of the pool that loads made. */
  uint64_t load_calls;
  /**
   * Time that asynchronous loads waited for a thread, in nanoseconds. This and the times below
   * stay 0 unless stats_interval is set.
   */
  uint64_t load_queue_ns;
  /** Time of loads: which pages, under which keys. In nanoseconds on the wall, as all of these. */
  uint64_t load_resolve_ns;
  /** Waiting for allocation fences. */
  uint64_t load_fence_ns;
  /** Where the bytes are to land. */
  uint64_t load_describe_ns;
  /** The pool's calls. */
  uint64_t load_get_ns;
  /** From staging memory into the cache. */
  uint64_t load_unstage_ns;
  /** Waiting for the device. */
  uint64_t load_sync_ns;
  /** The same as load_resolve_ns on the CPU of the thread, as the fields that follow. */
  uint64_t load_resolve_cpu_ns;
  /** Waiting for allocation fences, on the CPU. */
  uint64_t load_fence_cpu_ns;
  /** Where the bytes are to land, on the CPU. */
  uint64_t load_describe_cpu_ns;
  /** The pool's calls, on the CPU. */
  uint64_t load_get_cpu_ns;
  /** From staging memory into the cache, on the CPU. */
  uint64_t load_unstage_cpu_ns;
  /** Waiting for the device, on the CPU. */
  uint64_t load_sync_cpu_ns;
  /**
   * What is let through to the pool now: KVB_BREAKER_CLOSED, KVB_BREAKER_OPEN or KVB_BREAKER_PROBING.
   * This and the fields below stay 0 with a pool whose calls cannot be late.
   */
  uint64_t breaker_state;
  /** Calls of the pool that had no answer at their deadline. */
  uint64_t pool_deadlines;
  /** Calls of the pool that ended with a transport error or without an answer. */
  uint64_t pool_failures;
  /** How often calls began to be kept from the pool. */
  uint64_t breaker_openings;
  /** Calls of the pool that were not made because it did not answer lately. */
  uint64_t breaker_refusals;
  /** Calls of the pool that returned after their deadline. */
  uint64_t late_calls_returned;
  /** Calls of the pool past their deadline that have not returned, each with a thread. */
  uint64_t late_calls;
  /** Calls of the pool whose memory is not used again, since the pool may still use it. */
  uint64_t quarantined_calls;
} kvb_stats;

/** The worker's counters at this moment. Each is exact; together they may straddle an event. */
kvb_status kvb_worker_stats(const kvb_worker *worker, kvb_stats *out);

/**
 * Writes the counters in Prometheus' text format. The text grows with the numbers: leave some
 * room.
 *
 * Errors: KVB_TOO_SMALL.
 */
kvb_status kvb_worker_prometheus(const kvb_worker *worker,
                                 char *buffer,
                                 size_t capacity,
                                 size_t *out_needed);

/* ==== why a prompt gets the offer that it gets ==== */

/** kvb_explanation.reason: every whole block is offered. */
#define KVB_EXPLAIN_COMPLETE 0

/** kvb_explanation.reason: all is stored, but the block of the last token stays to compute. */
#define KVB_EXPLAIN_LAST_TOKEN 1

/** kvb_explanation.reason: a page is not in the pool. */
#define KVB_EXPLAIN_ABSENT 2

/** kvb_explanation.reason: the pool did not say whether it has a page. */
#define KVB_EXPLAIN_NO_ANSWER 3

/**
 * kvb_explanation.reason: a page is not in the pool, but servers with another number of ranks or
 * another page format have it.
 */
#define KVB_EXPLAIN_OTHER_GEOMETRY 4

/** kvb_explanation.reason: the local match ends inside a block. */
#define KVB_EXPLAIN_UNALIGNED 5

/** kvb_explanation.reason: no layout is registered. */
#define KVB_EXPLAIN_NO_LAYOUT 6

/** kvb_explanation.reason: the role does not read. */
#define KVB_EXPLAIN_ROLE 7

/** kvb_explanation.reason: the request carries media without digests. */
#define KVB_EXPLAIN_MEDIA 8

/** kvb_explanation.reason: with a drafter only prefill-only requests take part. */
#define KVB_EXPLAIN_NOT_CONTEXT_ONLY 9

/** What the pool has of a prompt, and what ends the offer. */
typedef struct kvb_explanation {
  /** sizeof(kvb_explanation) */
  uint32_t struct_size;
  /** KVB_EXPLAIN_*. */
  int32_t reason;
  /** Tokens that a match would be answered with. */
  uint64_t offered_tokens;
  /** Blocks of the prompt that have a hash. */
  uint64_t blocks;
  /** Those of them that are stored in every layer group and shard, wherever they stand. */
  uint64_t stored_blocks;
  /** Ordinal of the block whose page is missing; 0 when the reason is no page. */
  uint64_t missing_block;
  /** Its layer group. */
  uint32_t group_id;
  /** The rank whose shard is missing; -1 for a page that all ranks share, or no page. */
  int32_t rank;
  /** The pool's code with KVB_EXPLAIN_NO_ANSWER, otherwise 0. */
  int32_t code;
  /**
   * With KVB_EXPLAIN_OTHER_GEOMETRY the number of ranks of the servers that have it; 0 when
   * it is their page format that differs.
   */
  uint32_t other_world;
} kvb_explanation;

/**
 * Explains what a match would be answered with now, in numbers and as text of some lines: which
 * blocks are stored, and for the first one that is not, why. Blocks whose load failed before are
 * known to the scheduler alone, whose offers end before them. Asks the pool for every block of the
 * prompt; for tools and for looking into single requests. Counts nothing.
 *
 * Blocks: for existence questions to the pool.
 * Errors: KVB_INVALID_ARGUMENT, as kvb_scheduler_match; KVB_CLOSED; KVB_TOO_SMALL.
 */
kvb_status kvb_worker_explain(const kvb_worker *worker,
                              const kvb_request *request,
                              uint64_t local_tokens,
                              kvb_explanation *out,
                              char *buffer,
                              size_t capacity,
                              size_t *out_needed);

/* ==== one leader's or owner's decisions ==== */

/** kvb_scheduler_finished: it has its output. */
#define KVB_FINISH_ENDED 0

/** kvb_scheduler_finished: nobody wants it any more. */
#define KVB_FINISH_CANCELLED 1

/** kvb_scheduler_finished: its pages are needed, and it will run again. */
#define KVB_FINISH_PREEMPTED 2

/**
 * The half that decides, for one leader (tensor parallelism) or one owner (attention DP): what
 * the pool can supply of a prompt, which pages to load before a pass and which to publish after
 * it.
 *
 * Threads: exclusive. Made by kvb_scheduler_new, freed by kvb_scheduler_free; it holds the
 * worker's shared part, so that the two are freed in any order.
 */
typedef struct kvb_scheduler kvb_scheduler;

/** One request's part of a pass. Frozen, since it is an element of an array. */
typedef struct kvb_step {
  /** Id of the request. */
  uint64_t request_id;
  /**
   * Tokens since the last report; the first report is the whole prompt, exactly as it was
   * matched.
   */
  kvb_tokens new_tokens;
  /** Pages allocated since the last report. */
  const kvb_group_pages *pages;
  /** How many lists there are. */
  size_t page_lists;
  /**
   * Tokens with valid KV before this pass; excludes what this pass restores synchronously, and
   * counts what was restored asynchronously. For
   * a generating request it is one less than the tokens it holds.
   */
  uint64_t computed_position;
  /**
   * Tokens that this pass computes, after the budget trim; for a generating request 1 and the
   * drafts.
   */
  uint64_t scheduled_tokens;
} kvb_step;

/**
 * A reservation that the engine accepts: what it still holds is loaded. Frozen, since it is an
 * element of an array.
 */
typedef struct kvb_accepted {
  /** The reservation, as given to kvb_scheduler_reserve. */
  uint64_t reservation_id;
  /**
   * The request it was made for. An element whose ids do not go together, or that was accepted
   * before, is skipped.
   */
  uint64_t request_id;
  /** The request's pages so far. */
  const kvb_group_pages *pages;
  /** How many lists there are. */
  size_t page_lists;
} kvb_accepted;

/** One pass: every request that is in the batch. */
typedef struct kvb_pass {
  /** sizeof(kvb_pass) */
  uint32_t struct_size;
  /** One element per request. */
  const kvb_step *steps;
  /** How many there are. */
  size_t step_count;
  /** One element per reservation that is accepted; none for engines that match and allocate. */
  const kvb_accepted *accepted;
  /** How many there are. */
  size_t accepted_count;
} kvb_pass;

/**
 * Makes the scheduler beside a worker of the same process, made from the same configuration and
 * engine. The worker's layout may be registered before or after; without one nothing is offered.
 *
 * Threads: any. Errors: KVB_CONTRADICTION, the worker was made from a configuration or engine
 * that mean other pages; KVB_BAD_STATE, the worker has a scheduler; KVB_ENGINE_REFUSED.
 */
kvb_status kvb_scheduler_new(const kvb_config *config,
                             const kvb_engine *engine,
                             kvb_worker *worker,
                             kvb_scheduler **out);

/**
 * Asks how many tokens of the prompt the pool can supply beyond `local_tokens`, which are valid
 * in the cache already. The answer is in whole blocks, never the whole prompt, and 0 when the
 * local match ends inside a block. May be called again before the request is allocated.
 * `out_is_async` says that the load runs outside the passes: once the request is allocated,
 * also with none of the tokens honoured, it waits outside the batch until every rank reported it
 * as loaded. It is false when nothing is offered.
 *
 * Blocks: for one existence question per chunk of blocks; what the pool does not answer is not
 * offered.
 * Errors: KVB_INVALID_ARGUMENT, more local tokens than the prompt has, a token that the key
 * scheme cannot hash, an adapter that it cannot name, with a drafter a request that is not
 * context-only; KVB_OUT_OF_RANGE.
 */
kvb_status kvb_scheduler_match(kvb_scheduler *scheduler,
                               const kvb_request *request,
                               uint64_t local_tokens,
                               uint64_t *out_tokens,
                               bool *out_is_async);

/**
 * Reports that a request has its pages, and how many of the offered tokens the engine honours,
 * counted from the offer's head. `pages` has at most one list per layer group, from block 0 on, with
 * the pages of the local match too. Every honoured block needs a page in every group, also where an
 * attention window has left it behind; other blocks may have -1. A request that is not known is
 * skipped.
 *
 * Errors: KVB_INVALID_ARGUMENT, the honoured tokens are no whole blocks of the offer;
 * KVB_CONTRADICTION, an honoured block has no page, or the pages do not fit those reported before;
 * KVB_OUT_OF_RANGE, an index that is no page; KVB_BAD_STATE, tokens are honoured while no layout is
 * registered or the request already runs. Without a layout, pages make the request sit out until
 * it is reset.
 */
kvb_status kvb_scheduler_allocated(kvb_scheduler *scheduler,
                                   uint64_t request_id,
                                   uint64_t honoured_tokens,
                                   const kvb_group_pages *pages,
                                   size_t page_lists);

/**
 * Gives back a part of an offer that was not consumed: the tokens from `from_token` up to
 * `to_token`, absolute in the prompt, at the offer's head or tail. A request that is not known is
 * skipped.
 *
 * Errors: KVB_INVALID_ARGUMENT, a hole in the middle or no whole blocks; KVB_BAD_STATE, the load
 * was consumed.
 */
kvb_status kvb_scheduler_cancel_load(kvb_scheduler *scheduler,
                                     uint64_t request_id,
                                     uint64_t from_token,
                                     uint64_t to_token);

/**
 * Asks like kvb_scheduler_match, and holds the answer under an id that the engine chooses: the
 * other protocol for what kvb_scheduler_allocated and kvb_scheduler_cancel_load do. What is
 * not needed is given back with kvb_scheduler_release_reservation; an element of
 * kvb_pass.accepted turns the rest into a load. An asynchronous one is announced to and reported
 * by kvb_worker_get_finished with `reservation_id` instead of the request's id. Ids are fresh per
 * allocation. Asked again with the same id, the answer is what the reservation still holds behind
 * `local_tokens`; another id for the same request takes the place of the earlier one.
 *
 * Blocks: as kvb_scheduler_match.
 * Errors: those of kvb_scheduler_match; KVB_INVALID_ARGUMENT, another request holds an offer under
 * this id.
 */
kvb_status kvb_scheduler_reserve(kvb_scheduler *scheduler,
                                 const kvb_request *request,
                                 uint64_t local_tokens,
                                 uint64_t reservation_id,
                                 uint64_t *out_tokens,
                                 bool *out_is_async);

/**
 * Gives back the prompt tokens from `from_token` up to `to_token` of what a reservation holds: at
 * its head or its tail, in whole blocks. What it does not hold (any more) is ignored, and so are
 * ids that hold nothing: unknown ones, and those of loads that travelled.
 *
 * Errors: KVB_INVALID_ARGUMENT, a hole in the middle or parts of blocks.
 */
kvb_status kvb_scheduler_release_reservation(kvb_scheduler *scheduler,
                                             uint64_t reservation_id,
                                             uint64_t from_token,
                                             uint64_t to_token);

/**
 * Builds the metadata of the next pass, also of an empty one. All or nothing: a step that
 * contradicts what is known makes it fail with nothing changed. Steps about requests that never
 * matched are skipped. A report counts once this answered KVB_OK, also when the pass never ran: the
 * request is then described again with the same position and without new tokens, and its load and
 * its saves come again. Blocks without a page in every group are not published.
 *
 * The metadata is the caller's, to be freed with kvb_metadata_free.
 * Errors: KVB_CONTRADICTION, a first report is not the matched prompt, or pages or positions do
 * not fit what was reported before; KVB_INVALID_ARGUMENT, a request twice, a token that the key
 * scheme cannot hash; KVB_OUT_OF_RANGE; KVB_BAD_STATE, pages are to be loaded and the layout is
 * gone: reset the request. For an acceptance, the errors of kvb_scheduler_allocated.
 */
kvb_status kvb_scheduler_build(kvb_scheduler *scheduler,
                               const kvb_pass *pass,
                               kvb_metadata **out);

/**
 * Reports that a request ended, was cancelled or preempted; `reason` is one of KVB_FINISH_*. When
 * `out_pinned` is true its pages must stay as they are until every rank reported the id through
 * kvb_worker_get_finished. A request that is not known is answered with false.
 *
 * Errors: KVB_INVALID_ARGUMENT.
 */
kvb_status kvb_scheduler_finished(kvb_scheduler *scheduler,
                                  uint64_t request_id,
                                  int32_t reason,
                                  bool *out_pinned);

/**
 * Reports that a request's allocation was released and that it will run again: all that is tied
 * to the allocation is forgotten, and on this rank nothing is written into or read from its pages
 * any more when this returns; saves that were queued and not read yet are dropped. Other ranks
 * hear of it with the next metadata: there pages are given back through kvb_scheduler_finished and
 * kvb_worker_get_finished, before this. A request that is not known is no error.
 *
 * Blocks: for the copy of one batch of its load or save that is under way, never for the pool; with
 * stage_through_host = false for the pool's call that has such a batch, at most load_timeout_ms or save_timeout_ms.
 * Errors: KVB_BUSY, with stage_through_host = false alone: the request is reset, but a call of the pool that did not return in
 * time may still use its pages. Keep them as they are, and call again until the answer is KVB_OK.
 */
kvb_status kvb_scheduler_reset(kvb_scheduler *scheduler,
                               uint64_t request_id);

/** Frees a scheduler; its worker may have another one afterwards. NULL is fine. */
void kvb_scheduler_free(kvb_scheduler *scheduler);

/* ==== keys: so that tools and other languages can name pages ==== */

/** kvb_keys_hash_blocks: the library's own scheme, 32-byte hashes. */
#define KVB_SCHEME_KVB1 0

/** kvb_keys_hash_blocks: the scheme of TensorRT-LLM's Python connector, 16-byte hashes. */
#define KVB_SCHEME_TRTLLM 1

/** kvb_keys_page_key: the replicated page instead of a rank's. */
#define KVB_SHARD_REPLICATED -1

/**
 * Writes the hashes of all whole blocks of the request's prompt, side by side. `scheme` is one of
 * KVB_SCHEME_*; `lookahead` is 0 without a drafter, else kvb_declarations.prompt_lookahead. Of
 * the request only prompt, salt, adapter and media count.
 *
 * Threads: any. Errors: KVB_TOO_SMALL; KVB_INVALID_ARGUMENT, a token that the scheme cannot hash,
 * an adapter that it cannot name, tokens_per_block 0.
 */
kvb_status kvb_keys_hash_blocks(int32_t scheme,
                                const kvb_request *request,
                                uint32_t tokens_per_block,
                                uint32_t lookahead,
                                uint8_t *buffer,
                                size_t capacity,
                                size_t *out_needed);

/**
 * Writes the pool's key of one page. The names come from `config`, the shape from a group of
 * `layout`, block size and number of ranks from `engine`. `rank` names the shard,
 * KVB_SHARD_REPLICATED the group's replicated page; under attention DP every owner's pages are
 * rank 0's. `hash` is one block hash of the configured scheme.
 *
 * Threads: any; the layout must not change meanwhile.
 * Errors: KVB_TOO_SMALL; KVB_OUT_OF_RANGE, no such group or rank; KVB_INVALID_ARGUMENT, the group
 * has no such page or the hash has another length; KVB_CONFIG_INVALID, the names make the key too
 * long; KVB_ENGINE_REFUSED.
 */
kvb_status kvb_keys_page_key(const kvb_config *config,
                             const kvb_engine *engine,
                             const kvb_layout *layout,
                             uint32_t group_id,
                             int32_t rank,
                             const uint8_t *hash,
                             size_t hash_size,
                             char *buffer,
                             size_t capacity,
                             size_t *out_needed);

/* ==== for hosts that load the library at run time ==== */

/**
 * All functions of the library. The order is for good: later versions append. A field lies within
 * the table when its end is within struct_size.
 */
typedef struct kvb_api {
  /** Bytes that this library's table has. */
  uint32_t struct_size;
  /** KVB_ABI_VERSION of the library. */
  uint32_t abi_version;
  /** kvb_version */
  const char *(*version)(void);
  /** kvb_abi_version */
  uint32_t (*get_abi_version)(void);
  /** kvb_last_error */
  kvb_status (*last_error)(char *buffer, size_t capacity, size_t *out_needed);
  /** kvb_set_log */
  kvb_status (*set_log)(kvb_log_callback callback_or_null, void *context, int32_t max_level);
  /** kvb_config_from_file */
  kvb_status (*config_from_file)(const char *path_or_null, size_t path_size, kvb_config **out);
  /** kvb_config_from_json */
  kvb_status (*config_from_json)(const uint8_t *json, size_t size, kvb_config **out);
  /** kvb_config_render */
  kvb_status (*config_render)(const kvb_config *config,
                              char *buffer,
                              size_t capacity,
                              size_t *out_needed);
  /** kvb_config_free */
  void (*config_free)(kvb_config *config);
  /** kvb_layout_new */
  kvb_status (*layout_new)(uint64_t mapping_bytes, kvb_layout **out);
  /** kvb_layout_add_group */
  kvb_status (*layout_add_group)(kvb_layout *layout, const kvb_group *group);
  /** kvb_layout_add_region */
  kvb_status (*layout_add_region)(kvb_layout *layout, uint32_t group_id, const kvb_region *region);
  /** kvb_layout_add_replicated_region */
  kvb_status (*layout_add_replicated_region)(kvb_layout *layout,
                                             uint32_t group_id,
                                             const kvb_region *region);
  /** kvb_layout_add_pool */
  kvb_status (*layout_add_pool)(kvb_layout *layout, uint32_t group_id, const kvb_pool *pool);
  /** kvb_layout_free */
  void (*layout_free)(kvb_layout *layout);
  /** kvb_store_open */
  kvb_status (*store_open)(const kvb_config *config,
                           const kvb_engine *engine,
                           const kvb_store_table *table_or_null,
                           kvb_store **out);
  /** kvb_store_exist */
  kvb_status (*store_exist)(const kvb_store *store,
                            const kvb_bytes *keys,
                            size_t count,
                            int32_t *out_presence);
  /** kvb_store_put */
  kvb_status (*store_put)(const kvb_store *store,
                          const kvb_bytes *keys,
                          const kvb_piece *values,
                          size_t count,
                          int32_t *out_outcomes);
  /** kvb_store_get */
  kvb_status (*store_get)(const kvb_store *store,
                          const kvb_bytes *keys,
                          const kvb_piece *buffers,
                          size_t count,
                          int32_t *out_outcomes,
                          uint64_t *out_sizes);
  /** kvb_store_remove */
  kvb_status (*store_remove)(const kvb_store *store,
                             const kvb_bytes *keys,
                             size_t count,
                             int32_t *out_outcomes);
  /** kvb_store_stats */
  kvb_status (*store_stats)(const kvb_store *store, kvb_pool_stats *out);
  /** kvb_store_free */
  void (*store_free)(kvb_store *store);
  /** kvb_worker_new */
  kvb_status (*worker_new)(const kvb_config *config,
                           const kvb_engine *engine,
                           kvb_store *store_or_null,
                           kvb_worker **out);
  /** kvb_worker_declarations */
  kvb_status (*worker_declarations)(const kvb_worker *worker, kvb_declarations *out);
  /** kvb_worker_register_layout */
  kvb_status (*worker_register_layout)(kvb_worker *worker, const kvb_layout *layout);
  /** kvb_worker_unregister_layout */
  kvb_status (*worker_unregister_layout)(kvb_worker *worker);
  /** kvb_worker_lookup */
  kvb_status (*worker_lookup)(const kvb_worker *worker,
                              const uint8_t *hashes,
                              size_t size,
                              size_t *out_blocks);
  /** kvb_worker_bind */
  kvb_status (*worker_bind)(kvb_worker *worker,
                            const kvb_metadata *metadata,
                            const kvb_fence *fence_or_null);
  /** kvb_worker_start_load */
  kvb_status (*worker_start_load)(kvb_worker *worker, void *stream);
  /** kvb_worker_wait_for_save */
  kvb_status (*worker_wait_for_save)(kvb_worker *worker, void *stream);
  /** kvb_worker_take_failed_loads */
  kvb_status (*worker_take_failed_loads)(kvb_worker *worker, kvb_ids *out_ids);
  /** kvb_worker_get_finished */
  kvb_status (*worker_get_finished)(kvb_worker *worker,
                                    const uint64_t *finished_ids,
                                    size_t finished_count,
                                    const uint64_t *loading_ids,
                                    size_t loading_count,
                                    kvb_ids *out_saved,
                                    kvb_ids *out_loaded);
  /** kvb_worker_take_failed_async_loads */
  kvb_status (*worker_take_failed_async_loads)(kvb_worker *worker, kvb_ids *out_ids);
  /** kvb_worker_stats */
  kvb_status (*worker_stats)(const kvb_worker *worker, kvb_stats *out);
  /** kvb_worker_prometheus */
  kvb_status (*worker_prometheus)(const kvb_worker *worker,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *out_needed);
  /** kvb_worker_shutdown */
  kvb_status (*worker_shutdown)(kvb_worker *worker, uint64_t deadline_ms);
  /** kvb_worker_free */
  void (*worker_free)(kvb_worker *worker);
  /** kvb_scheduler_new */
  kvb_status (*scheduler_new)(const kvb_config *config,
                              const kvb_engine *engine,
                              kvb_worker *worker,
                              kvb_scheduler **out);
  /** kvb_scheduler_match */
  kvb_status (*scheduler_match)(kvb_scheduler *scheduler,
                                const kvb_request *request,
                                uint64_t local_tokens,
                                uint64_t *out_tokens,
                                bool *out_is_async);
  /** kvb_scheduler_allocated */
  kvb_status (*scheduler_allocated)(kvb_scheduler *scheduler,
                                    uint64_t request_id,
                                    uint64_t honoured_tokens,
                                    const kvb_group_pages *pages,
                                    size_t page_lists);
  /** kvb_scheduler_cancel_load */
  kvb_status (*scheduler_cancel_load)(kvb_scheduler *scheduler,
                                      uint64_t request_id,
                                      uint64_t from_token,
                                      uint64_t to_token);
  /** kvb_scheduler_build */
  kvb_status (*scheduler_build)(kvb_scheduler *scheduler, const kvb_pass *pass, kvb_metadata **out);
  /** kvb_scheduler_finished */
  kvb_status (*scheduler_finished)(kvb_scheduler *scheduler,
                                   uint64_t request_id,
                                   int32_t reason,
                                   bool *out_pinned);
  /** kvb_scheduler_reset */
  kvb_status (*scheduler_reset)(kvb_scheduler *scheduler, uint64_t request_id);
  /** kvb_scheduler_free */
  void (*scheduler_free)(kvb_scheduler *scheduler);
  /** kvb_metadata_encode */
  kvb_status (*metadata_encode)(const kvb_metadata *metadata,
                                uint8_t *buffer,
                                size_t capacity,
                                size_t *out_needed);
  /** kvb_metadata_decode */
  kvb_status (*metadata_decode)(const uint8_t *bytes, size_t size, kvb_metadata **out);
  /** kvb_metadata_summary */
  kvb_status (*metadata_summary)(const kvb_metadata *metadata, kvb_summary *out);
  /** kvb_metadata_free */
  void (*metadata_free)(kvb_metadata *metadata);
  /** kvb_keys_hash_blocks */
  kvb_status (*keys_hash_blocks)(int32_t scheme,
                                 const kvb_request *request,
                                 uint32_t tokens_per_block,
                                 uint32_t lookahead,
                                 uint8_t *buffer,
                                 size_t capacity,
                                 size_t *out_needed);
  /** kvb_keys_page_key */
  kvb_status (*keys_page_key)(const kvb_config *config,
                              const kvb_engine *engine,
                              const kvb_layout *layout,
                              uint32_t group_id,
                              int32_t rank,
                              const uint8_t *hash,
                              size_t hash_size,
                              char *buffer,
                              size_t capacity,
                              size_t *out_needed);
  /** kvb_scheduler_reserve */
  kvb_status (*scheduler_reserve)(kvb_scheduler *scheduler,
                                  const kvb_request *request,
                                  uint64_t local_tokens,
                                  uint64_t reservation_id,
                                  uint64_t *out_tokens,
                                  bool *out_is_async);
  /** kvb_scheduler_release_reservation */
  kvb_status (*scheduler_release_reservation)(kvb_scheduler *scheduler,
                                              uint64_t reservation_id,
                                              uint64_t from_token,
                                              uint64_t to_token);
  /** kvb_worker_explain */
  kvb_status (*worker_explain)(const kvb_worker *worker,
                               const kvb_request *request,
                               uint64_t local_tokens,
                               kvb_explanation *out,
                               char *buffer,
                               size_t capacity,
                               size_t *out_needed);
  /** kvb_store_wrap_faulty */
  kvb_status (*store_wrap_faulty)(const kvb_store *store,
                                  const uint8_t *script,
                                  size_t script_size,
                                  kvb_store **out);
  /** kvb_store_put_with_options */
  kvb_status (*store_put_with_options)(const kvb_store *store,
                                       const kvb_bytes *keys,
                                       const kvb_piece *values,
                                       size_t count,
                                       const kvb_put_options *options_or_null,
                                       int32_t *out_outcomes);
} kvb_api;

/**
 * The table of all functions, for hosts that load the library with dlopen: look this symbol up
 * and pass the KVB_ABI_VERSION that the host was built with. The table lives as long as the
 * process, also after dlclose, since the library stays mapped.
 *
 * Threads: any. Answers NULL when the library does not speak that version; the reason is the text
 * of kvb_last_error, which is a symbol too.
 */
const kvb_api *kvb_plugin_entry(uint32_t abi_version);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVBRIDGE_KVBRIDGE_H */
