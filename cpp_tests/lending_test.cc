/* A pool of the host's own behind a table of functions. */
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "lent_pool.h"
#include "rig.h"

namespace {

using namespace testing_rig;
using testing_kvb::expect_error;
using testing_lent::LentPool;

/* `more` goes into the "kvbridge" object, `top` beside it. A pool that failed is tried again at
 * once. */
std::string lent(const std::string& top = "", const std::string& more = "") {
  return R"({"model_key": "model", "staging_buffer_bytes": "64KiB", )" + top +
         R"("kvbridge": {"store": "host", "breaker_cooldown_ms": 1)" + more + "}}";
}

kvb::Store open(LentPool& pool, const std::string& text = lent()) {
  auto table = pool.table();
  return kvb::Store::open(kvb::Config::from_json(text), kvb::engine(T), &table);
}

TEST(Lending, AWorkerSavesToItAndLoadsFromIt) {
  LentPool pool;
  auto table = pool.table();
  {
    Rig rig(lent(), "float16", "", &table);
    EXPECT_FALSE(pool.ranges.empty());
    EXPECT_EQ(rig.serve(1, counted(3 * T)), 0u);
    EXPECT_EQ(pool.size(), 3u);
    std::memset(rig.memory.data(), 0, rig.memory.size());
    EXPECT_EQ(rig.serve(2, counted(3 * T)), 2u * T);
    EXPECT_EQ(rig.page(0)[0], 10);
    EXPECT_EQ(rig.page(1)[kPage - 1], 11);
    auto stats = rig.worker.stats();
    EXPECT_EQ(stats.saved_pages, 3u);
    EXPECT_EQ(stats.loaded_pages, 2u);
    EXPECT_EQ(stats.failed_save_pages + stats.failed_load_pages + stats.failed_lookup_keys, 0u);
    EXPECT_EQ(stats.bad_seals, 0u);
    EXPECT_EQ(pool.size(), 3u);
    rig.worker.unregister_layout();
    EXPECT_TRUE(pool.ranges.empty());
    EXPECT_EQ(pool.releases, 0);
  }
  pool.await_release();
  EXPECT_EQ(pool.releases, 1);
}

TEST(Lending, ADamagedPageIsNotLoaded) {
  LentPool pool;
  auto table = pool.table();
  Rig rig(lent(), "float16", "", &table);
  rig.serve(1, counted(3 * T));
  for (auto& [key, object] : pool.objects) object[5] ^= 1;
  auto prompt = counted(3 * T);
  rig.allocated(2, rig.match(2, prompt), slots(3));
  auto metadata = rig.build(2, prompt, 0, T, slots(3));
  rig.worker.bind(metadata);
  rig.worker.start_load(nullptr);
  auto failed = rig.worker.take_failed_loads();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0], 2u);
  EXPECT_GE(rig.worker.stats().bad_seals, 1u);
}

TEST(Lending, WhoHoldsItLastReleasesItOnce) {
  for (int order = 0; order < 3; ++order) {
    LentPool pool;
    auto config = kvb::Config::from_json(lent());
    auto engine = kvb::engine(T);
    auto store = open(pool);
    auto faulty = store.wrap_faulty(R"({"faults": []})");
    auto first = kvb::Worker::open(config, engine, store);
    auto second = kvb::Worker::open(config, engine, faulty);
    if (order == 0) first.reset(), second.reset(), faulty.reset();
    if (order == 1) store.reset(), faulty.reset(), second.reset();
    if (order == 2) store.reset(), first.reset(), faulty.reset();
    EXPECT_EQ(pool.releases, 0);
    store.reset(), first.reset(), second.reset();
    pool.await_release();
    EXPECT_EQ(pool.releases, 1);
  }
}

TEST(Lending, WhatIsRefusedIsNotReleased) {
  LentPool pool;
  auto table = pool.table();
  auto engine = kvb::engine(T);
  auto config = kvb::Config::from_json(lent());
  auto embedded = kvb::Config::from_json(json("lending"));
  expect_error(KVB_INVALID_ARGUMENT, "kvbridge.store is \"embedded\"",
               [&] { kvb::Store::open(embedded, engine, &table); });
  expect_error(KVB_INVALID_ARGUMENT, "needs a table of functions",
               [&] { kvb::Store::open(config, engine); });
  expect_error(KVB_INVALID_ARGUMENT, "needs a table of functions",
               [&] { kvb::Worker::open(config, engine); });
  table.put = nullptr;
  expect_error(KVB_NULL_POINTER, "table->put is NULL",
               [&] { kvb::Store::open(config, engine, &table); });
  table = pool.table();
  engine.pp_size = 2;
  expect_error(KVB_ENGINE_REFUSED, "", [&] { kvb::Store::open(config, engine, &table); });
  EXPECT_EQ(pool.releases, 0);
  EXPECT_EQ(pool.calls, 0);
}

