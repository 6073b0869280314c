/* Memory that cannot be had is a status, and what was there before stays as it was. */
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include "rig.h"

namespace {

using namespace testing_rig;
using testing_kvb::expect_error;

constexpr size_t kMiB = size_t{1} << 20;

/* Tools that map memory for themselves cannot live under a limit. */
bool can_limit() {
#if defined(__SANITIZE_ADDRESS__)
  return false;
#else
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded == nullptr || std::string(preloaded).find("vgpreload") == std::string::npos;
#endif
}

/* Lets the process map this much more, while it lives. */
struct Limit {
  explicit Limit(size_t more) {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before);
    rlimit limit = before;
    limit.rlim_cur = pages * 4096 + more;
    setrlimit(RLIMIT_AS, &limit);
  }
  ~Limit() { setrlimit(RLIMIT_AS, &before); }
  rlimit before{};
};

/* Runs `body` in a process of its own, whose limits are nobody else's. */
template <typename Body>
void apart(Body body) {
  if (!can_limit()) GTEST_SKIP() << "under a tool that needs memory of its own";
  /* Begun anew: what earlier tests freed could be had without asking the system. */
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        body();
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Memory, APoolThatCannotBeMappedIsAStatusAndASmallerOneIsFine) {
  apart([] {
    auto config = kvb::Config::from_json(json("memory-pool", "", "512MiB"));
    auto engine = kvb::engine(T);
    {
      Limit limit(64 * kMiB);
      expect_error(KVB_NO_MEMORY, "", [&] { kvb::Store::open(config, engine); });
      expect_error(KVB_NO_MEMORY, "", [&] { kvb::Worker::open(config, engine); });
      /* The name is not taken by what failed. */
      auto smaller = kvb::Config::from_json(json("memory-pool", "", "1MiB"));
      kvb::Store::open(smaller, engine);
    }
    kvb::Store::open(config, engine);
  });
}

TEST(Memory, StagingThatCannotBeHadLeavesTheWorkerAsItWas) {
  apart([] {
    auto config = kvb::Config::from_json(
        R"({"model_key": "m", "staging_buffer_bytes": "256MiB", "global_segment_size": "1MiB",
            "kvbridge": {"pool": "memory-staging"}})");
    auto engine = kvb::engine(T);
    auto worker = kvb::Worker::open(config, engine);
    void* cache = mmap(nullptr, 32 * kMiB, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(cache, MAP_FAILED);
    kvb_region region{};
    region.base = kvb::piece(cache, 0).address;
    region.size = region.stride = 32 * kMiB;
    region.slot_count = 1;
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, "float16", "", {0}).add_region(0, region);
    {
      Limit limit(24 * kMiB);
      expect_error(KVB_NO_MEMORY, "", [&] { worker.register_layout(layout); });
      expect_error(KVB_BAD_STATE, "", [&] { worker.unregister_layout(); });
    }
    worker.register_layout(layout);
    worker.unregister_layout();
    worker.shutdown(1000);
  });
}

TEST(Memory, HashesOfAHugePromptThatFindNoRoomAreAStatus) {
  apart([] {
    /* Address space that costs nothing: 32 MiB of zeroes, whose hashes take 16 MiB or, with a token
     * per block, 256. */
    size_t count = 8 * kMiB;
    void* tokens = mmap(nullptr, 4 * count, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(tokens, MAP_FAILED);
    kvb_tokens prompt{};
    prompt.data = tokens;
    prompt.count = count;
    prompt.element_type = KVB_TOKENS_INT32;
    Rig rig(json("memory-prompt"));
    /* Else the limit is set while the thread that saves maps what it then gives back. */
    rig.serve(9, counted(T, 500));
    {
      Limit limit(6 * kMiB);
      expect_error(KVB_NO_MEMORY, "kvb_keys_hash_blocks: ", [&] {
        kvb::hash_blocks(KVB_SCHEME_KVB1, kvb::request(1, prompt), 1);
      });
      expect_error(KVB_NO_MEMORY, "kvb_scheduler_match: ", [&] {
        rig.scheduler.match(kvb::request(1, prompt), 0);
      });
    }
    /* The scheduler goes on, with the same id too. */
    EXPECT_EQ(rig.serve(1, counted(3 * T)), 0u);
    EXPECT_EQ(rig.stored(counted(3 * T)), 3u);
  });
}

TEST(Memory, SizesBeyondAnyMachineAreRefused) {
  auto engine = kvb::engine(T);
  for (const char* size : {"1000TiB", "8000000TiB"}) {
    auto config = kvb::Config::from_json(json("memory-huge", "", size));
    expect_error(KVB_NO_MEMORY, size == std::string("1000TiB") ? "1099511627776000" : "",
                 [&] { kvb::Store::open(config, engine); });
  }
  kvb_pool pool{};
  pool.base = 1 << 20;
  pool.num_blocks = 1;
  pool.num_layers = UINT32_MAX;
  pool.kv_factor = 2;
  pool.block_size = 1;
  pool.element_bits = 8;
  pool.layer_first = 1;
  auto layout = kvb::Layout::with_mapping();
  layout.add_group(0, 0, "float16", "", {0});
  expect_error(KVB_INVALID_ARGUMENT, "layers 4294967295", [&] { layout.add_pool(0, pool); });
}

TEST(Memory, ABaseInTheFirstPageOfMemoryIsNoAddress) {
  auto layout = kvb::Layout::with_mapping();
  layout.add_group(0, 0, "float16", "", {0});
  kvb_region region{};
  region.size = region.stride = 64;
  region.slot_count = 4;
  for (uint64_t base : {uint64_t{1}, uint64_t{16}, uint64_t{4095}}) {
    region.base = base;
    expect_error(KVB_INVALID_ARGUMENT, "is no address of memory",
                 [&] { layout.add_region(0, region); });
  }
  region.base = 4096;
  layout.add_region(0, region);
}

TEST(Memory, AnErrorInAListNamesTheElement) {
  Rig rig(json("memory-lists"));
  kvb_bytes keys[3] = {kvb::bytes(std::string_view("a")), kvb::bytes(std::string_view("b")), {}};
  keys[2].size = 4;
  int32_t presence[3];
  EXPECT_EQ(kvb_store_exist(rig.store.get(), keys, 3, presence), KVB_NULL_POINTER);
  EXPECT_EQ(kvb::last_error(), "kvb_store_exist: keys[2]: keys->data is NULL");

  auto prompt = counted(2 * T);
  auto pages = slots(2);
  kvb_group_pages lists[2] = {kvb::group_pages(0, 0, pages.data(), 2),
                              kvb::group_pages(0, 0, nullptr, 2)};
  kvb_step steps[2]{};
  steps[0].new_tokens = steps[1].new_tokens = kvb::tokens(prompt);
  steps[1].pages = lists;
  steps[1].page_lists = 2;
  kvb_pass pass{};
  pass.struct_size = sizeof pass;
  pass.steps = steps;
  pass.step_count = 2;
  kvb_metadata* out = nullptr;
  EXPECT_EQ(kvb_scheduler_build(rig.scheduler.get(), &pass, &out), KVB_NULL_POINTER);
  EXPECT_NE(kvb::last_error().find("steps[1]: pages[1]: "), std::string::npos) << kvb::last_error();
  steps[1].page_lists = 0;
  steps[1].new_tokens.data = nullptr;
  EXPECT_EQ(kvb_scheduler_build(rig.scheduler.get(), &pass, &out), KVB_NULL_POINTER);
  EXPECT_NE(kvb::last_error().find("steps[1]: "), std::string::npos) << kvb::last_error();
}

}  // namespace
