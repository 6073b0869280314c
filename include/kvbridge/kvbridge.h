/* kvbridge: a shared pool of KV-cache pages for LLM inference engines.
 *
 * (Draft by hand: the design of the C API. The generated header replaces it.)
 *
 * Conventions, said once:
 *  - Functions return kvb_status: 0 is ok. kvb_last_error copies the calling thread's text.
 *  - A miss is an outcome, not an error. Outputs change only on success.
 *  - Order of parameters: receiver, inputs, outputs; pointer and length stand side by side; length 0 ignores the pointer.
 *  - `const` receiver: may be called from several threads at once. Non-const: one call at a time.
 *  - Structs that begin with struct_size may grow: set it to sizeof; a shorter struct means that the tail is absent (zero).
 *    Elements of arrays are frozen.
 *  - Flags are uint8_t: 0 or 1, anything else is refused. Enumerations come in as int32_t constants and are checked.
 *  - Token counts and positions are uint64_t in tokens; sizes and addresses in bytes.
 */
#ifndef KVBRIDGE_H
#define KVBRIDGE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define KVB_ABI_VERSION 1u

typedef int32_t kvb_status;
#define KVB_OK 0
/* 1-9: the caller's arguments */
#define KVB_INVALID_ARGUMENT 1
#define KVB_NULL_POINTER 2
#define KVB_TOO_SMALL 3
#define KVB_OUT_OF_RANGE 4
#define KVB_UNSUPPORTED 5
#define KVB_MALFORMED 6
/* 10-19: state */
#define KVB_BAD_STATE 10
#define KVB_BUSY 11
#define KVB_CLOSED 12
#define KVB_POISONED 13
#define KVB_CONTRADICTION 14
/* 20-29: pool */
#define KVB_POOL_FAILED 20
#define KVB_LOAD_FAILED 21
#define KVB_POOL_REFUSED 22
/* 30-39: device and machine */
#define KVB_DEVICE_FAILED 30
#define KVB_NO_DEVICE 31
#define KVB_NO_MEMORY 32
#define KVB_NO_THREAD 33
/* 40-49: configuration */
#define KVB_CONFIG_INVALID 40
#define KVB_CONFIG_UNREADABLE 41
#define KVB_ENGINE_REFUSED 42
#define KVB_PANIC 90

typedef struct kvb_config kvb_config;
typedef struct kvb_layout kvb_layout;
typedef struct kvb_store kvb_store;
typedef struct kvb_worker kvb_worker;
typedef struct kvb_scheduler kvb_scheduler;
typedef struct kvb_metadata kvb_metadata;

/* ---- plain types ---- */
typedef struct kvb_bytes { const uint8_t *data; size_t size; } kvb_bytes;   /* borrowed */

#define KVB_TOKENS_INT32 0
#define KVB_TOKENS_INT64 1
typedef struct kvb_tokens { const void *data; size_t count; int32_t element_type; } kvb_tokens;

/* kvb_engine.serving */
#define KVB_SERVING_AGGREGATED 0
#define KVB_SERVING_CONTEXT 1      /* disaggregated, prefills only */
#define KVB_SERVING_GENERATION 2   /* disaggregated, decodes only */
/* kvb_engine.drafter */
#define KVB_DRAFTER_NONE 0
#define KVB_DRAFTER_MTP_VANILLA 1
#define KVB_DRAFTER_MTP_EAGLE 2
#define KVB_DRAFTER_EAGLE3 3
#define KVB_DRAFTER_OTHER 4
/* kvb_engine.device_kind */
#define KVB_DEVICE_HOST 0
#define KVB_DEVICE_CUDA 1

typedef struct kvb_engine {
  uint32_t struct_size;
  uint32_t tokens_per_block;
  uint32_t tp_rank, tp_size;        /* under attention DP: the owner's index and their number */
  uint32_t pp_size, cp_size;        /* 1, anything else is refused (0 counts as 1) */
  uint32_t ranks_on_node;           /* 0 counts as 1 */
  int32_t serving, drafter;
  int32_t max_draft_len;            /* -1: not resolved */
  int32_t device_kind, device_ordinal;  /* ordinal -1: current context */
  uint8_t attention_dp, draft_shares_cache, supplies_fences;
} kvb_engine;