TEST(Lending, WhatATableCannotDoIsRefused) {
  for (auto [field, text] : {std::pair{"soft_pin_ttl_ms", R"("soft_pin_ttl_ms": 5, )"},
                             std::pair{"group_blocks", R"("group_blocks": true, )"},
                             std::pair{"tenant_id", R"("tenant_id": "t", )"}}) {
    LentPool pool;
    auto table = pool.table();
    auto config = kvb::Config::from_json(lent(text));
    auto engine = kvb::engine(T);
    { kvb::Worker::open(config, engine, kvb::Store::open(config, engine, &table)); }
    table.soft_pin_ttl = table.groups = table.tenant = 0;
    expect_error(KVB_POOL_REFUSED, std::string(field) + " is set, but the store \"host\" cannot",
                 [&] { kvb::Store::open(config, engine, &table); });
  }
}

TEST(Lending, OptionsOfAPutArriveKeyByKey) {
  LentPool pool;
  auto store = open(pool, lent(R"("tenant_id": "t-1", )"));
  std::string value = "value";
  std::vector<kvb_bytes> keys = {kvb::bytes("a"), kvb::bytes("b")};
  std::vector<kvb_piece> values(2, kvb::piece(value.data(), value.size()));
  std::vector<kvb_bytes> groups = {kvb::bytes("g"), kvb::bytes("")};
  EXPECT_EQ(store.put(keys, values, kvb::put_options(250, groups)),
            (std::vector<int32_t>{KVB_PUT_STORED, KVB_PUT_STORED}));
  EXPECT_EQ(pool.options["a"], std::make_pair(std::string("g"), uint64_t{250}));
  EXPECT_EQ(pool.options["b"], std::make_pair(std::string(""), uint64_t{250}));
  EXPECT_EQ(pool.tenant, "t-1");
  store.put({kvb::bytes("c")}, {values[0]});
  EXPECT_EQ(pool.options["c"], std::make_pair(std::string("-"), uint64_t{0}));
  expect_error(KVB_INVALID_ARGUMENT, "options->group_count is 2, but there are 1 keys",
               [&] { store.put({kvb::bytes("d")}, {values[0]}, kvb::put_options(0, groups)); });
  EXPECT_EQ(pool.size(), 3u);
}

/* All outcomes of one key in a store. */
struct Outcomes {
  int32_t exist, put, get, remove;
};
Outcomes all(const kvb::Store& store) {
  std::string value(8, 'v');
  std::vector<kvb_piece> pieces = {kvb::piece(value.data(), value.size())};
  std::vector<kvb_bytes> keys = {kvb::bytes("key")};
  return {store.exist(keys)[0], store.put(keys, pieces)[0],
          store.get_into(keys, pieces).outcomes[0], store.remove(keys)[0]};
}
void expect_failed(const kvb::Store& store) {
  auto seen = all(store);
  EXPECT_EQ(seen.exist, KVB_UNKNOWN);
  EXPECT_EQ(seen.put, KVB_PUT_FAILED);
  EXPECT_EQ(seen.get, KVB_GET_FAILED);
  EXPECT_EQ(seen.remove, KVB_REMOVE_FAILED);
}

