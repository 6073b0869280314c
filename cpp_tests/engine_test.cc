/* Miniature engines on one pool: what they publish and load never changes an output. */
#include <algorithm>
#include <cstring>
#include <memory>

#include "engine_testing.h"

using namespace testing_engine;

namespace {

constexpr uint64_t kFirst = 1;

/* A windowed group beside the full one. */
std::vector<GroupSpec> windowed() { return {GroupSpec{0, 0, {PoolSpec{}}}, {5, 32, {PoolSpec{}}}}; }

/* KV per rank, and an index that all ranks have alike. */
std::vector<GroupSpec> with_index() {
  PoolSpec index;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  return {GroupSpec{0, 0, {PoolSpec{}, index}}};
}

void expect_nothing_wrong(const Engine& engine) {
  EXPECT_EQ(engine.counters().wrong_pages, 0u);
  EXPECT_EQ(engine.counters().failed_loads, 0u);
}

miniature::Counters run_twice(const EngineOptions& options, const std::vector<RequestSpec>& list) {
  auto counted = write_then_read(options, list);
  counted.writer.Add(counted.reader);
  return counted.writer;
}

}  // namespace

TEST(Engine, APublishedPrefixIsLoadedByteByByte) {
  const auto options = shape(pool_json("engine.prefix"));
  Engine writer(options), reader(options);
  const auto spec = request(1, prompt(200), 3);
  const auto output = run_one(&writer, spec);
  EXPECT_EQ(writer.counters().hit_blocks, 0u);
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(output, run_without_pool(options, {spec}).at(1).outputs);
  EXPECT_EQ(output.size(), 3u);
  EXPECT_EQ(reader.counters().hit_blocks, 12u);
  EXPECT_EQ(reader.counters().compared_pages, 12u);
  expect_nothing_wrong(reader);
  /* The first request of an engine gets the pages 0, 1, ... */
  for (int32_t page = 0; page < 12; ++page) {
    for (uint32_t row = 0; row < 4; ++row) {
      EXPECT_EQ(std::memcmp(writer.cache(0).Row(0, 0, page, row / 2, row % 2),
                            reader.cache(0).Row(0, 0, page, row / 2, row % 2), kTokens * 2),
                0)
          << "page " << page << ", row " << row;
    }
  }
  EXPECT_EQ(reader.Stats().front().loaded_pages, 12u);
  EXPECT_EQ(reader.Stats().front().loaded_bytes, 12 * 4 * kTokens * 2u);
}

TEST(Engine, LocalPrefixesAreExtendedByThePool) {
  auto options = shape(pool_json("engine.local"));
  options.local_reuse = true;
  Engine writer(options), reader(options);
  const auto longer = request(2, prompt(100));
  run_one(&reader, request(1, prompt(50)));
  const auto output = run_one(&writer, longer);
  EXPECT_EQ(run_one(&reader, longer), output);
  EXPECT_EQ(reader.counters().local_hit_blocks, 3u);
  EXPECT_EQ(reader.counters().hit_blocks, 3u);
  expect_nothing_wrong(reader);
}

TEST(Engine, ChunksTrimmedAfterAllocationPublishOnlyWhatWasComputed) {
  auto options = shape(pool_json("engine.chunks"));
  options.token_budget = 24;
  const Pool pool(options, *options.config_json);
  Engine engine(options);
  engine.Submit(request(1, prompt(100)));
  for (uint64_t pass = 1; pass <= 4; ++pass) {
    ASSERT_TRUE(engine.RunPass());
    while (engine.Stats().front().saves_in_flight > 0) std::this_thread::yield();
    EXPECT_EQ(pool.objects(), pass * 24 / kTokens) << "after pass " << pass;
  }
  Outcomes outcomes;
  drain(&engine, &outcomes);
  EXPECT_EQ(outcomes.at(1).saved_blocks.size(), 6u);

  options.max_running = 3;
  options.config_json = pool_json("engine.chunks.many");
  const auto counters = run_twice(options, conversations(20, 4));
  EXPECT_GT(counters.passes, 40u);
}

TEST(Engine, PreemptedRequestsRunAgainAndEndRight) {
  auto options = shape(pool_json("engine.preempted"));
  options.blocks = 12;
  options.max_running = 3;
  options.token_budget = 64;
  std::vector<RequestSpec> list;
  for (int i = 0; i < 6; ++i) list.push_back(request(kFirst + i, prompt(56 + i, i), 90));
  const auto right = run_without_pool(options, list);
  const Pool pool(options, *options.config_json);
  Engine engine(options);
  expect_same_outputs(run(&engine, list), right);
  expect_nothing_wrong(engine);
  EXPECT_GT(engine.counters().preemptions, 0u);
  EXPECT_GT(engine.counters().hit_blocks, 0u) << "a victim's own blocks come back from the pool";
  EXPECT_EQ(engine.Stats().front().saves_in_flight, 0u);
}

