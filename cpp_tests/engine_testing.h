/* What tests with miniature engines share. */
#ifndef KVBRIDGE_CPP_TESTS_ENGINE_TESTING_H
#define KVBRIDGE_CPP_TESTS_ENGINE_TESTING_H

#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <thread>

#include "bridge.h"
#include "engine.h"
#include "testing.h"

namespace testing_engine {

using miniature::EngineOptions;
using miniature::GroupSpec;
using miniature::Outcome;
using miniature::PoolSpec;
using miniature::RequestSpec;

constexpr uint32_t kTokens = 16; /* per block */

/* Where the caches of a program's engines lie is said by engine_on_host.cc or engine_on_cuda.cc: it
   has the one or the other, and the same tests. */

/* Of the running test; none: the caches are memory of the host. */
std::shared_ptr<miniature::Device> device();
/* The engine's caches are where this program's are. */
void expect_in_place(const miniature::Engine& engine);
/* Direct mode, with a pool that can use such memory itself. Its name is `pool` where it has one,
   and `more` goes before the other fields. */
EngineOptions direct(const std::string& pool, const std::string& more = "");

class Engine : public miniature::Engine {
 public:
  explicit Engine(EngineOptions options) : miniature::Engine(std::move(options)) {
    expect_in_place(*this);
  }
};

/* A configuration on an embedded pool. `more` goes into its "kvbridge" object. The lease is as
   short as it can be, since tests remove objects. */
inline std::string pool_json(const std::string& pool, const std::string& more = "",
                             const std::string& size = "64MiB") {
  return R"({"namespace": "test", "model_key": "miniature", "staging_buffer_bytes": "64KiB",
             "global_segment_size": ")" +
         size + R"(", "kvbridge": {"pool": ")" + pool +
         R"(", "lookup_timeout_ms": 30000, "load_timeout_ms": 30000, "lease_ttl_ms": 0)" +
         (more.empty() ? "" : ", ") + more + "}}";
}

inline EngineOptions shape(const std::string& json) {
  EngineOptions options;
  options.config_json = json;
  options.device = device();
  options.tokens_per_block = kTokens;
  options.blocks = 128;
  return options;
}

/* Prompts of one `kind` share their common prefix; those of two kinds share nothing. */
inline std::vector<int32_t> prompt(size_t length, int32_t kind = 0) {
  std::vector<int32_t> tokens(length);
  std::iota(tokens.begin(), tokens.end(), kind * 100000);
  return tokens;
}

inline RequestSpec request(uint64_t id, std::vector<int32_t> tokens, uint32_t outputs = 1) {
  RequestSpec spec;
  spec.id = id;
  spec.prompt = std::move(tokens);
  spec.max_outputs = outputs;
  return spec;
}

using Outcomes = std::map<uint64_t, Outcome>;

inline void collect(miniature::Engine* engine, Outcomes* outcomes) {
  for (Outcome& outcome : engine->TakeOutcomes()) {
    const uint64_t id = outcome.spec.id;
    EXPECT_TRUE(outcomes->emplace(id, std::move(outcome)).second) << id << " ended twice";
  }
}

/* Runs what was submitted until it is over, all saves reported. */
inline void drain(miniature::Engine* engine, Outcomes* outcomes) {
  while (!engine->idle()) {
    if (!engine->RunPass()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    collect(engine, outcomes);
  }
}

inline Outcomes run(miniature::Engine* engine, const std::vector<RequestSpec>& requests) {
  for (const RequestSpec& spec : requests) engine->Submit(spec);
  Outcomes outcomes;
  drain(engine, &outcomes);
  return outcomes;
}

/* Runs one request; answers its output. */
inline std::vector<int32_t> run_one(Engine* engine, const RequestSpec& spec) {
  return run(engine, {spec}).at(spec.id).outputs;
}

/* The right outputs: of an engine of the same shape without a pool, one request at a time, always
   in memory of the host. */
inline Outcomes run_without_pool(EngineOptions options, const std::vector<RequestSpec>& requests) {
  options.config_json.reset();
  options.device = nullptr;
  options.max_running = 1;
  options.token_budget = 8192;
  options.max_drafts = 0;
  options.abandon_passes = options.overlap = options.haggle = options.local_reuse = false;
  options.fences = miniature::Fences::kNone;
  options.before_bind = nullptr;
  miniature::Engine engine(options);
  return run(&engine, requests);
}

inline void expect_same_outputs(const Outcomes& got, const Outcomes& right) {
  ASSERT_EQ(got.size(), right.size());
  for (const auto& [id, outcome] : right) {
    ASSERT_EQ(got.count(id), 1u) << id;
    EXPECT_EQ(got.at(id).cancelled, outcome.cancelled) << "request " << id;
    EXPECT_EQ(got.at(id).outputs, outcome.outputs) << "request " << id;
  }
}

/* A pool held open, with what tests do behind the engines' backs. */
struct Pool {
  Pool(const EngineOptions& of, const std::string& json)
      : options(of),
        config(kvb::Config::from_json(json)),
        described(miniature::DescribeEngine(of, 0)),
        store(kvb::Store::open(config, described)),
        cache(of.groups, of.blocks, of.tokens_per_block),
        layout(miniature::DescribeLayout(of, cache)) {}

  EngineOptions options;
  kvb::Config config;
  kvb_engine described;
  kvb::Store store;
  miniature::CacheMemory cache; /* never touched; for its shape */
  kvb::Layout layout;

  std::string key(const std::vector<int32_t>& tokens, size_t block, size_t group = 0,
                  int32_t rank = 0) const {
    auto hashes = kvb::hash_blocks(KVB_SCHEME_KVB1, kvb::request(0, kvb::tokens(tokens)),
                                   options.tokens_per_block, options.lookahead);
    return kvb::page_key(config, described, layout, options.groups[group].id, rank,
                         hashes.data() + 32 * block, 32);
  }
  bool has(const std::string& key) const {
    return store.exist({kvb::bytes(key)}).front() == KVB_PRESENT;
  }
  uint64_t objects() const { return store.stats().objects; }

  /* Whoever found it a moment ago has a lease on it: tries until that is over. */
  void remove(const std::string& key) const {
    int32_t outcome = KVB_REMOVE_LEASED;
    while (outcome == KVB_REMOVE_LEASED) outcome = store.remove({kvb::bytes(key)}).front();
    ASSERT_EQ(outcome, KVB_REMOVE_REMOVED);
  }
  std::string get(const std::string& key) const {
    std::string nothing(1, 0);
    auto asked = store.get_into({kvb::bytes(key)}, {kvb::piece(nothing.data(), 1)});
    std::string object(asked.sizes.front(), 0);
    auto got = store.get_into({kvb::bytes(key)}, {kvb::piece(object.data(), object.size())});
    EXPECT_EQ(got.outcomes.front(), KVB_GET_LANDED);
    return object;
  }
  void replace(const std::string& key, const std::string& object) const {
    remove(key);
    auto outcome = store.put({kvb::bytes(key)}, {kvb::piece(object.data(), object.size())});
    ASSERT_EQ(outcome.front(), KVB_PUT_STORED);
  }
  /* One bit of a stored page flips. */
  void corrupt(const std::string& key) const {
    std::string object = get(key);
    ASSERT_FALSE(object.empty());
    object[object.size() / 3] ^= 4;
    replace(key, object);
  }
};

/* Requests of a few conversations, so that later ones find what earlier ones left. */
inline std::vector<RequestSpec> conversations(size_t count, uint32_t outputs) {
  std::vector<RequestSpec> requests;
  for (size_t i = 0; i < count; ++i) {
    uint64_t luck = miniature::Scramble(i);
    requests.push_back(request(1 + i, prompt(20 + luck % 140, static_cast<int32_t>(i % 3)),
                               1 + static_cast<uint32_t>(luck >> 32) % outputs));
  }
  return requests;
}

inline void expect_intact(const Engine& engine) {
  EXPECT_EQ(engine.counters().wrong_pages, 0u);
  EXPECT_EQ(engine.counters().touched_pages, 0u);
  for (const auto& stats : engine.Stats()) EXPECT_EQ(stats.loads_in_flight, 0u);
}

/* Runs the requests on one engine of this shape, then on a second one, which finds everything:
   outputs are right, and pages too. Answers what each counted. */
struct Counted {
  miniature::Counters writer, reader;
};
inline Counted write_then_read(const EngineOptions& options, const std::vector<RequestSpec>& list) {
  const Outcomes right = run_without_pool(options, list);
  Engine writer(options), reader(options);
  for (Engine* engine : {&writer, &reader}) {
    expect_same_outputs(run(engine, list), right);
    expect_intact(*engine);
    EXPECT_EQ(engine->counters().failed_loads, 0u);
  }
  EXPECT_GT(reader.counters().hit_blocks, 0u);
  EXPECT_GT(reader.counters().compared_pages, 0u);
  return {writer.counters(), reader.counters()};
}

}  // namespace testing_engine

#endif