/* What the engine has to arrange, read once. */
typedef struct kvb_declarations {
  uint32_t struct_size;
  bool supports_attention_dp, reports_failed_loads, requires_block_aligned_reuse,
       drops_reuse_match_backoff, supports_speculative_prefill, supports_admission_query;
  uint32_t prompt_lookahead;        /* tokens */
} kvb_declarations;

/* ---- layout ---- */
typedef struct kvb_group {          /* a layer group: layers that share one page index space */
  uint32_t id;
  uint32_t window;                  /* attention window in tokens; 0 = full */
  kvb_bytes number_format;          /* "float16", "fp8_e4m3", ... or "custom:<text>" */
  kvb_bytes layout_tag;             /* "HND", "NHD", ...; may be empty */
  const uint32_t *layer_ids; size_t layer_count;
} kvb_group;
typedef struct kvb_region {         /* page i of this region: base + i*stride, size bytes */
  uint64_t base, size, stride, slot_count;
  uint64_t reservation_base;        /* start of the virtual reservation it lies in, or 0 */
} kvb_region;
typedef struct kvb_pool {           /* a block pool as a native KVCacheManager lays it out */
  uint64_t base, num_blocks;
  uint32_t num_layers, kv_factor;
  uint64_t block_size;              /* elements per block, layer and factor */
  uint32_t element_bits;
  uint8_t layer_first;              /* 0: [blocks, layers, factor, block_size]; 1: [layers, blocks, factor, block_size] */
  uint8_t replicated;               /* 1: same bytes on every rank of the TP group */
  uint64_t reservation_base;
} kvb_pool;

/* ---- requests and passes ---- */
typedef struct kvb_request {
  uint32_t struct_size;
  uint64_t request_id;              /* the engine's; unique among live requests */
  kvb_tokens prompt;
  kvb_bytes cache_salt;             /* counts when has_cache_salt */
  kvb_bytes lora_identity;          /* counts when has_lora_identity */
  int64_t lora_task_id;             /* counts when has_lora_task_id */
  const uint8_t *media_digests;     /* media_count x 32 bytes, in prompt order */
  size_t media_count;
  uint8_t has_cache_salt, has_lora_identity, has_lora_task_id, has_media, context_only;
} kvb_request;

typedef struct kvb_group_pages {    /* pages of one layer group, from one block ordinal on */
  uint32_t group_id;
  uint32_t first_block;             /* ordinal of the block the first index belongs to */
  const int32_t *indices; size_t count;  /* memory-pool slots; -1 = no page, keeps its place */
  uint8_t replace;                  /* 1: this is the group's whole list now */
} kvb_group_pages;

typedef struct kvb_step {           /* one request's part of a pass (frozen: element of an array) */
  uint64_t request_id;
  kvb_tokens new_tokens;            /* since the last report; first report: the whole prompt */
  const kvb_group_pages *pages; size_t page_lists;   /* newly allocated since the last report */
  uint64_t computed_position;       /* tokens with valid KV before this pass; excludes what this pass restores synchronously */
  uint64_t scheduled_tokens;        /* after the trim; generation: 1 + drafts */
} kvb_step;
typedef struct kvb_pass { uint32_t struct_size; const kvb_step *steps; size_t step_count; } kvb_pass;

typedef struct kvb_ids { const uint64_t *data; size_t count; } kvb_ids;  /* view into the handle, until the next call on it */

#define KVB_FENCE_NONE 0
#define KVB_FENCE_CUDA_EVENT 1
#define KVB_FENCE_CALLBACK 2
typedef struct kvb_fence { int32_t kind; uint64_t value; } kvb_fence;

typedef struct kvb_summary {        /* what a metadata holds */
  uint32_t struct_size;
  uint64_t pass, load_requests, load_blocks, save_requests, save_blocks;
} kvb_summary;

/* kvb_scheduler_finished reason */
#define KVB_FINISH_ENDED 0
#define KVB_FINISH_CANCELLED 1
#define KVB_FINISH_PREEMPTED 2

typedef struct kvb_stats {          /* counters since the worker was made; bytes are payload bytes */
  uint32_t struct_size;
  uint64_t lookups, lookup_blocks, hit_blocks, lookup_keys, missing_keys, failed_lookup_keys;
  uint64_t loaded_pages, loaded_bytes, failed_load_pages, bad_seals, failed_load_requests;
  uint64_t saved_pages, saved_bytes, already_stored_pages, no_space_pages, failed_save_pages, dropped_save_pages;
  uint64_t store_calls, saves_in_flight;
} kvb_stats;

