/* Pools that fail by script: what a host sees of it, and what the library owes it all the same. */
#include <mutex>

#include "rig.h"

namespace {

using namespace testing_rig;
using testing_kvb::expect_error;

std::string script(const std::string& faults) { return "{\"faults\": [" + faults + "]}"; }

struct FaultyStore {
  explicit FaultyStore(const std::string& pool, const std::string& faults)
      : config(kvb::Config::from_json(json(pool, kNoLease))),
        engine(kvb::engine(T)),
        store(kvb::Store::open(config, engine)),
        faulty(store.wrap_faulty(script(faults))) {}
  kvb::Config config;
  kvb_engine engine;
  kvb::Store store;
  kvb::Store faulty;
  std::string value = "0123456789";

  int32_t put(kvb::Store& where, const std::string& key) {
    return where.put({kvb::bytes(key)}, {kvb::piece(value.data(), value.size())})[0];
  }
  int32_t get(kvb::Store& where, const std::string& key, std::string* out = nullptr) {
    std::string landed(value.size(), '-');
    auto got = where.get_into({kvb::bytes(key)}, {kvb::piece(landed.data(), landed.size())});
    if (out) *out = landed;
    return got.outcomes[0];
  }
};

TEST(Faults, EachWordDoesWhatTheManualSays) {
  std::string landed;
  {
    FaultyStore it("faults-lose", R"({"call": "put", "fault": "lose", "count": 1},
                                     {"call": "get", "fault": "lose", "from": 1})");
    EXPECT_EQ(it.put(it.faulty, "a"), KVB_PUT_STORED);
    EXPECT_EQ(it.get(it.store, "a"), KVB_GET_MISSING);
    EXPECT_EQ(it.put(it.faulty, "a"), KVB_PUT_STORED);
    EXPECT_EQ(it.get(it.faulty, "a", &landed), KVB_GET_LANDED);
    EXPECT_EQ(landed, it.value);
    EXPECT_EQ(it.get(it.faulty, "a"), KVB_GET_MISSING);
    EXPECT_EQ(it.get(it.store, "a"), KVB_GET_LANDED);
  }
  {
    FaultyStore it("faults-spoil", R"({"call": "get", "fault": "corrupt", "every": 2},
                                      {"call": "get", "fault": "truncate", "from": 1, "count": 1},
                                      {"call": "exist", "fault": "fail", "code": -7, "key": 1},
                                      {"call": "exist", "fault": "claim-present", "containing": "c"},
                                      {"call": "put", "fault": "no-space", "containing": "full"})");
    EXPECT_EQ(it.put(it.faulty, "a"), KVB_PUT_STORED);
    EXPECT_EQ(it.put(it.faulty, "full"), KVB_PUT_NO_SPACE);
    EXPECT_EQ(it.get(it.faulty, "a", &landed), KVB_GET_LANDED);
    EXPECT_NE(landed, it.value);
    EXPECT_EQ(it.get(it.faulty, "a"), KVB_GET_WRONG_SIZE);
    EXPECT_EQ(it.get(it.faulty, "a", &landed), KVB_GET_LANDED);
    EXPECT_NE(landed, it.value);
    EXPECT_EQ(it.get(it.faulty, "a", &landed), KVB_GET_LANDED);
    EXPECT_EQ(landed, it.value);
    std::string a = "a", b = "b", c = "c";
    EXPECT_EQ(it.faulty.exist({kvb::bytes(a), kvb::bytes(b), kvb::bytes(c)}),
              (std::vector<int32_t>{KVB_PRESENT, KVB_UNKNOWN, KVB_PRESENT}));
  }
}

TEST(Faults, ListsOfTheWrongLengthNeverReachTheHost) {
  for (const char* by : {"-1", "1"}) {
    FaultyStore it("faults-length", std::string(R"({"fault": "wrong-length", "by": )") + by + "}");
    std::string key = "a";
    /* What is missing counts as failed; nothing is written behind the host's list. */
    std::vector<int32_t> presence(3, 77);
    auto bytes = kvb::bytes(key);
    ASSERT_EQ(kvb_store_exist(it.faulty.get(), &bytes, 1, presence.data() + 1), KVB_OK);
    EXPECT_EQ(presence[0], 77);
    EXPECT_NE(presence[1], 77);
    EXPECT_EQ(presence[2], 77);
  }
}

TEST(Faults, AWrappedStoreCanBeWrappedAndOutlivesWhatItWraps) {
  FaultyStore it("faults-twice", R"({"call": "get", "fault": "lose"})");
  auto outer = it.faulty.wrap_faulty(script(R"({"call": "exist", "fault": "lose"})"));
  it.faulty = kvb::Store();
  std::string key = "a";
  EXPECT_EQ(it.put(outer, key), KVB_PUT_STORED);
  EXPECT_EQ(it.get(outer, key), KVB_GET_MISSING);
  EXPECT_EQ(outer.exist({kvb::bytes(key)})[0], KVB_ABSENT);
  EXPECT_EQ(it.store.exist({kvb::bytes(key)})[0], KVB_PRESENT);
  EXPECT_EQ(outer.stats().objects, 1u);
}

TEST(Faults, AWrongScriptIsRefusedWithEveryProblem) {
  FaultyStore it("faults-script", "");
  auto refused = [&](const std::string& text, const std::string& part) {
    expect_error(KVB_INVALID_ARGUMENT, part, [&] { it.store.wrap_faulty(text); });
  };
  refused("", "script: it is not a JSON object");
  refused(script(R"({"fault": "lose"}, {"fault": "fall"})"), R"(faults[1].fault: "fall")");
  refused(script(R"({"fault": "lose", "cal": "put"})"), R"(the nearest is "call")");
}

/* Case 33, and every other call: each one fails at each index in turn, in every way. After a drain
 * no request is pinned, and all were reported. */
TEST(Faults, Case33EachCallFailsAtEachIndexInTurn) {
  int tried = 0;
  for (std::string call : {"exist", "put", "get"}) {
    for (std::string fault : {R"("fail", "code": -3)", R"("lose")", R"("wrong-length", "by": -1)",
                              R"("wrong-length", "by": 2)", R"("truncate")"}) {
      for (int at = 0; at < 6; ++at) {
        SCOPED_TRACE(call + " " + fault + " " + std::to_string(at));
        Rig rig(json("faults-33", kNoLease), "float16",
                script("{\"call\": \"" + call + "\", \"fault\": " + fault + ", \"count\": 1, " +
                       "\"from\": " + std::to_string(at) + "}"));
        for (uint64_t id = 1; id <= 3; ++id) {
          auto prompt = counted(3 * T + 1);
          auto pages = slots(4);
          auto offered = rig.match(id, prompt);
          rig.allocated(id, offered, pages);
          auto metadata = rig.build(id, prompt, 0, prompt.size() - offered, pages);
          rig.worker.bind(metadata);
          rig.compute(pages, 0);
          rig.worker.start_load(nullptr);
          auto failed = rig.worker.take_failed_loads();
          /* What is no failure is right. */
          for (size_t block = 0; failed.empty() && block < offered / T; ++block)
            EXPECT_EQ(rig.page(pages[block])[0], 10 + static_cast<int>(block));
          rig.compute(pages, 10);
          rig.worker.wait_for_save(nullptr);
          rig.finish(id);
        }
        rig.settle();
        EXPECT_EQ(rig.worker.stats().saves_in_flight, 0u);
        EXPECT_TRUE(rig.worker.get_finished({}).saved.empty());
        rig.worker.shutdown(1000);
        ++tried;
      }
    }
  }
  EXPECT_EQ(tried, 90);
}

TEST(Faults, APoolThatIsFullForAWhileTakesTheSamePagesLater) {
  Rig rig(json("faults-full", kNoLease), "float16",
          script(R"({"call": "put", "fault": "no-space", "count": 1})"));
  rig.serve(1, counted(3 * T));
  EXPECT_EQ(rig.stored(counted(3 * T)), 0u);
  EXPECT_EQ(rig.worker.stats().no_space_pages, 3u);
  rig.serve(2, counted(3 * T));
  EXPECT_EQ(rig.stored(counted(3 * T)), 3u);
}

TEST(Faults, Case56AfterThePoolLostEverythingLookupsMissAndSavesWrite) {
  Rig rig(json("faults-56", kNoLease));
  auto prompt = counted(3 * T);
  rig.serve(1, prompt);
  ASSERT_EQ(rig.stored(prompt), 3u);
  for (size_t block = 0; block < 3; ++block) rig.remove(rig.key(prompt, block));
  EXPECT_EQ(rig.match(2, prompt), 0u);
  rig.scheduler.finished(2, KVB_FINISH_ENDED);
  rig.serve(3, prompt);
  EXPECT_EQ(rig.stored(prompt), 3u);
}

TEST(Faults, PagesThatVanishBetweenLookupAndReadAreHandedBack) {
  Rig rig(json("faults-vanish", kNoLease), "float16",
          script(R"({"call": "get", "fault": "lose", "key": 1})"));
  auto prompt = counted(3 * T);
  rig.serve(1, prompt);
  auto pages = slots(3, 20);
  auto offered = rig.match(2, prompt);
  ASSERT_EQ(offered, 2u * T);
  rig.allocated(2, offered, pages);
  rig.worker.bind(rig.build(2, prompt, 0, prompt.size() - offered, pages));
  rig.worker.start_load(nullptr);
  auto failed = rig.worker.take_failed_loads();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0], 2u);
}

