/* Handles, and one prompt's way through all of them. */
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "testing.h"

using testing_kvb::Cache;
using testing_kvb::expect_error;
using testing_kvb::json;
using testing_kvb::kBlock;
using testing_kvb::kPage;

namespace {

/* One server: a rank with its scheduler. */
struct Server {
  explicit Server(const std::string& pool)
      : config(kvb::Config::from_json(json(pool))),
        engine(kvb::engine(kBlock)),
        worker(kvb::Worker::open(config, engine)),
        scheduler(kvb::Scheduler::beside(worker, config, engine)) {
    worker.register_layout(cache.layout());
  }

  /* Before `worker`, whose end waits for what still reads it. */
  Cache cache;
  kvb::Config config;
  kvb_engine engine;
  kvb::Worker worker;
  kvb::Scheduler scheduler;

  /* Runs the whole prompt in one pass on pages 0, 1, ...; answers how many tokens were offered. */
  uint64_t prefill(uint64_t id, const std::vector<int32_t>& prompt) {
    auto offer = scheduler.match(kvb::request(id, kvb::tokens(prompt)), 0);
    std::vector<int32_t> indices;
    for (size_t block = 0; block * kBlock < prompt.size(); ++block)
      indices.push_back(static_cast<int32_t>(block));
    auto pages = kvb::group_pages(0, 0, indices.data(), indices.size());
    scheduler.allocated(id, offer.tokens, {pages});
    kvb_step step{};
    step.request_id = id;
    step.new_tokens = kvb::tokens(prompt);
    step.pages = &pages;
    step.page_lists = 1;
    step.scheduled_tokens = prompt.size() - offer.tokens;
    auto metadata = scheduler.build({step});
    worker.bind(kvb::Metadata::decode(metadata.encode()));
    worker.start_load(nullptr);
    for (size_t block = offer.tokens / kBlock; block < indices.size(); ++block)
      std::memset(cache.page(indices[block]), static_cast<int>(10 + block), kPage);
    worker.wait_for_save(nullptr);
    return offer.tokens;
  }

  /* Ends a request and waits until its pages are free. */
  void finish(uint64_t id) {
    if (!scheduler.finished(id, KVB_FINISH_ENDED)) return;
    auto saved = worker.get_finished({id}).saved;
    while (saved.empty()) {
      std::this_thread::yield();
      saved = worker.get_finished({}).saved;
    }
    ASSERT_EQ(saved.size(), 1u);
    EXPECT_EQ(saved[0], id);
  }
};

const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

}  // namespace

TEST(Handles, APromptOfOneServerIsLoadedByAnother) {
  Server first("handles.two"), second("handles.two");
  EXPECT_EQ(first.prefill(1, kPrompt), 0u);
  first.finish(1);

  EXPECT_EQ(second.prefill(2, kPrompt), 8u);
  EXPECT_TRUE(second.worker.take_failed_loads().empty());
  EXPECT_EQ(second.cache.page(0)[5], 10);
  EXPECT_EQ(second.cache.page(1)[kPage - 1], 11);
  EXPECT_EQ(second.cache.page(3)[0], 0) << "nothing else was written";
  auto stats = second.worker.stats();
  EXPECT_EQ(stats.loaded_pages, 2u);
  EXPECT_EQ(stats.loaded_bytes, 2 * kPage);
  EXPECT_NE(second.worker.prometheus().find("kvbridge_loaded_pages_total{rank=\"0\"} 2"),
            std::string::npos);
  second.finish(2);
  EXPECT_EQ(first.worker.lookup(
                kvb::hash_blocks(KVB_SCHEME_KVB1, kvb::request(0, kvb::tokens(kPrompt)), kBlock)),
            2u);
}