/* ---- global ---- */
const char *kvb_version(void);
uint32_t kvb_abi_version(void);
kvb_status kvb_last_error(char *buffer, size_t capacity, size_t *out_needed);
#define KVB_LOG_ERROR 1
#define KVB_LOG_WARN 2
#define KVB_LOG_INFO 3
#define KVB_LOG_DEBUG 4
#define KVB_LOG_TRACE 5
typedef void (*kvb_log_callback)(void *context, int32_t level, const char *target, size_t target_size, const char *message, size_t message_size);
kvb_status kvb_set_log(kvb_log_callback callback_or_null, void *context, int32_t max_level);

/* ---- config ---- */
kvb_status kvb_config_from_file(const char *path_or_null, size_t path_size, kvb_config **out);
kvb_status kvb_config_from_json(const uint8_t *json, size_t size, kvb_config **out);
kvb_status kvb_config_render(const kvb_config *config, char *buffer, size_t capacity, size_t *out_needed);
void kvb_config_free(kvb_config *config);

/* ---- layout ---- */
kvb_status kvb_layout_new(uint64_t mapping_bytes, kvb_layout **out);
kvb_status kvb_layout_add_group(kvb_layout *layout, const kvb_group *group);
kvb_status kvb_layout_add_region(kvb_layout *layout, uint32_t group_id, const kvb_region *region);
kvb_status kvb_layout_add_replicated_region(kvb_layout *layout, uint32_t group_id, const kvb_region *region);
kvb_status kvb_layout_add_pool(kvb_layout *layout, uint32_t group_id, const kvb_pool *pool);
void kvb_layout_free(kvb_layout *layout);

/* ---- store: for tools and tests; engines need only the worker ---- */
#define KVB_ABSENT 0
#define KVB_PRESENT 1
#define KVB_UNKNOWN 2
#define KVB_PUT_STORED 0
#define KVB_PUT_ALREADY_THERE 1
#define KVB_PUT_NO_SPACE 2
#define KVB_PUT_FAILED 3
#define KVB_GET_LANDED 0
#define KVB_GET_MISSING 1
#define KVB_GET_WRONG_SIZE 2
#define KVB_GET_FAILED 3
#define KVB_REMOVE_REMOVED 0
#define KVB_REMOVE_MISSING 1
#define KVB_REMOVE_LEASED 2
#define KVB_REMOVE_FAILED 3
typedef struct kvb_piece { uint64_t address; uint64_t size; } kvb_piece;
typedef struct kvb_pool_stats { uint32_t struct_size; uint64_t capacity, used_bytes, objects, evicted_objects, refused_puts; } kvb_pool_stats;
typedef struct kvb_store_table { uint32_t struct_size; void *context; } kvb_store_table;  /* slots come with the host store */
kvb_status kvb_store_open(const kvb_config *config, const kvb_engine *engine, const kvb_store_table *table_or_null, kvb_store **out);
kvb_status kvb_store_exist(const kvb_store *store, const kvb_bytes *keys, size_t count, int32_t *out_presence);
kvb_status kvb_store_put(const kvb_store *store, const kvb_bytes *keys, const kvb_piece *values, size_t count, int32_t *out_outcomes);
kvb_status kvb_store_get(const kvb_store *store, const kvb_bytes *keys, const kvb_piece *buffers, size_t count, int32_t *out_outcomes, uint64_t *out_sizes);
kvb_status kvb_store_remove(const kvb_store *store, const kvb_bytes *keys, size_t count, int32_t *out_outcomes);
kvb_status kvb_store_stats(const kvb_store *store, kvb_pool_stats *out);
void kvb_store_free(kvb_store *store);