TEST(Faults, APanicPoisonsTheHandleThatItPassedAndNoOther) {
  FaultyStore it("faults-panic", R"({"call": "exist", "fault": "panic", "count": 1})");
  std::string key = "a";
  auto exist = [&] { it.faulty.exist({kvb::bytes(key)}); };
  expect_error(KVB_PANIC, "asks for a panic", exist);
  expect_error(KVB_POISONED, "store", exist);
  EXPECT_EQ(it.store.exist({kvb::bytes(key)})[0], KVB_ABSENT);
}

TEST(Faults, APanicInALoadPoisonsTheWorkerWhichCanStillBeFreed) {
  Rig rig(json("faults-load", kNoLease), "float16", script(R"({"call": "get", "fault": "panic"})"));
  auto prompt = counted(3 * T);
  rig.serve(1, prompt);
  auto pages = slots(3, 20);
  auto offered = rig.match(2, prompt);
  ASSERT_EQ(offered, 2u * T);
  rig.allocated(2, offered, pages);
  rig.worker.bind(rig.build(2, prompt, 0, prompt.size() - offered, pages));
  expect_error(KVB_PANIC, "asks for a panic", [&] { rig.worker.start_load(nullptr); });
  expect_error(KVB_POISONED, "worker", [&] { rig.worker.start_load(nullptr); });
  expect_error(KVB_POISONED, "worker", [&] { rig.worker.stats(); });
}

