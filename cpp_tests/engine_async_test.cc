/* Miniature engines with asynchronous loads: requests wait outside the batch, and whatever becomes
   of them meanwhile, outputs stay right and nobody writes into pages that were given back. */
#include <memory>
#include <tuple>

#include "engine_testing.h"

using namespace testing_engine;
using miniature::Cancel;
using miniature::Counters;
using miniature::Fences;

namespace {

const std::string kAsync = R"("async_load": true, )";

EngineOptions parking(const std::string& pool, uint32_t ranks = 1,
                      const std::string& size = "64MiB") {
  auto options = shape(pool_json(pool, "", size).insert(1, kAsync));
  options.tp_size = ranks;
  return options;
}

/* How many, and whether in direct mode. */
class Ranks : public testing::TestWithParam<std::tuple<uint32_t, bool>> {
 public:
  static std::string name(const testing::TestParamInfo<ParamType>& it) {
    return std::to_string(std::get<0>(it.param)) + (std::get<1>(it.param) ? "Direct" : "Staged");
  }
  static uint32_t count() { return std::get<0>(GetParam()); }
  static EngineOptions parking(const std::string& pool) {
    const auto own = pool + "." + name({GetParam(), 0});
    auto options = std::get<1>(GetParam()) ? direct(own, kAsync) : ::parking(own);
    options.tp_size = count();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Async, Ranks,
                         testing::Combine(testing::Values(1u, 2u, 4u), testing::Bool()),
                         Ranks::name);

TEST_P(Ranks, ARequestRunsOnceAllRanksHaveItsPages) {
  const auto options = parking("async.one");
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options), reader(options);
  const auto output = run_one(&writer, spec);
  EXPECT_EQ(output, run_without_pool(options, {spec}).at(1).outputs);
  EXPECT_EQ(writer.counters().parked, 0u) << "nothing was offered";

