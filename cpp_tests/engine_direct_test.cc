/* Miniature engines whose pool reads and writes their caches itself. What waits for its pages is in
   engine_async_test.cc. */
#include "engine_testing.h"

using namespace testing_engine;

TEST(EngineOnDirect, ConversationsArePublishedAndLoaded) {
  auto options = direct("direct.conversations");
  options.groups = {GroupSpec{0, 0, {PoolSpec{}}}, {5, 32, {PoolSpec{}}}};
  options.max_running = 4;
  options.token_budget = 96;
  options.max_drafts = 2;
  options.abandon_passes = options.overlap = options.haggle = options.local_reuse = true;
  write_then_read(options, conversations(40, 6));
}

/* States layer by layer, so that a page has many pieces; and an indexer, which all ranks share. */
TEST(EngineOnDirect, RanksWithPagesOfManyPieces) {
  auto options = direct("direct.ranks");
  PoolSpec keys, index, states;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  states.layer_first = true;
  states.layers = 12;
  states.kv_factor = 1;
  options.groups = {GroupSpec{0, 0, {keys, index}}, GroupSpec{5, 0, {states}}};
  options.tp_size = 2;
  options.max_running = 3;
  write_then_read(options, conversations(20, 4));
}

TEST(EngineOnDirect, ItsMemoryComesAndGoes) {
  Engine engine(direct("direct.sleep"));
  const auto first = run_one(&engine, request(1, prompt(100)));
  engine.Sleep();
  engine.WakeUp();
  EXPECT_EQ(run_one(&engine, request(2, prompt(100))), first);
  EXPECT_EQ(engine.counters().hit_blocks, 6u);
  EXPECT_EQ(engine.counters().wrong_pages, 0u);
}