/* Each number of an explanation in its own place. */
TEST(Handles, AnExplanationSaysWhatEndsAnOffer) {
  Server server("handles.explain");
  const auto explain = [&](const std::vector<int32_t>& prompt, uint64_t local = 0) {
    const auto it = server.worker.explain(kvb::request(0, kvb::tokens(prompt)), local);
    EXPECT_EQ(server.scheduler.match(kvb::request(99, kvb::tokens(prompt)), local).tokens,
              it.offered_tokens)
        << it.text;
    server.scheduler.reset_request(99);
    return it;
  };
  server.prefill(1, kPrompt);
  server.finish(1);
  auto it = explain(kPrompt);
  EXPECT_EQ(it.reason, KVB_EXPLAIN_COMPLETE);
  EXPECT_EQ(it.offered_tokens, 8u);
  EXPECT_EQ(it.blocks, 2u);
  EXPECT_EQ(it.stored_blocks, 2u);
  EXPECT_EQ(it.rank, -1);
  EXPECT_NE(it.text.find("blocks 0 … 1: stored"), std::string::npos) << it.text;
  EXPECT_EQ(explain(kPrompt, 4).offered_tokens, 4u);
  EXPECT_EQ(explain(kPrompt, 5).reason, KVB_EXPLAIN_UNALIGNED);
  EXPECT_EQ(explain({1, 2, 3, 4, 5, 6, 7, 8}).reason, KVB_EXPLAIN_LAST_TOKEN);
  it = explain({1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0});
  EXPECT_EQ(it.reason, KVB_EXPLAIN_ABSENT);
  EXPECT_EQ(it.offered_tokens, 8u);
  EXPECT_EQ(it.blocks, 3u);
  EXPECT_EQ(it.stored_blocks, 2u);
  EXPECT_EQ(it.missing_block, 2u);
  EXPECT_EQ(it.rank, 0);

  auto media = kvb::request(0, kvb::tokens(kPrompt));
  media.has_media = 1;
  EXPECT_EQ(server.worker.explain(media, 0).reason, KVB_EXPLAIN_MEDIA);
  server.worker.unregister_layout();
  EXPECT_EQ(server.worker.explain(kvb::request(0, kvb::tokens(kPrompt)), 0).reason,
            KVB_EXPLAIN_NO_LAYOUT);
}

/* Layer group 7 of rank 0 of so many. */
struct Ranked {
  Ranked(const std::string& pool, uint32_t ranks, size_t page, const std::string& faults)
      : config(kvb::Config::from_json(json(pool))), engine(kvb::engine(kBlock)) {
    engine.tp_size = ranks;
    store = kvb::Store::open(config, engine).wrap_faulty("{\"faults\": [" + faults + "]}");
    worker = kvb::Worker::open(config, engine, store);
    auto region = cache.region();
    region.size = region.stride = page;
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(7, 0, "float16", "HND", {0, 1}).add_region(7, region);
    worker.register_layout(layout);
  }

  kvb::Worker::Explanation explain() const {
    return worker.explain(kvb::request(0, kvb::tokens(kPrompt)), 0);
  }
  /* Of rank 0 alone. */
  void publish() {
    auto scheduler = kvb::Scheduler::beside(worker, config, engine);
    scheduler.match(kvb::request(1, kvb::tokens(kPrompt)), 0);
    const int32_t indices[] = {0, 1, 2};
    const auto pages = kvb::group_pages(7, 0, indices, 3);
    scheduler.allocated(1, 0, {pages});
    kvb_step step{};
    step.request_id = 1;
    step.new_tokens = kvb::tokens(kPrompt);
    step.scheduled_tokens = kPrompt.size();
    worker.bind(scheduler.build({step}));
    worker.start_load(nullptr);
    worker.wait_for_save(nullptr);
    while (worker.stats().saves_in_flight > 0) std::this_thread::yield();
    EXPECT_EQ(worker.stats().saved_pages, 2u);
  }

  Cache cache;
  kvb::Config config;
  kvb_engine engine;
  kvb::Store store;
  kvb::Worker worker;
};