  reader.Submit(spec);
  EXPECT_FALSE(reader.RunPass()) << "a parked request is in no batch";
  EXPECT_EQ(reader.counters().parked, 1u);
  Outcomes outcomes;
  drain(&reader, &outcomes);
  EXPECT_EQ(outcomes.at(1).outputs, output);
  EXPECT_EQ(reader.counters().hit_blocks, 6u);
  EXPECT_EQ(reader.counters().compared_pages, 6u * count());
  EXPECT_EQ(outcomes.at(1).saved_blocks.size(), 0u) << "loaded blocks are not written back";
  ASSERT_EQ(reader.Stats().size(), count());
  for (const auto& stats : reader.Stats()) EXPECT_EQ(stats.loaded_pages, 6u);
  expect_intact(reader);
}

TEST_P(Ranks, ManyRequestsWaitWhileOthersRun) {
  auto options = parking("async.many");
  options.groups.push_back(GroupSpec{5, 32, {PoolSpec{}}});
  options.max_running = 4;
  options.token_budget = 50;
  for (const bool local : {false, true}) {
    options.local_reuse = local;
    const auto counters = write_then_read(options, conversations(24, 8)).reader;
    EXPECT_GT(counters.parked, 0u);
    EXPECT_GT(counters.hit_blocks, 0u);
    EXPECT_GT(counters.detached_pages, 0u);
  }
}

TEST_P(Ranks, CancelledWhileParkedTheyGiveTheirPagesBack) {
  auto options = parking("async.cancelled");
  options.max_running = 3;
  options.blocks = 24;
  options.fences = Fences::kKept;
  auto list = conversations(30, 4);
  Engine writer(options), reader(options);
  expect_same_outputs(run(&writer, list), run_without_pool(options, list));
  for (auto& spec : list) {
    if (spec.id % 2 == 0) spec.cancel = Cancel::kWhileLoading;
  }
  expect_same_outputs(run(&reader, list), run_without_pool(options, list));
  EXPECT_GT(reader.counters().left_parked, 0u);
  EXPECT_EQ(reader.counters().cancelled, 15u);
  EXPECT_GT(reader.counters().hit_blocks, 0u);
  expect_intact(reader);
}

TEST_P(Ranks, PreemptedWhileParkedTheyRunAgain) {
  auto options = parking("async.haggle");
  options.max_running = 3;
  options.haggle = true;
  const auto counters = write_then_read(options, conversations(60, 3)).reader;
  EXPECT_GT(counters.left_parked, 0u);
  EXPECT_GT(counters.preemptions, 0u);
  EXPECT_GT(counters.given_back_blocks, 0u);
  EXPECT_GT(counters.parked_for_nothing, 0u) << "honoured with 0 tokens they wait all the same";
}

TEST_P(Ranks, PoolsMayGoWhileRequestsWait) {
  auto options = parking("async.sleep");
  options.local_reuse = true;
  options.max_running = 4;
  options.fences = Fences::kKept;
  const auto list = conversations(16, 6);
  const auto right = run_without_pool(options, list);
  Engine engine(options);
  expect_same_outputs(run(&engine, list), right);
  for (int passes = 0; passes < 6; ++passes) {
    engine.Sleep();
    engine.WakeUp();
    for (const auto& spec : list) engine.Submit(spec);
    Outcomes outcomes;
    for (int i = 0; i < passes; ++i) {
      engine.RunPass();
      collect(&engine, &outcomes);
    }
    engine.Sleep();
    EXPECT_EQ(engine.parked(), 0u);
    engine.WakeUp();
    drain(&engine, &outcomes);
    expect_same_outputs(outcomes, right);
  }
  EXPECT_GT(engine.counters().hit_blocks, 0u);
  EXPECT_EQ(engine.counters().failed_loads, 0u);
  expect_intact(engine);
}

TEST_P(Ranks, EndsAtAnyMomentLeaveOthersAlone) {
  auto options = parking("async.ends");
  options.max_running = 3;
  options.token_budget = 32;
  options.fences = Fences::kKept;
  const auto list = conversations(9, 8);
  const auto right = run_without_pool(options, list);
  Engine other(options);
  expect_same_outputs(run(&other, list), right);
  for (int passes = 0; passes < 8; ++passes) {
    for (const bool orderly : {true, false}) {
      Engine engine(options);
      for (const auto& spec : list) engine.Submit(spec);
      for (int i = 0; i < passes; ++i) engine.RunPass();
      EXPECT_EQ(engine.counters().wrong_pages, 0u);
      if (!orderly) continue;
      engine.Shutdown();
      EXPECT_THROW(for (int i = 0; i < 3; ++i) engine.RunPass(), kvb::Error);
    }
  }
  Engine last(options);
  expect_same_outputs(run(&last, list), right);
  EXPECT_GT(last.counters().hit_blocks, 0u);
  expect_intact(last);
}

TEST_P(Ranks, EverythingAtOnce) {
  auto options = parking("async.everything");
  PoolSpec index;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  options.groups = {GroupSpec{0, 0, {PoolSpec{}, index}}, GroupSpec{5, 32, {PoolSpec{}}}};
  options.blocks = 26;
  options.max_running = 4;
  options.token_budget = 50;
  options.max_drafts = 3;
  options.fences = Fences::kKept;
  options.local_reuse = options.abandon_passes = options.overlap = options.haggle = true;
  auto list = conversations(60, 20);
  for (auto& spec : list) {
    if (spec.id % 5 == 0) spec.cache_salt = "tenant";
    if (spec.id % 11 == 1) spec.cancel = Cancel::kWhileLoading;
    if (spec.id % 11 == 2) spec.cancel = Cancel::kInPrefill;
  }
  const auto right = run_without_pool(options, list);
  Counters all;
  for (int i = 0; i < 3; ++i) {
    Engine engine(options);
    expect_same_outputs(run(&engine, list), right);
    expect_intact(engine);
    all.Add(engine.counters());
  }
  EXPECT_EQ(all.failed_loads, 0u);
  EXPECT_GT(all.hit_blocks, 0u);
  EXPECT_GT(all.local_hit_blocks, 0u);
  EXPECT_GT(all.abandoned_passes, 0u);
  EXPECT_GT(all.preemptions, 0u);
  EXPECT_GT(all.left_parked, 0u);
}

TEST(Async, OwnersUnderAttentionDpPark) {
  auto options = parking("async.adp");
  options.context_only = true;
  options.adp_owners = 2;
  const auto list = conversations(12, 1);
  const auto right = run_without_pool(options, list);
  Engine first(options);
  options.adp_owner = 1;
  Engine second(options);
  expect_same_outputs(run(&first, list), right);
  expect_same_outputs(run(&second, list), right);
  EXPECT_EQ(second.counters().parked, 12u);
  expect_intact(second);
}

/* ---- failed loads ---- */

TEST(Async, ARequestThatLostEverythingIsComputed) {
  auto options = parking("async.lost");
  const Pool pool(options, *options.config_json);
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options);
  const auto output = run_one(&writer, spec);
  bool lost = false;
  options.before_bind = [&] {
    for (size_t block = 0; !lost && block < 6; ++block) pool.remove(pool.key(spec.prompt, block));
    lost = true;
  };
  Engine reader(options);
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().parked, 1u);
  EXPECT_EQ(reader.counters().failed_loads, 1u);
  EXPECT_EQ(reader.counters().hit_blocks, 0u);
  EXPECT_EQ(reader.Stats().front().failed_load_requests, 1u);
  EXPECT_TRUE(pool.has(pool.key(spec.prompt, 5))) << "what was missing was written again";
  expect_intact(reader);
}