TEST(Engine, PassesThatNeverRanPublishNothingUncomputed) {
  auto options = shape(pool_json("engine.abandoned"));
  options.abandon_passes = true;
  options.token_budget = 40;
  options.max_running = 2;
  const auto list = conversations(40, 12);
  const auto right = run_without_pool(options, list);
  Engine writer(options), reader(options);
  expect_same_outputs(run(&writer, list), right);
  expect_same_outputs(run(&reader, list), right);
  EXPECT_GT(writer.counters().abandoned_passes, 0u);
  EXPECT_EQ(writer.counters().wrong_pages + reader.counters().wrong_pages, 0u);
  EXPECT_GT(reader.counters().hit_blocks, 0u);
}

TEST(Engine, RejectedDraftsAreNeverInPublishedBlocks) {
  auto options = shape(pool_json("engine.drafts"));
  options.max_drafts = 3;
  Engine writer(options), reader(options);
  for (int kind = 0; kind < 8; ++kind) {
    const auto spec = request(kFirst + kind, prompt(40, kind), 60);
    const auto output = run_one(&writer, spec);
    ASSERT_EQ(output, run_without_pool(options, {spec}).begin()->second.outputs);
    /* The next turn: all that was generated is prompt now. */
    auto turn = spec;
    turn.prompt.insert(turn.prompt.end(), output.begin(), output.end());
    turn.prompt.resize(turn.prompt.size() + 5, 7);
    turn.max_outputs = 2;
    EXPECT_EQ(run_one(&reader, turn), run_without_pool(options, {turn}).begin()->second.outputs);
    EXPECT_EQ(reader.counters().hit_blocks, 6u * (kind + 1));
  }
  EXPECT_GT(writer.counters().rejected_drafts, 20u);
  EXPECT_GT(writer.counters().drafts, writer.counters().rejected_drafts);
  expect_nothing_wrong(reader);
}

TEST(Engine, WindowsLeavePagesBehind) {
  auto options = shape(pool_json("engine.window"));
  options.groups = windowed();
  options.token_budget = 24;
  options.max_running = 2;
  auto counters = run_twice(options, conversations(20, 30));
  EXPECT_GT(counters.detached_pages, 0u);

  /* With a local match, the windowed group has no pages (-1) at the table's head. */
  options.local_reuse = true;
  options.config_json = pool_json("engine.window.local");
  counters = run_twice(options, conversations(20, 30));
  EXPECT_GT(counters.local_hit_blocks, 0u);
  EXPECT_GT(counters.detached_pages, 0u);
}

/* Blocks leave the shorter window first, so that some have a page in two groups of three; such a
   block is saved in none, and what was saved before serves all. */
TEST(Engine, SeveralWindowsLeaveTheirPagesBehindAtTheirOwnTime) {
  for (const bool async : {false, true}) {
    for (uint32_t ranks : {1u, 2u}) {
      const auto name = "engine.windows." + std::to_string(ranks) + (async ? ".async" : "");
      auto json = pool_json(name);
      if (async) json.insert(1, R"("async_load": true, )");
      auto options = shape(json);
      options.tp_size = ranks;
      options.token_budget = 24;
      options.max_running = 2;
      options.groups = windowed();
      const auto one = run_twice(options, conversations(20, 30)).detached_pages;
      EXPECT_GT(one, 0u);
      options.config_json->replace(json.find(name), name.size(), name + ".both");
      options.groups.push_back({9, 64, {PoolSpec{}}});
      for (const bool local : {false, true}) {
        options.local_reuse = local;
        const auto counters = run_twice(options, conversations(20, 30));
        EXPECT_GT(counters.hit_blocks, 0u);
        if (!local) {
          EXPECT_GT(counters.detached_pages, one) << "the other window's too";
        }
      }
    }
  }
}

