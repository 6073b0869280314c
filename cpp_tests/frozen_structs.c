/* A host that was built against the first header: frozen copies of what it said, and shorter and
 * longer structs as other versions would have them. Never brought up to date; what breaks this
 * program breaks programs that exist. It does not include the header for that reason. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const uint8_t *data;
  size_t size;
} old_bytes;

typedef struct {
  const void *data;
  size_t count;
  int32_t element_type;
} old_tokens;

typedef struct {
  uint32_t struct_size;
  uint32_t tokens_per_block;
  uint32_t tp_rank;
  uint32_t tp_size;
  uint32_t pp_size;
  uint32_t cp_size;
  uint32_t ranks_on_node;
  int32_t serving;
  int32_t drafter;
  int32_t max_draft_len;
  int32_t device_kind;
  int32_t device_ordinal;
  uint8_t attention_dp;
  uint8_t draft_shares_cache;
  uint8_t supplies_fences;
} old_engine;

typedef struct {
  uint32_t struct_size;
  uint64_t request_id;
  old_tokens prompt;
  old_bytes cache_salt;
  old_bytes lora_identity;
  int64_t lora_task_id;
  const uint8_t *media_digests;
  size_t media_count;
  uint8_t has_cache_salt;
  uint8_t has_lora_identity;
  uint8_t has_lora_task_id;
  uint8_t has_media;
  uint8_t context_only;
} old_request;

typedef struct {
  uint32_t group_id;
  uint32_t first_block;
  const int32_t *indices;
  size_t count;
  uint8_t replace;
} old_group_pages;

typedef struct {
  const uint64_t *data;
  size_t count;
} old_ids;

typedef struct {
  uint32_t id;
  uint32_t window;
  old_bytes number_format;
  old_bytes layout_tag;
  const uint32_t *layer_ids;
  size_t layer_count;
} old_group;

typedef struct {
  uint64_t base;
  uint64_t size;
  uint64_t stride;
  uint64_t slot_count;
  uint64_t reservation_base;
} old_region;

typedef struct {
  uint32_t struct_size;
  uint64_t capacity;
  uint64_t used_bytes;
  uint64_t objects;
  uint64_t evicted_objects;
  uint64_t refused_puts;
} old_pool_stats;

typedef struct {
  uint32_t struct_size;
  bool supports_attention_dp;
  bool reports_failed_loads;
  bool requires_block_aligned_reuse;
  bool drops_reuse_match_backoff;
  bool supports_speculative_prefill;
  bool supports_admission_query;
  uint32_t prompt_lookahead;
} old_declarations;

typedef struct {
  uint32_t struct_size;
  uint64_t lookups;
  uint64_t lookup_blocks;
  uint64_t hit_blocks;
  uint64_t lookup_keys;
  uint64_t missing_keys;
  uint64_t failed_lookup_keys;
  uint64_t loaded_pages;
  uint64_t loaded_bytes;
  uint64_t failed_load_pages;
  uint64_t bad_seals;
  uint64_t failed_load_requests;
  uint64_t saved_pages;
  uint64_t saved_bytes;
  uint64_t already_stored_pages;
  uint64_t no_space_pages;
  uint64_t failed_save_pages;
  uint64_t dropped_save_pages;
  uint64_t store_calls;
  uint64_t saves_in_flight;
} old_stats;

typedef struct {
  uint64_t request_id;
  old_tokens new_tokens;
  const old_group_pages *pages;
  size_t page_lists;
  uint64_t computed_position;
  uint64_t scheduled_tokens;
} old_step;

typedef struct {
  uint32_t struct_size;
  const old_step *steps;
  size_t step_count;
} old_pass;

typedef struct {
  uint32_t struct_size;
  uint64_t pass;
  uint64_t load_requests;
  uint64_t load_blocks;
  uint64_t save_requests;
  uint64_t save_blocks;
} old_summary;

/* Handles have no shape; outputs and inputs that may grow are passed by address alone. */
typedef int32_t status;
status kvb_last_error(char *buffer, size_t capacity, size_t *out_needed);
status kvb_config_from_json(const uint8_t *json, size_t size, void **out);
void kvb_config_free(void *config);
status kvb_layout_new(uint64_t mapping_bytes, void **out);
status kvb_layout_add_group(void *layout, const old_group *group);
status kvb_layout_add_region(void *layout, uint32_t group_id, const old_region *region);
void kvb_layout_free(void *layout);
status kvb_store_open(const void *config, const void *engine, const void *table, void **out);
status kvb_store_stats(const void *store, void *out);
void kvb_store_free(void *store);
status kvb_worker_new(const void *config, const void *engine, void *store, void **out);
status kvb_worker_declarations(const void *worker, void *out);
status kvb_worker_register_layout(void *worker, const void *layout);
status kvb_worker_bind(void *worker, const void *metadata, const void *fence);
status kvb_worker_start_load(void *worker, void *stream);
status kvb_worker_wait_for_save(void *worker, void *stream);
status kvb_worker_get_finished(void *worker, const uint64_t *finished_ids, size_t finished_count,
                               const uint64_t *loading_ids, size_t loading_count,
                               old_ids *out_saved, old_ids *out_loaded);