TEST(Handles, AnExplanationNamesGroupRankCodeAndOtherServers) {
  {
    Ranked first("explain.rank", 2, kPage, "");
    first.publish();
    const auto it = first.explain();
    EXPECT_EQ(it.reason, KVB_EXPLAIN_ABSENT);
    EXPECT_EQ(it.missing_block, 0u);
    EXPECT_EQ(it.group_id, 7u);
    EXPECT_EQ(it.rank, 1) << "whose pages nobody wrote";
    EXPECT_EQ(it.stored_blocks, 0u);
  }
  {
    Ranked silent("explain.code", 1, kPage,
                  R"({"call": "exist", "fault": "claim-present", "key": 0},
                     {"call": "exist", "fault": "fail", "code": -7, "key": 1})");
    const auto it = silent.explain();
    EXPECT_EQ(it.reason, KVB_EXPLAIN_NO_ANSWER);
    EXPECT_EQ(it.code, -7);
    EXPECT_EQ(it.missing_block, 1u);
    EXPECT_EQ(it.group_id, 7u);
    EXPECT_EQ(it.rank, 0);
    EXPECT_EQ(it.stored_blocks, 1u);
  }
  {
    Ranked whole("explain.world", 1, kPage, "");
    whole.publish();
    const auto it = Ranked("explain.world", 2, kPage / 2, "").explain();
    EXPECT_EQ(it.reason, KVB_EXPLAIN_OTHER_GEOMETRY);
    EXPECT_EQ(it.other_world, 1u);
    EXPECT_EQ(it.missing_block, 0u);
    EXPECT_EQ(it.rank, 0);
  }
}

TEST(Handles, MetadataSaysWhatItHoldsAndTravelsAsBytes) {
  Server server("handles.metadata");
  auto empty = server.scheduler.build({});
  auto summary = empty.summary();
  EXPECT_EQ(summary.load_requests + summary.load_blocks + summary.save_requests, 0u);
  auto bytes = empty.encode();
  EXPECT_EQ(kvb::Metadata::decode(bytes).summary().pass, summary.pass);
  bytes[bytes.size() / 2] ^= 1;
  expect_error(KVB_MALFORMED, "", [&] { kvb::Metadata::decode(bytes); });
  expect_error(KVB_MALFORMED, "", [&] { kvb::Metadata::decode(nullptr, 0); });
  server.prefill(1, kPrompt);
  server.finish(1);
}

TEST(Handles, AreFreedInAnyOrder) {
  for (int order = 0; order < 6; ++order) {
    Cache cache;
    auto config = kvb::Config::from_json(json("handles.order"));
    auto engine = kvb::engine(kBlock);
    auto store = kvb::Store::open(config, engine);
    auto worker = kvb::Worker::open(config, engine, store);
    worker.register_layout(cache.layout());
    auto scheduler = kvb::Scheduler::beside(worker, config, engine);
    auto metadata = scheduler.build({});
    worker.bind(metadata);
    config.reset();
    if (order % 2 == 0) store.reset();
    if (order % 3 == 0) worker.reset();
    metadata.reset();
    if (order % 3 == 1) scheduler.reset();
    if (scheduler) {
      EXPECT_NO_THROW(scheduler.build({}));
    }
    if (store) {
      EXPECT_EQ(store.stats().objects, 0u);
    }
  }
}

TEST(Handles, NullIsFineToFreeAndRefusedElsewhere) {
  kvb_config_free(nullptr);
  kvb_layout_free(nullptr);
  kvb_store_free(nullptr);
  kvb_worker_free(nullptr);
  kvb_scheduler_free(nullptr);
  kvb_metadata_free(nullptr);
  EXPECT_EQ(kvb_worker_unregister_layout(nullptr), KVB_NULL_POINTER);
  EXPECT_EQ(kvb::last_error(), "kvb_worker_unregister_layout: worker is NULL");
  kvb_layout* layout = nullptr;
  ASSERT_EQ(kvb_layout_new(0, &layout), KVB_OK);
  EXPECT_EQ(kvb_layout_new(0, nullptr), KVB_NULL_POINTER);
  EXPECT_EQ(kvb_layout_add_region(layout, 0, nullptr), KVB_NULL_POINTER);
  EXPECT_EQ(kvb::last_error(), "kvb_layout_add_region: region is NULL");
  kvb_layout_free(layout);
}