TEST(Engine, TensorParallelRanksStoreShardsAndOneReplica) {
  auto options = shape(pool_json("engine.tp"));
  options.groups = with_index();
  options.tp_size = 2;
  const Pool pool(options, *options.config_json);
  Engine writer(options), reader(options);
  const auto spec = request(1, prompt(100), 4);
  const auto output = run_one(&writer, spec);
  EXPECT_EQ(output, run_without_pool(options, {spec}).at(1).outputs);
  EXPECT_EQ(pool.objects(), 6 * 3u);
  EXPECT_EQ(writer.Stats()[0].saved_pages, 6 * 2u) << "rank 0 writes its shard and the replica";
  EXPECT_EQ(writer.Stats()[1].saved_pages, 6u);

  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().hit_blocks, 6u);
  EXPECT_EQ(reader.Stats()[0].loaded_pages, 6 * 2u);
  EXPECT_EQ(reader.Stats()[1].loaded_pages, 6 * 2u);
  expect_nothing_wrong(reader);

  /* A block counts only with all its pages. */
  pool.remove(pool.key(spec.prompt, 3, 0, 1));
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().hit_blocks, 6u + 3);
  pool.remove(pool.key(spec.prompt, 2, 0, KVB_SHARD_REPLICATED));
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().hit_blocks, 6u + 3 + 2);
  EXPECT_EQ(pool.objects(), 6 * 3u) << "what was missing was written again";
  expect_nothing_wrong(reader);
}

TEST(Engine, ALostShardIsAnErrorUnderTensorParallelism) {
  auto options = shape(pool_json("engine.tp.lost"));
  options.tp_size = 2;
  const Pool pool(options, *options.config_json);
  const auto spec = request(1, prompt(100), 4);
  {
    Engine writer(options);
    run_one(&writer, spec);
  }
  pool.corrupt(pool.key(spec.prompt, 1, 0, 1));
  Engine reader(options);
  reader.Submit(spec);
  testing_kvb::expect_error(KVB_LOAD_FAILED, "", [&] { reader.RunPass(); });
}

TEST(Engine, OwnersUnderAttentionDpShareTheirPages) {
  auto options = shape(pool_json("engine.adp"));
  options.context_only = true;
  const auto list = conversations(12, 1);
  const auto right = run_without_pool(options, list);
  Engine single(options);
  options.adp_owners = 2;
  Engine first(options);
  options.adp_owner = 1;
  Engine second(options);

  expect_same_outputs(run(&first, list), right);
  expect_same_outputs(run(&second, list), right);
  expect_same_outputs(run(&single, list), right);
  EXPECT_GT(second.counters().hit_blocks, first.counters().hit_blocks);
  EXPECT_EQ(second.counters().hit_blocks, single.counters().hit_blocks);
  EXPECT_EQ(second.Stats().front().saved_pages, 0u) << "the first owner has saved everything";
  for (const Engine* engine : {&first, &second, &single}) expect_nothing_wrong(*engine);
}

TEST(Engine, LookaheadBlocksEndWithinThePrompt) {
  for (uint32_t lookahead : {1u, 3u}) {
    const std::string json = pool_json("engine.lookahead." + std::to_string(lookahead));
    auto options = shape(json);
    options.context_only = true;
    options.lookahead = lookahead;
    const Pool pool(options, json);
    Engine writer(options), reader(options);
    const auto whole = request(1, prompt(64));
    const auto right = run_without_pool(options, {whole}).at(1).outputs;
    EXPECT_EQ(run_one(&writer, whole), right);
    EXPECT_EQ(pool.objects(), 3u) << "block 3's lookahead is not in the prompt";
    EXPECT_EQ(run_one(&reader, whole), right);
    EXPECT_EQ(reader.counters().hit_blocks, 3u);

    /* Another token inside the lookahead of block 1 makes it another block. */
    auto forked = request(2, prompt(64));
    forked.prompt[32 + lookahead - 1] = 77;
    EXPECT_EQ(run_one(&reader, forked), run_without_pool(options, {forked}).at(2).outputs);
    EXPECT_EQ(reader.counters().hit_blocks, 3u + 1);
    /* One behind it does not. */
    forked = request(3, prompt(64));
    forked.prompt[32 + lookahead] = 77;
    EXPECT_EQ(run_one(&reader, forked), run_without_pool(options, {forked}).at(3).outputs);
    EXPECT_EQ(reader.counters().hit_blocks, 3u + 1 + 2);
    expect_nothing_wrong(reader);
  }
}

TEST(Engine, OutputsAreRightUnderEvictionPressure) {
  const auto json = pool_json("engine.pressure", "", "4KiB");
  auto options = shape(json);
  options.max_running = 2;
  options.token_budget = 48;
  const Pool pool(options, json);
  const auto list = conversations(60, 6);
  const auto right = run_without_pool(options, list);
  Engine one(options), two(options);
  for (int round = 0; round < 2; ++round) {
    expect_same_outputs(run(&one, list), right);
    expect_same_outputs(run(&two, list), right);
  }
  EXPECT_EQ(one.counters().wrong_pages + two.counters().wrong_pages, 0u);
  EXPECT_GT(pool.store.stats().evicted_objects, 0u);
  EXPECT_GT(one.counters().hit_blocks + two.counters().hit_blocks, 0u);
  EXPECT_LE(pool.store.stats().used_bytes, pool.store.stats().capacity);
}

