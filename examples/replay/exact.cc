#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <unordered_set>

#include "../engine/engine.h"
#include "runs.h"

namespace replay {
namespace {

using miniature::Engine;
using miniature::EngineOptions;
using miniature::Outcome;
using miniature::Phase;
using miniature::PhaseTimer;

// Distinct prompt blocks whose saves were reported, by our own identity of a block, and the
// library's hashes of the same blocks, to ask the pool about them in the end.
class Ledger {
 public:
  Ledger(const Options& options) : options_(options) {}

  void Add(const Outcome& outcome) {
    if (!outcome.saves_reported) return;
    fresh_.clear();
    for (size_t b = 0; b < outcome.prompt_blocks.size(); ++b) {
      if (identities_.insert(outcome.prompt_blocks[b]).second) fresh_.push_back(b);
    }
    if (fresh_.empty()) return;
    const kvb_request request =
        miniature::DescribeRequest(outcome.spec, outcome.spec.prompt.data(),
                                   outcome.spec.prompt.size(), ContextOnly(options_));
    scratch_.resize(outcome.prompt_blocks.size() * kHashBytes);
    size_t needed = 0;
    miniature::Check(
        kvb_keys_hash_blocks(KVB_SCHEME_KVB1, &request, options_.block, options_.lookahead,
                             scratch_.data(), scratch_.size(), &needed),
        "hash_blocks");
    for (const size_t b : fresh_) {
      const auto from = scratch_.begin() + static_cast<ptrdiff_t>(b * kHashBytes);
      hashes_.insert(hashes_.end(), from, from + kHashBytes);
    }
  }

  uint64_t blocks() const { return identities_.size(); }

  // The keys of every page of every block.
  std::vector<std::string> Keys(const PoolView& pool, const Engine& engine) const {
    const EngineOptions& shape = engine.options();
    const auto layout = miniature::DescribeLayout(shape, engine.cache(0));
    const kvb_engine described = miniature::DescribeEngine(shape, 0);
    std::vector<std::string> keys;
    std::string buffer(513, '\0');
    const auto add = [&](uint32_t group, int32_t rank, const uint8_t* hash) {
      size_t needed = 0;
      miniature::Check(kvb_keys_page_key(pool.config(), &described, layout.get(), group, rank, hash,
                                         kHashBytes, buffer.data(), buffer.size(), &needed),
                       "page_key");
      keys.emplace_back(buffer.c_str());
    };
    for (size_t at = 0; at < hashes_.size(); at += kHashBytes) {
      for (const auto& group : shape.groups) {
        for (uint32_t rank = 0; rank < shape.tp_size; ++rank) {
          add(group.id, static_cast<int32_t>(rank), hashes_.data() + at);
        }
      }
    }
    return keys;
  }

 private:
  static constexpr size_t kHashBytes = 32;
  const Options& options_;
  std::unordered_set<uint64_t> identities_;
  std::vector<uint8_t> hashes_;
  std::vector<uint8_t> scratch_;
  std::vector<size_t> fresh_;
};

// One request, alone, until its saves are reported.
Outcome RunAlone(Engine* engine, miniature::RequestSpec request, miniature::PhaseSeconds* phases) {
  engine->Submit(std::move(request));
  while (true) {
    const bool ran = engine->RunPass();
    std::vector<Outcome> outcomes = engine->TakeOutcomes();
    if (!outcomes.empty()) return std::move(outcomes.front());
    if (!ran) {
      PhaseTimer timer(phases, Phase::kSaveWait);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

void Judge(const Options& options, const PoolView& pool, const Ledger& ledger, const Engine& engine,
           const Trace& trace, Result* result) {
  const auto fail = [&](const std::string& why) { result->failures.push_back(why); };
  if (result->counters.wrong_pages > 0) fail("pages loaded from the pool were wrong");
  const std::optional<kvb_pool_stats> stats = pool.Stats();
  if (stats) {
    result->evicted_objects = stats->evicted_objects;
    result->refused_puts = stats->refused_puts;
  }
  // A pool that lost or refused something, or that others fill too, has no exact figures.
  if (!stats || result->evicted_objects + result->refused_puts > 0) return;
  result->expected = IdealReuse(trace, options.block, options.lookahead);
  if (result->counters.hit_blocks != result->expected->hit_blocks) {
    fail("hit blocks are not what an ideal pool serves");
  }
  if (result->saved_blocks != result->expected->saved_blocks) {
    fail("saved blocks are not the distinct prompt blocks");
  }
  if (result->counters.failed_loads > 0) fail("loads failed though nothing was evicted");
  const std::vector<std::string> keys = ledger.Keys(pool, engine);
  const uint64_t stored = pool.CountStored(keys);
  if (stored != keys.size()) {
    fail("the pool holds " + std::to_string(stored) + " of " + std::to_string(keys.size()) +
         " pages that were reported as saved");
  }
}

}  // namespace

Result RunExact(const Options& options, const Trace& trace) {
  std::vector<std::unique_ptr<Engine>> engines;
  const auto shape = [&](uint32_t index) {
    EngineOptions engine = BaseEngine(options, trace, index, 1);
    for (uint32_t g = 1; g < options.groups; ++g) {
      engine.groups.push_back(miniature::GroupSpec{g, 0, {miniature::PoolSpec{}}});
    }
    return engine;
  };
  const PoolView pool(options, shape(0));
  for (uint32_t i = 0; i < options.engines; ++i) {
    engines.push_back(std::make_unique<Engine>(shape(i)));
  }

  Result result;
  Ledger ledger(options);
  const auto start = std::chrono::steady_clock::now();
  {
    Progress progress("exact replay", trace.size());
    for (size_t i = 0; i < trace.size(); ++i) {
      Engine* engine = engines[i % engines.size()].get();
      const Outcome outcome = RunAlone(engine, BaseRequest(trace, i), &result.phases);
      {
        PhaseTimer timer(&result.phases, Phase::kCheck);
        ledger.Add(outcome);
      }
      progress.Show(i + 1, ", " + std::to_string(ledger.blocks()) + " blocks saved");
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.saved_blocks = ledger.blocks();
  for (const auto& engine : engines) {
    result.counters.Add(engine->counters());
    result.Add(engine->Stats());
    for (size_t p = 0; p < miniature::kPhaseCount; ++p) result.phases[p] += engine->phases()[p];
  }
  Judge(options, pool, ledger, *engines.front(), trace, &result);
  for (const auto& engine : engines) engine->Shutdown();
  return result;
}

}  // namespace replay