TEST(Handles, OfAnotherTypeAreRefused) {
  auto layout = kvb::Layout::with_mapping();
  EXPECT_EQ(kvb_worker_unregister_layout(reinterpret_cast<kvb_worker*>(layout.get())),
            KVB_INVALID_ARGUMENT);
  EXPECT_NE(kvb::last_error().find("is no live kvb_worker"), std::string::npos);
  kvb_metadata_free(reinterpret_cast<kvb_metadata*>(layout.get()));
  EXPECT_NE(kvb::last_error().find("is no live kvb_metadata"), std::string::npos);
  EXPECT_NO_THROW(layout.add_group(0, 0, "float16", "", {}));
}

/* A forked process has none of the threads: whatever is called there is refused, and nothing waits.
 */
TEST(Handles, OfTheProcessBeforeAForkAreRefused) {
  Server server("handles.forked");
  auto status_in_child = [&] {
    kvb_stats stats{};
    stats.struct_size = sizeof stats;
    if (kvb_worker_stats(server.worker.get(), &stats) != KVB_BAD_STATE) return 1;
    if (kvb::last_error().find("was forked from") == std::string::npos) return 2;
    if (kvb_worker_shutdown(server.worker.get(), 60000) != KVB_BAD_STATE) return 3;
    auto request = kvb::request(1, kvb::tokens(kPrompt));
    uint64_t tokens = 0;
    bool is_async = false;
    if (kvb_scheduler_match(server.scheduler.get(), &request, 0, &tokens, &is_async) !=
        KVB_BAD_STATE) {
      return 4;
    }
    kvb_scheduler_free(server.scheduler.get());
    kvb_worker_free(server.worker.get());
    /* What was waited for as the process was forked would be waited for here. */
    kvb_store* store = nullptr;
    if (kvb_store_open(server.config.get(), &server.engine, nullptr, &store) != KVB_BAD_STATE) {
      return 6;
    }
    if (kvb::last_error().find("forked while threads") == std::string::npos) return 7;
    /* What has no threads works on. */
    return kvb::Config::from_json(json("handles.child")).get() == nullptr ? 5 : 0;
  };
  /* By a pipe and a signal: a tool that looks for lost memory would have its own word on the exit.
   */
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    const char result = static_cast<char>(status_in_child());
    (void)!write(ends[1], &result, 1);
    kill(getpid(), SIGKILL);
  }
  ASSERT_GT(child, 0);
  close(ends[1]);
  char result = -1;
  EXPECT_EQ(read(ends[0], &result, 1), 1);
  EXPECT_EQ(result, 0);
  close(ends[0]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(server.worker.stats().lookups, 0u);
}

TEST(Handles, OutputsChangeOnlyOnSuccess) {
  Server server("handles.outputs");
  auto request = kvb::request(1, kvb::tokens(kPrompt));
  uint64_t tokens = 77;
  bool is_async = true;
  EXPECT_EQ(kvb_scheduler_match(server.scheduler.get(), &request, 99, &tokens, &is_async),
            KVB_INVALID_ARGUMENT);
  EXPECT_EQ(tokens, 77u);
  EXPECT_TRUE(is_async);
  uint64_t loading = 5;
  kvb_ids saved{&loading, 3}, loaded{&loading, 4};
  EXPECT_EQ(kvb_worker_get_finished(server.worker.get(), nullptr, 0, nullptr, 1, &saved, &loaded),
            KVB_NULL_POINTER);
  EXPECT_EQ(saved.count, 3u);
  EXPECT_EQ(loaded.count, 4u);
  bool pinned = true;
  EXPECT_EQ(kvb_scheduler_finished(server.scheduler.get(), 1, 9, &pinned), KVB_INVALID_ARGUMENT);
  EXPECT_TRUE(pinned);
  kvb_fence fence{9, 0, nullptr, nullptr};
  auto metadata = server.scheduler.build({});
  EXPECT_EQ(kvb_worker_bind(server.worker.get(), metadata.get(), &fence), KVB_INVALID_ARGUMENT);
}

