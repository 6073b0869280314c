#include "testing.h"

using testing_kvb::Cache;
using testing_kvb::expect_error;
using testing_kvb::kPage;
using testing_kvb::kSlots;

TEST(Layout, GroupsAndRegionsAreChecked) {
  Cache cache;
  auto layout = cache.layout();
  expect_error(KVB_INVALID_ARGUMENT, "group 0 was added before",
               [&] { layout.add_group(0, 0, "float16", "", {2}); });
  expect_error(KVB_INVALID_ARGUMENT, "layer 3 comes twice", [&] {
    layout.add_group(1, 0, "float16", "", {3, 3});
  });
  expect_error(KVB_INVALID_ARGUMENT, "layer group 9",
               [&] { layout.add_region(9, cache.region()); });
  auto region = cache.region();
  region.stride = kPage - 1;
  expect_error(KVB_INVALID_ARGUMENT, "stride", [&] { layout.add_region(0, region); });
  expect_error(KVB_INVALID_ARGUMENT, "UTF-8",
               [&] { layout.add_group(1, 0, "float16", "\xff", {}); });
}

TEST(Layout, PoolsBecomeRegions) {
  auto layout = kvb::Layout::with_mapping(1 << 21);
  layout.add_group(0, 0, "float16", "", {0, 1});
  kvb_pool pool{};
  pool.base = 1 << 20;
  pool.num_blocks = 10;
  pool.num_layers = 2;
  pool.kv_factor = 2;
  pool.block_size = 32;
  pool.element_bits = 16;
  layout.add_pool(0, pool);
  pool.layer_first = 2;
  expect_error(KVB_INVALID_ARGUMENT, "pool->layer_first is 2", [&] { layout.add_pool(0, pool); });
  pool.layer_first = 0;
  pool.replicated = 9;
  expect_error(KVB_INVALID_ARGUMENT, "pool->replicated is 9", [&] { layout.add_pool(0, pool); });
}

TEST(Layout, RegistersUnregistersAndComesBackElsewhere) {
  Cache first, second;
  auto config = kvb::Config::from_json(testing_kvb::json("layout"));
  auto engine = kvb::engine(testing_kvb::kBlock);
  auto worker = kvb::Worker::open(config, engine);
  expect_error(KVB_BAD_STATE, "layout", [&] { worker.unregister_layout(); });
  expect_error(KVB_INVALID_ARGUMENT, "no layer group",
               [&] { worker.register_layout(kvb::Layout::with_mapping()); });
  worker.register_layout(first.layout());
  expect_error(KVB_BAD_STATE, "registered", [&] { worker.register_layout(second.layout()); });
  worker.unregister_layout();

  auto other = kvb::Layout::with_mapping();
  auto region = second.region();
  region.size = kPage / 2;
  other.add_group(0, 0, "float16", "HND", {0, 1}).add_region(0, region);
  expect_error(KVB_CONTRADICTION, "", [&] { worker.register_layout(other); });
  worker.register_layout(second.layout());
}
