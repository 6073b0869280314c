/* The library as a plugin: loaded at run time, used through its table alone. */
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kvbridge/kvbridge.h"

namespace {

constexpr size_t kPage = 32;

class Plugin : public testing::Test {
 protected:
  void SetUp() override {
    library = dlopen(KVBRIDGE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    entry = reinterpret_cast<decltype(entry)>(dlsym(library, "kvb_plugin_entry"));
    ASSERT_NE(entry, nullptr);
    api = entry(KVB_ABI_VERSION);
    ASSERT_NE(api, nullptr);
  }
  void TearDown() override {
    if (library) {
      EXPECT_EQ(dlclose(library), 0);
    }
  }

  std::string text() const {
    char text[512];
    api->last_error(text, sizeof text, nullptr);
    return text;
  }
  void ok(kvb_status status) const { ASSERT_EQ(status, KVB_OK) << text(); }

  void* library = nullptr;
  const kvb_api* (*entry)(uint32_t) = nullptr;
  const kvb_api* api = nullptr;

  /* One rank, made and driven through the table. */
  kvb_worker* worker = nullptr;
  kvb_scheduler* scheduler = nullptr;
  std::vector<uint8_t> memory = std::vector<uint8_t>(4 * kPage);

  void open(const std::string& pool) {
    std::string json = R"({"model_key": "m", "global_segment_size": "1MiB",
                           "staging_buffer_bytes": "64KiB", "kvbridge": {"pool": ")" +
                       pool + "\"}}";
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
    region.size = region.stride = kPage;
    region.slot_count = 4;
    ok(api->layout_add_region(layout, 0, &region));
    ok(api->worker_register_layout(worker, layout));
    api->layout_free(layout);
  }

  /* Runs a prompt of two blocks and a token; answers the tokens that the pool supplied. */
  uint64_t run(uint64_t id, uint8_t fill) {
    int32_t prompt[] = {1, 2, 3, 4, 5};
    kvb_request request{};
    request.struct_size = sizeof request;
    request.request_id = id;
    request.prompt = {prompt, 5, KVB_TOKENS_INT32};
    uint64_t offered = 0;
    bool is_async = true;
    ok(api->scheduler_match(scheduler, &request, 0, &offered, &is_async));
    EXPECT_FALSE(is_async);
    int32_t indices[] = {2, 0, 1};
    kvb_group_pages pages{};
    pages.indices = indices;
    pages.count = 3;
    ok(api->scheduler_allocated(scheduler, id, offered, &pages, 1));
    kvb_step step{};
    step.request_id = id;
    step.new_tokens = request.prompt;
    step.pages = &pages;
    step.page_lists = 1;
    step.scheduled_tokens = 5 - offered;
    kvb_pass pass{sizeof pass, &step, 1};
    kvb_metadata* metadata = nullptr;
    ok(api->scheduler_build(scheduler, &pass, &metadata));
    ok(api->worker_bind(worker, metadata, nullptr));
    api->metadata_free(metadata);
    ok(api->worker_start_load(worker, nullptr));
    for (size_t block = offered / 2; block < 3; ++block)
      std::memset(memory.data() + kPage * static_cast<size_t>(indices[block]),
                  fill + static_cast<int>(block), kPage);
    ok(api->worker_wait_for_save(worker, nullptr));
    return offered;
  }

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

  void close() {
    api->scheduler_free(scheduler);
    api->worker_free(worker);
  }
};

}  // namespace

TEST_F(Plugin, AnswersTheVersionItWasBuiltForAndNoOther) {
  EXPECT_EQ(api->abi_version, KVB_ABI_VERSION + 0u);
  EXPECT_EQ(api->get_abi_version(), KVB_ABI_VERSION + 0u);
  EXPECT_EQ(api->struct_size, sizeof(kvb_api));
  EXPECT_EQ(entry(KVB_ABI_VERSION), api);
  EXPECT_EQ(entry(KVB_ABI_VERSION + 1), nullptr);
  EXPECT_NE(text().find("version 2"), std::string::npos) << text();
  EXPECT_EQ(entry(0), nullptr);
}

TEST_F(Plugin, SavesAndLoadsThroughTheTable) {
  open("plugin.pool");
  EXPECT_EQ(run(1, 40), 0u);
  finish(1);
  std::fill(memory.begin(), memory.end(), 0);
  EXPECT_EQ(run(2, 90), 4u);
  EXPECT_EQ(memory[2 * kPage], 40);
  EXPECT_EQ(memory[0], 41);
  EXPECT_EQ(memory[1 * kPage], 92);
  finish(2);
  ok(api->worker_shutdown(worker, 10000));
  close();
}

TEST_F(Plugin, IsClosedWithoutShutdownAndOpenedAgain) {
  open("plugin.left");
  run(1, 7);
  /* The host forgets everything: threads and handles live on, since the code stays mapped. */
  ASSERT_EQ(dlclose(library), 0);
  EXPECT_EQ(api->get_abi_version(), KVB_ABI_VERSION + 0u);
  auto* before = api;
  auto* left_worker = worker;
  auto* left_scheduler = scheduler;

  SetUp();
  EXPECT_EQ(api, before) << "the same library";
  open("plugin.again");
  EXPECT_EQ(run(1, 7), 0u);
  finish(1);
  close();
  api->worker_free(left_worker);
  api->scheduler_free(left_scheduler);
}