TEST(Handles, OneSchedulerPerWorkerAndOnTheSameTerms) {
  Server server("handles.terms");
  expect_error(KVB_BAD_STATE, "scheduler already",
               [&] { kvb::Scheduler::beside(server.worker, server.config, server.engine); });
  server.scheduler.reset();
  auto other = kvb::engine(kBlock * 2);
  expect_error(KVB_CONTRADICTION, "another",
               [&] { kvb::Scheduler::beside(server.worker, server.config, other); });
  EXPECT_NO_THROW(kvb::Scheduler::beside(server.worker, server.config, server.engine));
}

TEST(Handles, EnginesThatMayNotTakePartAreRefused) {
  auto config = kvb::Config::from_json(json("handles.refused"));
  auto refused = [&](kvb_status status, const std::string& part, kvb_engine engine) {
    expect_error(status, part, [&] { kvb::Worker::open(config, engine); });
    expect_error(status, part, [&] { kvb::Store::open(config, engine); });
  };
  auto engine = kvb::engine(kBlock);
  engine.pp_size = 2;
  refused(KVB_ENGINE_REFUSED, "pp_size", engine);
  engine = kvb::engine(kBlock);
  engine.attention_dp = 1;
  refused(KVB_ENGINE_REFUSED, "attention DP", engine);
  engine.attention_dp = 3;
  refused(KVB_INVALID_ARGUMENT, "engine->attention_dp is 3", engine);
  engine = kvb::engine(kBlock);
  engine.serving = 3;
  refused(KVB_INVALID_ARGUMENT, "engine->serving is 3", engine);
  engine = kvb::engine(0);
  refused(KVB_INVALID_ARGUMENT, "tokens_per_block", engine);
}

TEST(Handles, DeclarationsAndStatisticsFitHostsOfOtherVersions) {
  Server server("handles.versions");
  auto declared = server.worker.declarations();
  EXPECT_TRUE(declared.reports_failed_loads);
  EXPECT_EQ(declared.prompt_lookahead, 0u);
  kvb_stats stats{};
  std::memset(&stats, 0xee, sizeof stats);
  stats.struct_size = offsetof(kvb_stats, lookup_blocks);
  ASSERT_EQ(kvb_worker_stats(server.worker.get(), &stats), KVB_OK);
  EXPECT_EQ(stats.struct_size, offsetof(kvb_stats, lookup_blocks));
  EXPECT_EQ(stats.lookups, 0u);
  EXPECT_EQ(stats.lookup_blocks, 0xeeeeeeeeeeeeeeeeu) << "the tail is not the library's";
  stats.struct_size = 0;
  EXPECT_EQ(kvb_worker_stats(server.worker.get(), &stats), KVB_INVALID_ARGUMENT);
}

TEST(Handles, ShutdownMayBeRepeatedAndClosesTheWorker) {
  Server server("handles.shutdown");
  server.prefill(1, kPrompt);
  server.worker.shutdown(10000);
  server.worker.shutdown(0);
  expect_error(KVB_CLOSED, "", [&] { server.worker.register_layout(server.cache.layout()); });
  EXPECT_EQ(server.scheduler.match(kvb::request(2, kvb::tokens(kPrompt)), 0).tokens, 0u);
}

TEST(Handles, CallsBesideAnExclusiveOneAreBusyOrRunButNeverBreak) {
  Server server("handles.busy");
  std::atomic<bool> stop{false};
  std::atomic<int> odd{0};
  auto hammer = [&] {
    while (!stop) {
      kvb_ids ids{};
      auto status = kvb_worker_take_failed_loads(server.worker.get(), &ids);
      if (status != KVB_OK && status != KVB_BUSY) ++odd;
      kvb_stats stats{};
      stats.struct_size = sizeof stats;
      if (kvb_worker_stats(server.worker.get(), &stats) != KVB_OK) ++odd;
    }
  };
  std::thread one(hammer), two(hammer);
  for (int i = 0; i < 20000; ++i) {
    kvb_ids ids{};
    auto status = kvb_worker_take_failed_async_loads(server.worker.get(), &ids);
    if (status != KVB_OK && status != KVB_BUSY) ++odd;
  }
  stop = true;
  one.join();
  two.join();
  EXPECT_EQ(odd, 0);
}