TEST(Lending, AnswersThatAreNoneAreFailures) {
  LentPool pool;
  auto store = open(pool);
  auto fill = [&](int32_t outcome, uint64_t size) {
    pool.instead = [=](const std::string&, const kvb_store_call& call) {
      for (size_t i = 0; i < call.count; ++i) call.outcomes[i] = outcome, call.sizes[i] = size;
      return 0;
    };
  };
  for (int32_t outcome : {17, -600, -20005, INT32_MIN, INT32_MAX, 3}) {
    fill(outcome, 8);
    expect_failed(store);
  }
  fill(0, 8);
  EXPECT_EQ(all(store).get, KVB_GET_LANDED);
  for (uint64_t size : {uint64_t{0}, uint64_t{7}, uint64_t{9}, UINT64_MAX}) {
    fill(0, size);
    EXPECT_EQ(all(store).get, KVB_GET_FAILED);
  }
  fill(2, 8);
  EXPECT_EQ(all(store).get, KVB_GET_FAILED);
  fill(2, 9);
  EXPECT_EQ(all(store).get, KVB_GET_WRONG_SIZE);
  pool.instead = [](const std::string&, const kvb_store_call& call) {
    call.outcomes[0] = 0;
    return -5;
  };
  expect_failed(store);
}

/* Each on a pool of its own, since one that threw may be left alone for a while. Buffers of a put
 * or get that threw are never freed, so that these are not tried here. */
TEST(Lending, WhatAFunctionThrowsEndsInTheLibrary) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  kvb::set_log([&](int32_t level, std::string_view, std::string_view line) {
    std::lock_guard<std::mutex> lock(mutex);
    /* Another test's log may have lost lines, which is told now. */
    if (level == KVB_LOG_WARN && line.substr(0, 10) == "the host's") warnings.emplace_back(line);
  });
  auto text = [](const std::string&, const kvb_store_call& call) -> int32_t {
    call.outcomes[0] = 0;
    throw std::runtime_error("no pool today");
  };
  auto number = [](const std::string&, const kvb_store_call&) -> int32_t { throw 7; };
  LentPool first, second;
  first.instead = text;
  second.instead = number;
  auto store = open(first), other = open(second);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(store.exist({kvb::bytes("key")})[0], KVB_UNKNOWN);
    EXPECT_EQ(other.remove({kvb::bytes("key")})[0], KVB_REMOVE_FAILED);
  }
  kvb::set_log(nullptr);
  auto warning = [](const std::string& function, const std::string& why) {
    return "the host's " + function + ": 1 of 1 keys failed, it threw: " + why +
           "; said once until it works again";
  };
  EXPECT_EQ(warnings,
            (std::vector<std::string>{warning("exist", "no pool today"),
                                      warning("remove", "something that is no std::exception")}));
  EXPECT_GE(first.calls, 1);
  EXPECT_GE(second.calls, 1);
}

TEST(Lending, AWorkerOutlivesFunctionsThatThrow) {
  LentPool pool;
  auto table = pool.table();
  Rig rig(lent(), "float16", "", &table);
  std::atomic<bool> throws{true};
  pool.instead = [&](const std::string&, const kvb_store_call&) -> int32_t {
    throw std::runtime_error("no pool today");
  };
  EXPECT_EQ(rig.serve(1, counted(3 * T)), 0u);
  EXPECT_EQ(rig.worker.stats().saved_pages, 0u);
  rig.settle();
  pool.instead = nullptr;
  EXPECT_EQ(pool.size(), 0u);
  /* After a while it is asked again. */
  uint64_t id = 2;
  while (rig.stored(counted(3 * T)) < 3) rig.serve(id++, counted(3 * T));
  EXPECT_EQ(pool.size(), 3u);
  EXPECT_EQ(rig.serve(id, counted(3 * T)), 2u * T);
}

TEST(Lending, APoolMayStandOnAnotherOne) {
  auto engine = kvb::engine(T);
  auto below = kvb::Store::open(kvb::Config::from_json(json("lending-below")), engine);
  LentPool pool;
  pool.instead = [&](const std::string& name, const kvb_store_call& call) -> int32_t {
    std::vector<kvb_bytes> keys(call.keys, call.keys + call.count);
    if (name == "exist")
      return kvb_store_exist(below.get(), keys.data(), call.count, call.outcomes);
    if (name == "put")
      return kvb_store_put(below.get(), keys.data(), call.pieces, call.count, call.outcomes);
    return kvb_store_get(below.get(), keys.data(), call.pieces, call.count, call.outcomes,
                         call.sizes);
  };
  auto table = pool.table();
  Rig rig(lent(), "float16", "", &table);
  EXPECT_EQ(rig.serve(1, counted(3 * T)), 0u);
  EXPECT_EQ(below.stats().objects, 3u);
  EXPECT_EQ(rig.serve(2, counted(3 * T)), 2u * T);
}

}  // namespace