status kvb_worker_stats(const void *worker, void *out);
void kvb_worker_free(void *worker);
status kvb_scheduler_new(const void *config, const void *engine, void *worker, void **out);
status kvb_scheduler_match(void *scheduler, const void *request, uint64_t local_tokens,
                           uint64_t *out_tokens, bool *out_is_async);
status kvb_scheduler_allocated(void *scheduler, uint64_t request_id, uint64_t honoured_tokens,
                               const old_group_pages *pages, size_t page_lists);
status kvb_scheduler_build(void *scheduler, const void *pass, void **out);
status kvb_scheduler_finished(void *scheduler, uint64_t request_id, int32_t reason,
                              bool *out_pinned);
void kvb_scheduler_free(void *scheduler);
status kvb_metadata_summary(const void *metadata, void *out);
void kvb_metadata_free(void *metadata);

#define BLOCK 4        /* tokens */
#define PAGE 64        /* bytes */
#define SLOTS 4        /* pages */
#define FAR 1024       /* more than any struct has grown by since */
#define TAIL (2 * FAR) /* bytes that a struct of some later version has more */
#define MARK 0xee

static void expect(bool holds, const char *what, int line) {
  if (holds) return;
  char text[512] = "";
  kvb_last_error(text, sizeof text, NULL);
  fprintf(stderr, "line %d: not so: %s; latest failure: %s\n", line, what, text);
  exit(1);
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define OK(call) EXPECT((call) == 0)

/* The first `size` bytes of a struct, in an allocation that ends there, with that size in it: what
 * a host of another version passes. In a longer one fields follow that are not used, then marks for
 * what no library knows. valgrind sees any byte that is touched behind its end. */
static void *sized(const void *whole, size_t known, size_t size) {
  unsigned char *copy = malloc(size);
  EXPECT(copy != NULL);
  memset(copy, MARK, size);
  memset(copy, 0, known + FAR < size ? known + FAR : size);
  memcpy(copy, whole, known < size ? known : size);
  uint32_t written = (uint32_t)size;
  memcpy(copy, &written, sizeof written);
  return copy;
}

/* An output of `size` bytes, all marks but for its size. */
static void *blank(size_t size) {
  unsigned char *output = malloc(size);
  EXPECT(output != NULL);
  memset(output, MARK, size);
  uint32_t written = (uint32_t)size;
  memcpy(output, &written, sizeof written);
  return output;
}

/* True when all of `bytes` from `from` to `to` are marks. */
static bool untouched(const void *bytes, size_t from, size_t to) {
  for (size_t at = from; at < to; ++at)
    if (((const unsigned char *)bytes)[at] != MARK) return false;
  return true;
}

/* Asks for an output in three sizes: as it was, cut after `cut` bytes, and longer. The whole answer
 * goes to `whole`; the others must agree with it. */
typedef status (*getter)(const void *handle, void *out);
static void outputs(getter get, const void *handle, void *whole, size_t size, size_t cut) {
  uint32_t written = (uint32_t)size;
  memset(whole, MARK, size);
  memcpy(whole, &written, sizeof written);
  OK(get(handle, whole));
  EXPECT(memcmp(whole, &written, sizeof written) == 0);

  unsigned char *shorter = blank(cut);
  OK(get(handle, shorter));
  EXPECT(memcmp(shorter + 4, (unsigned char *)whole + 4, cut - 4) == 0);
  free(shorter);

  unsigned char *longer = blank(size + TAIL);
  OK(get(handle, longer));
  /* A library that has grown writes what it knows; far behind that nobody writes. */
  EXPECT(untouched(longer, size + FAR, size + TAIL));
  free(longer);
}

static unsigned char memory[PAGE * SLOTS];
static const int32_t prompt[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

typedef struct {
  void *worker, *scheduler;
} server;

/* Runs the prompt in one pass, with structs that are `more` bytes longer than they were; answers
 * how many tokens were offered. */
static uint64_t prefill(server it, uint64_t id, size_t request_size, size_t more) {
  old_request request;
  memset(&request, 0, sizeof request);
  request.request_id = id;
  request.prompt.data = prompt;
  request.prompt.count = 10;
  void *asked = sized(&request, sizeof request, request_size);
  uint64_t offered = 99;
  bool is_async = true;
  OK(kvb_scheduler_match(it.scheduler, asked, 0, &offered, &is_async));
  EXPECT(!is_async);
  free(asked);

  const int32_t indices[3] = {0, 1, 2};
  old_group_pages pages = {0, 0, indices, 3, 0};
  OK(kvb_scheduler_allocated(it.scheduler, id, offered, &pages, 1));
  old_step step;
  memset(&step, 0, sizeof step);
  step.request_id = id;
  step.new_tokens.data = prompt;
  step.new_tokens.count = 10;
  step.pages = &pages;
  step.page_lists = 1;
  step.scheduled_tokens = 10 - offered;
  old_pass pass = {0, &step, 1};
  void *given = sized(&pass, sizeof pass, sizeof pass + more);
  void *metadata = NULL;
  OK(kvb_scheduler_build(it.scheduler, given, &metadata));
  free(given);

  old_summary summary;
  outputs(kvb_metadata_summary, metadata, &summary, 48, offsetof(old_summary, save_requests));
  EXPECT(summary.load_blocks == offered / BLOCK);
  EXPECT(summary.save_requests == (offered == 0 ? 1 : 0));
  EXPECT(summary.save_blocks == (offered == 0 ? 2 : 0));

  OK(kvb_worker_bind(it.worker, metadata, NULL));
  OK(kvb_worker_start_load(it.worker, NULL));
  if (offered == 0)
    for (int page = 0; page < 3; ++page) memset(memory + page * PAGE, 10 + page, PAGE);
  OK(kvb_worker_wait_for_save(it.worker, NULL));
  kvb_metadata_free(metadata);

  bool pinned = false;
  OK(kvb_scheduler_finished(it.scheduler, id, 0, &pinned));
  old_ids saved = {NULL, 0}, loaded = {NULL, 0};
  OK(kvb_worker_get_finished(it.worker, &id, pinned ? 1 : 0, NULL, 0, &saved, &loaded));
  while (pinned && saved.count == 0)
    OK(kvb_worker_get_finished(it.worker, NULL, 0, NULL, 0, &saved, &loaded));
  EXPECT(!pinned || saved.data[0] == id);
  return offered;
}

int main(void) {
  EXPECT(sizeof(old_engine) == 52);
  EXPECT(sizeof(old_request) == 104);
  EXPECT(sizeof(old_pass) == 24);
  EXPECT(sizeof(old_stats) == 160);
  EXPECT(sizeof(old_declarations) == 16);
  EXPECT(sizeof(old_pool_stats) == 48);
  EXPECT(sizeof(old_summary) == 48);

  const char *json =
      "{\"model_key\": \"model\", \"global_segment_size\": \"1MiB\","
      " \"staging_buffer_bytes\": \"64KiB\", \"kvbridge\": {\"pool\": \"frozen\"}}";
  void *config = NULL, *layout = NULL;
  OK(kvb_config_from_json((const uint8_t *)json, strlen(json), &config));

  old_engine engine;
  memset(&engine, 0, sizeof engine);
  engine.struct_size = sizeof engine;
  engine.tokens_per_block = BLOCK;
  engine.tp_size = 1;
  void *store = NULL;
  OK(kvb_store_open(config, &engine, NULL, &store));

  uint32_t layer = 0;
  old_group group = {0, 0, {(const uint8_t *)"float16", 7}, {NULL, 0}, &layer, 1};
  old_region region = {(uint64_t)(uintptr_t)memory, PAGE, PAGE, SLOTS, 0};
  OK(kvb_layout_new(0, &layout));
  OK(kvb_layout_add_group(layout, &group));
  OK(kvb_layout_add_region(layout, 0, &region));

  /* Engines cut behind the last field that is not zero, as they were, and longer. */
  const size_t engine_sizes[] = {offsetof(old_engine, pp_size), sizeof(old_engine),
                                 sizeof(old_engine) + TAIL};
  const size_t request_sizes[] = {offsetof(old_request, cache_salt), sizeof(old_request),
                                  sizeof(old_request) + TAIL};
  uint64_t id = 0;
  for (size_t version = 0; version < 3; ++version) {
    void *described = sized(&engine, sizeof engine, engine_sizes[version]);
    server it = {NULL, NULL};
    OK(kvb_worker_new(config, described, store, &it.worker));
    OK(kvb_scheduler_new(config, described, it.worker, &it.scheduler));
    free(described);
    OK(kvb_worker_register_layout(it.worker, layout));

    old_declarations declared;
    outputs(kvb_worker_declarations, it.worker, &declared, 16,
            offsetof(old_declarations, drops_reuse_match_backoff));
    EXPECT(declared.reports_failed_loads);
    EXPECT(declared.prompt_lookahead == 0);

    /* Nobody but the first finds the pool empty: all versions mean the same pages. */
    size_t more = version == 2 ? TAIL : 0;
    ++id;
    EXPECT(prefill(it, id, request_sizes[version], more) == (id == 1 ? 0 : 8));
    memset(memory, 0, sizeof memory);
    ++id;
    EXPECT(prefill(it, id, request_sizes[version], more) == 8);
    EXPECT(memory[0] == 10 && memory[2 * PAGE - 1] == 11 && memory[2 * PAGE] == 0);

    old_stats stats;
    outputs(kvb_worker_stats, it.worker, &stats, 160, offsetof(old_stats, lookup_keys));
    EXPECT(stats.saved_pages == (version == 0 ? 2 : 0));
    EXPECT(stats.loaded_pages == (version == 0 ? 2 : 4));
    EXPECT(stats.loaded_bytes == stats.loaded_pages * PAGE);
    EXPECT(stats.bad_seals == 0);

    /* A pass of which only the size is there has no steps. */
    void *empty = blank(sizeof(uint32_t)), *metadata = NULL;
    OK(kvb_scheduler_build(it.scheduler, empty, &metadata));
    free(empty);
    kvb_metadata_free(metadata);
    kvb_scheduler_free(it.scheduler);
    kvb_worker_free(it.worker);
  }

  old_pool_stats pool;
  outputs(kvb_store_stats, store, &pool, 48, offsetof(old_pool_stats, objects));
  EXPECT(pool.capacity == 1u << 20);
  EXPECT(pool.objects == 2);
  EXPECT(pool.refused_puts == 0);

  kvb_layout_free(layout);
  kvb_store_free(store);
  kvb_config_free(config);
  return 0;
}