TEST(Engine, PoolsMayGoAndComeBackBetweenRequests) {
  for (uint32_t ranks : {1u, 2u}) {
    auto options = shape(pool_json("engine.sleep." + std::to_string(ranks)));
    options.local_reuse = true;
    options.tp_size = ranks;
    const auto spec = request(1, prompt(100), 4);
    Engine engine(options);
    const auto output = run_one(&engine, spec);
    for (int nap = 1; nap <= 3; ++nap) {
      engine.Sleep();
      engine.WakeUp();
      EXPECT_EQ(run_one(&engine, spec), output);
      EXPECT_EQ(engine.counters().hit_blocks, 6u * nap) << "the pool has what the engine lost";
    }
    EXPECT_EQ(engine.counters().local_hit_blocks, 0u);
    expect_nothing_wrong(engine);
  }
}

TEST(Engine, ShutdownInTheMiddleLeavesOthersAlone) {
  auto options = shape(pool_json("engine.shutdown"));
  options.max_running = 3;
  options.token_budget = 32;
  const auto list = conversations(9, 8);
  const auto right = run_without_pool(options, list);
  Engine other(options);
  for (int passes = 0; passes < 12; ++passes) {
    auto engine = std::make_unique<Engine>(options);
    for (const auto& spec : list) engine->Submit(spec);
    for (int i = 0; i < passes; ++i) engine->RunPass();
    engine->Shutdown();
    engine->Shutdown();
    /* At the latest when there is something to do. */
    EXPECT_THROW(for (int i = 0; i < 3; ++i) engine->RunPass(), kvb::Error);
  }
  expect_same_outputs(run(&other, list), right);
  EXPECT_GT(other.counters().hit_blocks, 0u);
  expect_nothing_wrong(other);
}

TEST(Engine, IsThrownAwayInTheMiddle) {
  auto options = shape(pool_json("engine.dropped"));
  options.max_running = 3;
  options.token_budget = 32;
  const Pool pool(options, *options.config_json);
  const auto list = conversations(9, 8);
  for (int passes = 0; passes < 12; ++passes) {
    Engine engine(options);
    for (const auto& spec : list) engine.Submit(spec);
    for (int i = 0; i < passes; ++i) engine.RunPass();
  }
  Engine engine(options);
  expect_same_outputs(run(&engine, list), run_without_pool(options, list));
  expect_nothing_wrong(engine);
}

TEST(Engine, EverythingAtOnce) {
  for (uint32_t ranks : {1u, 2u}) {
    const auto json = pool_json("engine.everything." + std::to_string(ranks));
    auto options = shape(json);
    options.groups = with_index();
    options.groups.push_back(windowed()[1]);
    PoolSpec latent;
    latent.layers = 4;
    latent.kv_factor = 1;
    latent.layer_first = true;
    options.groups.push_back(GroupSpec{9, 0, {latent}});
    options.tp_size = ranks;
    options.blocks = 26;
    options.max_running = 4;
    options.token_budget = 50;
    options.max_drafts = 3;
    options.local_reuse = options.abandon_passes = options.overlap = options.haggle = true;
    auto list = conversations(60, 20);
    for (auto& spec : list) {
      if (spec.id % 5 == 0) spec.cache_salt = "tenant";
      if (spec.id % 7 == 0) spec.lora = "adapter";
      if (spec.id % 8 == 0) {
        spec.has_media = true;
        if (spec.id % 16 == 0) spec.media_digests.resize(1);
      }
      if (spec.id % 11 == 1) spec.cancel = miniature::Cancel::kBeforeAllocation;
      if (spec.id % 11 == 2) spec.cancel = miniature::Cancel::kInPrefill;
      if (spec.id % 11 == 3) {
        spec.cancel = miniature::Cancel::kAfterOutputs;
        spec.cancel_after = 1;
      }
    }
    const auto right = run_without_pool(options, list);
    const Pool pool(options, json);
    miniature::Counters all;
    for (int i = 0; i < 2; ++i) {
      Engine engine(options);
      expect_same_outputs(run(&engine, list), right);
      all.Add(engine.counters());
    }
    EXPECT_EQ(all.wrong_pages, 0u);
    EXPECT_GT(all.hit_blocks, 0u);
    EXPECT_GT(all.preemptions, 0u);
    EXPECT_GT(all.abandoned_passes, 0u);
    EXPECT_GT(all.rejected_drafts, 0u);
    EXPECT_GT(all.given_back_blocks, 0u);
    EXPECT_GT(all.detached_pages, 0u);
    EXPECT_GT(all.cancelled, 0u);
    EXPECT_GT(all.local_hit_blocks, 0u);
  }
}