TEST(Async, ARestartedRequestTakesWhatLiesBeforeTheFault) {
  const auto options = parking("async.corrupt");
  const Pool pool(options, *options.config_json);
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options), reader(options);
  const auto output = run_one(&writer, spec);
  pool.corrupt(pool.key(spec.prompt, 2));
  EXPECT_EQ(run_one(&reader, spec), output);
  EXPECT_EQ(reader.counters().parked, 2u);
  EXPECT_EQ(reader.counters().failed_loads, 1u);
  EXPECT_EQ(reader.counters().hit_blocks, 2u);
  expect_intact(reader);
}

TEST(Async, OutputsAreRightUnderEvictionPressure) {
  auto options = parking("async.pressure", 1, "4KiB");
  options.max_running = 3;
  options.token_budget = 48;
  options.haggle = true;
  const Pool pool(options, *options.config_json);
  const auto list = conversations(60, 6);
  const auto right = run_without_pool(options, list);
  Engine one(options), two(options);
  for (int round = 0; round < 3; ++round) {
    expect_same_outputs(run(&one, list), right);
    expect_same_outputs(run(&two, list), right);
  }
  expect_intact(one);
  expect_intact(two);
  EXPECT_GT(pool.store.stats().evicted_objects, 0u);
  EXPECT_GT(one.counters().hit_blocks + two.counters().hit_blocks, 0u);
}

TEST(Async, ALostShardIsAnErrorUnderTensorParallelism) {
  const auto options = parking("async.tp.lost", 2);
  const Pool pool(options, *options.config_json);
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options), reader(options);
  run_one(&writer, spec);
  pool.corrupt(pool.key(spec.prompt, 1, 0, 1));
  testing_kvb::expect_error(KVB_LOAD_FAILED, "", [&] { run_one(&reader, spec); });
}

/* ---- does the harness see faults? ---- */

TEST(Mutation, AFenceThatDoesNotWaitIsSeen) {
  auto options = parking("async.fence");
  const auto spec = request(1, prompt(100), 4);
  Engine writer(options);
  const auto output = run_one(&writer, spec);
  options.fences = Fences::kKept;
  Engine kept(options);
  EXPECT_EQ(run_one(&kept, spec), output);
  expect_intact(kept);
  options.fences = Fences::kBroken;
  Engine broken(options);
  EXPECT_NE(run_one(&broken, spec), output);
  EXPECT_EQ(broken.counters().wrong_pages, 6u) << "the engine's late copy came last";
}

TEST(Mutation, AWriteIntoAFreePageIsSeen) {
  auto options = parking("async.touched");
  Engine engine(options);
  run_one(&engine, request(1, prompt(100), 4));
  /* Which pages it had is nobody's business: all are free now, and these were used. */
  ++*engine.cache(0).Row(0, 0, 2, 1, 1);
  run_one(&engine, request(2, prompt(100, 1), 4));
  EXPECT_EQ(engine.counters().touched_pages, 1u);
}

}  // namespace