TEST(Faults, APanicOnTheSaveThreadCostsItsPagesAndNothingElse) {
  Rig rig(json("faults-save", kNoLease), "float16",
          script(R"({"call": "put", "fault": "panic", "count": 1})"));
  /* The thread was started before there was a log to speak to. */
  std::mutex mutex;
  std::string heard;
  kvb::set_log([&](int32_t level, std::string_view, std::string_view line) {
    std::lock_guard<std::mutex> lock(mutex);
    if (level == KVB_LOG_ERROR) heard += line;
  });
  testing::internal::CaptureStderr();
  rig.serve(1, counted(3 * T));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  kvb::set_log(nullptr);
  EXPECT_NE(heard.find("asks for a panic"), std::string::npos) << heard;
  EXPECT_EQ(rig.worker.stats().failed_save_pages, 3u);
  rig.serve(2, counted(3 * T));
  EXPECT_EQ(rig.stored(counted(3 * T)), 3u);
}

TEST(Faults, ACallThatHangsCostsItsPagesAndEndsWithTheStore) {
  /* Time for the call to begin on a busy machine: one that has not is taken back and never late. */
  Rig rig(json("faults-hang", R"("save_timeout_ms": 2000, "lookup_timeout_ms": 60000)"), "float16",
          script(R"({"call": "put", "fault": "hang", "ms": 60000})"));
  auto prompt = counted(2 * T);
  auto pages = slots(2);
  rig.match(1, prompt);
  rig.allocated(1, 0, pages);
  rig.run(rig.build(1, prompt, 0, prompt.size(), pages));
  EXPECT_TRUE(rig.scheduler.finished(1, KVB_FINISH_ENDED));
  /* Waits for the save, which ends at its deadline. The pool keeps its slots, not the layout. */
  while (rig.worker.stats().failed_save_pages < 2) std::this_thread::yield();
  kvb_stats stats = rig.worker.stats();
  EXPECT_EQ(stats.pool_deadlines, 1u);
  EXPECT_EQ(stats.late_calls, 1u);
  EXPECT_EQ(stats.breaker_state, KVB_BREAKER_OPEN);
  expect_error(KVB_BUSY, "shutdown: ", [&] { rig.worker.shutdown(0); });
  rig.faulty = kvb::Store();
  while (rig.worker.stats().late_calls > 0) std::this_thread::yield();
  rig.worker.shutdown(30000);
}

TEST(Faults, APoolOutOfReachOpensTheBreaker) {
  Rig rig(json("faults-unreachable", R"("breaker_cooldown_ms": 60000)"), "float16",
          script(R"({"call": "get", "fault": "unreachable", "count": 1})"));
  rig.serve(1, counted(3 * T));
  rig.serve(2, counted(3 * T));
  kvb_stats stats = rig.worker.stats();
  EXPECT_EQ(stats.pool_failures, 1u);
  EXPECT_EQ(stats.quarantined_calls, 1u);
  EXPECT_EQ(stats.breaker_openings, 1u);
  EXPECT_EQ(stats.breaker_state, KVB_BREAKER_OPEN);
  /* Nothing is asked from here on, and the engine computes. */
  auto refused = stats.breaker_refusals;
  rig.serve(3, counted(3 * T));
  EXPECT_GT(rig.worker.stats().breaker_refusals, refused);
  EXPECT_EQ(rig.worker.stats().loaded_pages, 0u);
}

}  // namespace
