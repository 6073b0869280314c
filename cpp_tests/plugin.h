/* A host that loads the library at run time and knows it through its table alone: one rank. */
#ifndef KVBRIDGE_CPP_TESTS_PLUGIN_H
#define KVBRIDGE_CPP_TESTS_PLUGIN_H

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kvbridge/kvbridge.h"

namespace plugin {

/* Must outlive the worker's threads: destroyed only when the worker is closed. */
struct Host {
  /* `slots` pages of `page` bytes are the cache. */
  explicit Host(const std::string& path, size_t page_size = 32, size_t slots = 4)
      : page(page_size), memory(page_size * slots) {
    load(path);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    close();
    if (library) dlclose(library);
  }

  void* library = nullptr;
  const kvb_api* (*entry)(uint32_t) = nullptr;
  const kvb_api* api = nullptr;
  kvb_worker* worker = nullptr;
  kvb_scheduler* scheduler = nullptr;
  size_t page;
  std::vector<uint8_t> memory;

  void load(const std::string& path) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    entry = reinterpret_cast<decltype(entry)>(dlsym(library, "kvb_plugin_entry"));
    if (!entry) throw std::runtime_error("no kvb_plugin_entry");
    api = entry(KVB_ABI_VERSION);
    if (!api) throw std::runtime_error("another version of the interface");
  }
  /* The table and all handles stay usable. */
  void unload() {
    if (dlclose(library) != 0) throw std::runtime_error(dlerror());
    library = nullptr;
  }

  std::string text() const {
    char text[512];
    api->last_error(text, sizeof text, nullptr);
    return text;
  }
  void ok(kvb_status status) const {
    if (status != KVB_OK) throw std::runtime_error(text());
  }

  void open(const std::string& pool, const std::string& pool_bytes = "1MiB",
            const std::string& staging_bytes = "64KiB", bool async_load = false) {
    std::string json = std::string(R"({"model_key": "m", "async_load": )") +
                       (async_load ? "true" : "false") + R"(, "global_segment_size": ")" +
                       pool_bytes + R"(", "staging_buffer_bytes": ")" + staging_bytes +
                       R"(", "kvbridge": {"pool": ")" + pool + "\"}}";
    kvb_config* config = nullptr;
    ok(api->config_from_json(reinterpret_cast<const uint8_t*>(json.data()), json.size(), &config));
    kvb_engine engine{};
    engine.struct_size = sizeof engine;
    engine.tokens_per_block = 2;
    engine.tp_size = 1;
    ok(api->worker_new(config, &engine, nullptr, &worker));
    ok(api->scheduler_new(config, &engine, worker, &scheduler));
    api->config_free(config);

    kvb_layout* layout = nullptr;
    ok(api->layout_new(0, &layout));
    uint32_t layers[] = {0};
    kvb_group group{};
    group.number_format = {reinterpret_cast<const uint8_t*>("int8"), 4};
    group.layer_ids = layers;
    group.layer_count = 1;
    ok(api->layout_add_group(layout, &group));
    kvb_region region{};
    region.base = reinterpret_cast<uintptr_t>(memory.data());
    region.size = region.stride = page;
    region.slot_count = memory.size() / page;
    ok(api->layout_add_region(layout, 0, &region));
    ok(api->worker_register_layout(worker, layout));
    api->layout_free(layout);
  }

  /* The page in which a block of a prompt of so many whole blocks lies. */
  static int32_t slot(size_t block, size_t blocks) {
    return static_cast<int32_t>((block + 2) % (blocks + 1));
  }
  uint8_t at(int32_t slot_index) const { return memory[page * static_cast<size_t>(slot_index)]; }

  /* Runs a prompt of whole blocks and a token; answers the tokens that the pool supplied. */
  uint64_t run(uint64_t id, uint8_t fill, size_t blocks = 2, int32_t first_token = 1) {
    std::vector<int32_t> prompt, indices;
    for (size_t i = 0; i < 2 * blocks + 1; ++i)
      prompt.push_back(first_token + static_cast<int32_t>(i));
    for (size_t i = 0; i < blocks + 1; ++i) indices.push_back(slot(i, blocks));
    kvb_request request{};
    request.struct_size = sizeof request;
    request.request_id = id;
    request.prompt = {prompt.data(), prompt.size(), KVB_TOKENS_INT32};
    uint64_t offered = 0;
    bool is_async = true;
    ok(api->scheduler_match(scheduler, &request, 0, &offered, &is_async));
    if (is_async) throw std::runtime_error("an asynchronous offer that nobody asked for");
    kvb_group_pages pages{};
    pages.indices = indices.data();
    pages.count = indices.size();
    ok(api->scheduler_allocated(scheduler, id, offered, &pages, 1));
    kvb_step step{};
    step.request_id = id;
    step.new_tokens = request.prompt;
    step.pages = &pages;
    step.page_lists = 1;
    step.scheduled_tokens = prompt.size() - offered;
    kvb_pass pass{};
    pass.struct_size = sizeof pass;
    pass.steps = &step;
    pass.step_count = 1;
    kvb_metadata* metadata = nullptr;
    ok(api->scheduler_build(scheduler, &pass, &metadata));
    ok(api->worker_bind(worker, metadata, nullptr));
    api->metadata_free(metadata);
    ok(api->worker_start_load(worker, nullptr));
    for (size_t block = offered / 2; block < blocks + 1; ++block)
      std::memset(memory.data() + page * static_cast<size_t>(slot(block, blocks)),
                  fill + static_cast<int>(block), page);
    ok(api->worker_wait_for_save(worker, nullptr));
    return offered;
  }

  /* Waits until the request's saves are done. */
  void finish(uint64_t id) {
    bool pinned = false;
    ok(api->scheduler_finished(scheduler, id, KVB_FINISH_ENDED, &pinned));
    kvb_ids saved{}, loaded{};
    ok(api->worker_get_finished(worker, &id, 1, nullptr, 0, &saved, &loaded));
    while (pinned && saved.count == 0) {
      std::this_thread::yield();
      ok(api->worker_get_finished(worker, nullptr, 0, nullptr, 0, &saved, &loaded));
    }
  }

  kvb_stats stats() const {
    kvb_stats out{};
    out.struct_size = sizeof out;
    ok(api->worker_stats(worker, &out));
    return out;
  }

  void close() {
    api->scheduler_free(scheduler);
    api->worker_free(worker);
    scheduler = nullptr;
    worker = nullptr;
  }
};

}  // namespace plugin

#endif