/* ---- worker: one rank's mover ---- */
kvb_status kvb_worker_new(const kvb_config *config, const kvb_engine *engine, kvb_store *store_or_null, kvb_worker **out);
kvb_status kvb_worker_declarations(const kvb_worker *worker, kvb_declarations *out);
kvb_status kvb_worker_register_layout(kvb_worker *worker, const kvb_layout *layout);
kvb_status kvb_worker_unregister_layout(kvb_worker *worker);
/* hashes: `blocks` block hashes side by side (16 bytes each with trtllm, 32 with kvb1) */
kvb_status kvb_worker_lookup(const kvb_worker *worker, const uint8_t *hashes, size_t size, size_t *out_blocks);
kvb_status kvb_worker_bind(kvb_worker *worker, const kvb_metadata *metadata, const kvb_fence *fence_or_null);
kvb_status kvb_worker_start_load(kvb_worker *worker, void *stream);
kvb_status kvb_worker_wait_for_save(kvb_worker *worker, void *stream);
kvb_status kvb_worker_take_failed_loads(kvb_worker *worker, kvb_ids *out_ids);
kvb_status kvb_worker_get_finished(kvb_worker *worker, const uint64_t *finished_ids, size_t finished_count,
                                   const uint64_t *loading_ids, size_t loading_count, kvb_ids *out_saved, kvb_ids *out_loaded);
kvb_status kvb_worker_take_failed_async_loads(kvb_worker *worker, kvb_ids *out_ids);
kvb_status kvb_worker_stats(const kvb_worker *worker, kvb_stats *out);
kvb_status kvb_worker_prometheus(const kvb_worker *worker, char *buffer, size_t capacity, size_t *out_needed);
kvb_status kvb_worker_shutdown(kvb_worker *worker, uint64_t deadline_ms);
void kvb_worker_free(kvb_worker *worker);

/* ---- scheduler: one leader's or owner's decisions ---- */
kvb_status kvb_scheduler_new(const kvb_config *config, const kvb_engine *engine, kvb_worker *worker, kvb_scheduler **out);
kvb_status kvb_scheduler_match(kvb_scheduler *scheduler, const kvb_request *request, uint64_t local_tokens, uint64_t *out_tokens, bool *out_is_async);
kvb_status kvb_scheduler_allocated(kvb_scheduler *scheduler, uint64_t request_id, uint64_t honoured_tokens, const kvb_group_pages *pages, size_t page_lists);
kvb_status kvb_scheduler_cancel_load(kvb_scheduler *scheduler, uint64_t request_id, uint64_t from_token, uint64_t to_token);
kvb_status kvb_scheduler_build(kvb_scheduler *scheduler, const kvb_pass *pass, kvb_metadata **out);
kvb_status kvb_scheduler_finished(kvb_scheduler *scheduler, uint64_t request_id, int32_t reason, bool *out_pinned);
kvb_status kvb_scheduler_reset(kvb_scheduler *scheduler, uint64_t request_id);
void kvb_scheduler_free(kvb_scheduler *scheduler);

/* ---- metadata: one pass's transfers ---- */
kvb_status kvb_metadata_encode(const kvb_metadata *metadata, uint8_t *buffer, size_t capacity, size_t *out_needed);
kvb_status kvb_metadata_decode(const uint8_t *bytes, size_t size, kvb_metadata **out);
kvb_status kvb_metadata_summary(const kvb_metadata *metadata, kvb_summary *out);
void kvb_metadata_free(kvb_metadata *metadata);

/* ---- keys: so that tools and other languages can name pages ---- */
#define KVB_SCHEME_KVB1 0
#define KVB_SCHEME_TRTLLM 1
#define KVB_SHARD_REPLICATED (-1)
/* hashes of the whole blocks of request->prompt; out_needed counts bytes */
kvb_status kvb_keys_hash_blocks(int32_t scheme, const kvb_request *request, uint32_t tokens_per_block, uint32_t lookahead,
                                uint8_t *buffer, size_t capacity, size_t *out_needed);
/* the key of one page: group and sizes come from the layout, names from the config; rank KVB_SHARD_REPLICATED names the replicated page */
kvb_status kvb_keys_page_key(const kvb_config *config, const kvb_engine *engine, const kvb_layout *layout, uint32_t group_id, int32_t rank,
                             const uint8_t *hash, size_t hash_size, char *buffer, size_t capacity, size_t *out_needed);

/* ---- plugin ---- */
typedef struct kvb_api kvb_api;   /* struct_size, abi_version, then one pointer per function above, in append-only order */
const kvb_api *kvb_plugin_entry(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
#endif