/* ---- does the harness see faults? ---- */

TEST(Mutation, AWrongRawPageIsSeenByTheEngine) {
  const auto json = pool_json("mutation.raw", R"("page_format": "raw")");
  const auto options = shape(json);
  const Pool pool(options, json);
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options), reader(options), again(options);
  const auto output = run_one(&writer, spec);
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().wrong_pages, 0u);
  pool.corrupt(pool.key(spec.prompt, 2));
  run_one(&again, spec);
  EXPECT_EQ(again.counters().hit_blocks, 6u) << "nothing but the engine can tell";
  EXPECT_EQ(again.counters().wrong_pages, 1u);
}

TEST(Mutation, AForeignRawPageChangesTheOutput) {
  const auto json = pool_json("mutation.foreign", R"("page_format": "raw")");
  const auto options = shape(json);
  const Pool pool(options, json);
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options), reader(options);
  const auto output = run_one(&writer, spec);
  run_one(&writer, request(2, prompt(100, 1)));
  pool.replace(pool.key(spec.prompt, 5), pool.get(pool.key(prompt(100, 1), 5)));
  EXPECT_NE(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().wrong_pages, 1u);
}

TEST(Mutation, AWrongSealedPageIsAFailedLoadAndNeverAWrongPage) {
  const auto json = pool_json("mutation.sealed");
  const auto options = shape(json);
  const Pool pool(options, json);
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options), reader(options), next(options);
  const auto output = run_one(&writer, spec);
  const auto key = pool.key(spec.prompt, 2);
  const auto object = pool.get(key);
  pool.corrupt(key);
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().failed_loads, 1u);
  EXPECT_EQ(reader.counters().wrong_pages, 0u);
  EXPECT_EQ(reader.counters().hit_blocks, 2u) << "restarted, it takes what lies before the fault";
  EXPECT_EQ(reader.Stats().front().bad_seals, 1u);
  EXPECT_EQ(reader.Stats().front().failed_load_requests, 1u);

  /* Once the bad page is gone, the right one is published again. */
  if (pool.get(key) != object) {
    pool.remove(key);
    EXPECT_EQ(run_one(&reader, spec), output);
  }
  EXPECT_EQ(pool.get(key), object);
  EXPECT_EQ(run_one(&next, spec), output);
  EXPECT_EQ(next.counters().hit_blocks, 6u);
  expect_nothing_wrong(next);
}

TEST(Mutation, EveryByteOfASealedObjectCounts) {
  const auto json = pool_json("mutation.bytes");
  const auto options = shape(json);
  const Pool pool(options, json);
  const auto spec = request(1, prompt(40), 2);
  Engine writer(options);
  const auto output = run_one(&writer, spec);
  const auto key = pool.key(spec.prompt, 1);
  const auto object = pool.get(key);
  ASSERT_EQ(object.size(), 4 * kTokens * 2 + 48u);
  Engine reader(options);
  uint64_t failed = 0;
  const auto expect_failure = [&](const std::string& broken, const std::string& what) {
    if (pool.has(key)) pool.remove(key);
    ASSERT_EQ(pool.store.put({kvb::bytes(key)}, {kvb::piece(broken.data(), broken.size())})[0],
              KVB_PUT_STORED);
    EXPECT_EQ(run_one(&reader, spec), output) << what;
    EXPECT_EQ(reader.counters().failed_loads, ++failed) << what;
  };
  for (size_t at = 0; at < object.size(); ++at) {
    auto broken = object;
    broken[at] = static_cast<char>(broken[at] ^ (1 << at % 8));
    expect_failure(broken, "byte " + std::to_string(at));
  }
  for (size_t size : {size_t{1}, object.size() - 48, object.size() - 1}) {
    expect_failure(object.substr(0, size), "size " + std::to_string(size));
  }
  expect_failure(object + "x", "one too many");
  expect_failure(pool.get(pool.key(spec.prompt, 0)), "another block's page");
  EXPECT_EQ(reader.counters().wrong_pages, 0u);
  pool.replace(key, object);
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().failed_loads, failed) << "the right object is no failure";
}