TEST(Store, AnswersPerKey) {
  auto config = kvb::Config::from_json(json("store.keys"));
  auto engine = kvb::engine(kBlock);
  auto store = kvb::Store::open(config, engine);
  std::string value = "value";
  std::vector<kvb_bytes> keys = {kvb::bytes("a"), kvb::bytes("b")};
  std::vector<kvb_piece> values(2, kvb::piece(value.data(), value.size()));
  EXPECT_EQ(store.exist(keys), (std::vector<int32_t>{KVB_ABSENT, KVB_ABSENT}));
  EXPECT_EQ(store.put({keys[0]}, {values[0]}), (std::vector<int32_t>{KVB_PUT_STORED}));
  EXPECT_EQ(store.put(keys, values), (std::vector<int32_t>{KVB_PUT_ALREADY_THERE, KVB_PUT_STORED}));
  std::string one(5, '-'), two(4, '-'), three(5, '-');
  keys.push_back(kvb::bytes("c"));
  auto got = store.get_into(
      keys, {kvb::piece(one.data(), 5), kvb::piece(two.data(), 4), kvb::piece(three.data(), 5)});
  EXPECT_EQ(got.outcomes,
            (std::vector<int32_t>{KVB_GET_LANDED, KVB_GET_WRONG_SIZE, KVB_GET_MISSING}));
  EXPECT_EQ(got.sizes, (std::vector<uint64_t>{5, 5, 0}));
  EXPECT_EQ(one + two + three, "value---------");
  EXPECT_EQ(store.stats().objects, 2u);
  auto removed = store.remove(keys);
  EXPECT_EQ(removed[2], KVB_REMOVE_MISSING);

  auto again = kvb::Store::open(config, engine);
  EXPECT_EQ(again.stats().capacity, 1u << 20) << "the same pool by its name";
  expect_error(KVB_INVALID_ARGUMENT, "keys[1] is empty", [&] {
    store.exist({keys[0], kvb::bytes("")});
  });
  expect_error(KVB_NULL_POINTER, "values[0].address",
               [&] { store.put({keys[0]}, {kvb::piece(nullptr, 5)}); });
}

TEST(Global, TheLastErrorIsCutToFit) {
  EXPECT_EQ(kvb_layout_new(0, nullptr), KVB_NULL_POINTER);
  char text[8];
  size_t needed = 0;
  EXPECT_EQ(kvb_last_error(text, sizeof text, &needed), KVB_TOO_SMALL);
  EXPECT_STREQ(text, "kvb_lay");
  EXPECT_EQ(needed, std::strlen("kvb_layout_new: out is NULL") + 1);
  EXPECT_EQ(kvb_last_error(nullptr, 0, nullptr), KVB_TOO_SMALL);
  std::thread([] { EXPECT_EQ(kvb::last_error(), ""); }).join();
  EXPECT_EQ(kvb_abi_version(), KVB_ABI_VERSION + 0u);
}

TEST(Global, TheLogReachesTheSinkWhileItIsSet) {
  std::vector<std::string> heard;
  kvb::set_log([&](int32_t level, std::string_view target, std::string_view message) {
    EXPECT_EQ(level, KVB_LOG_WARN);
    EXPECT_EQ(target.substr(0, 8), "kvbridge");
    heard.emplace_back(message);
    throw 1; /* contained */
  });
  kvb::Config::from_json(R"({"model_key": "m", "of_somebody_else": 1})");
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_NE(heard[0].find("of_somebody_else"), std::string::npos) << heard[0];
  kvb::set_log(nullptr);
  kvb::Config::from_json(R"({"model_key": "m", "of_somebody_else": 1})");
  EXPECT_EQ(heard.size(), 1u);
  expect_error(KVB_INVALID_ARGUMENT, "max_level is 9",
               [] { kvb::set_log([](int32_t, std::string_view, std::string_view) {}, 9); });
}
