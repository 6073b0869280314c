#include <chrono>
#include <memory>

#include "engine_process.h"
#include "ledger.h"
#include "peer.h"
#include "runs.h"

namespace replay {
namespace {

using miniature::EngineOptions;
using miniature::Outcome;
using miniature::Phase;
using miniature::PhaseTimer;

void Judge(const Options& options, const PoolView& pool, const Ledger& ledger,
           const EngineOptions& shape, const Trace& trace, Result* result) {
  const auto fail = [&](const std::string& why) { result->failures.push_back(why); };
  if (result->counters.wrong_pages > 0) fail("pages loaded from the pool were wrong");
  if (result->counters.touched_pages > 0) fail("somebody wrote into free pages");
  const std::optional<kvb_pool_stats> stats = pool.Stats();
  if (stats) {
    result->evicted_objects = stats->evicted_objects;
    result->refused_puts = stats->refused_puts;
  }
  // A pool that lost or refused something has no exact figures. One that does not say is taken to
  // be large enough: the keys are of this run alone.
  if (result->evicted_objects + result->refused_puts > 0) return;
  result->expected = IdealReuse(trace, options.block, options.lookahead);
  if (result->counters.hit_blocks != result->expected->hit_blocks) {
    fail("hit blocks are not what an ideal pool serves");
  }
  if (result->saved_blocks != result->expected->saved_blocks) {
    fail("saved blocks are not the distinct prompt blocks");
  }
  if (result->counters.failed_loads > 0) fail("loads failed though nothing was evicted");
  if (const std::string missing = ledger.Missing(pool, shape); !missing.empty()) fail(missing);
}

}  // namespace

Result RunExact(const Options& options, const Trace& trace) {
  const auto shape = [&](uint32_t index) {
    EngineOptions engine = BaseEngine(options, trace, index, 1);
    for (uint32_t g = 1; g < options.groups; ++g) {
      engine.groups.push_back(miniature::GroupSpec{g, 0, {miniature::PoolSpec{}}});
    }
    return engine;
  };
  std::vector<std::unique_ptr<Runner>> engines;
  // Processes that are only forked come before a pool is open in this one, and the pool of this
  // process before its engines.
  const auto make = options.processes ? RunApart : RunHere;
  std::unique_ptr<PoolView> pool;
  const bool apart = options.processes || !options.peer.empty();
  if (!apart) pool = std::make_unique<PoolView>(options, shape(0));
  for (uint32_t i = 0; i < options.engines; ++i) {
    const bool other = i == 1 && !options.peer.empty();
    engines.push_back((other ? RunPeer : make)(options, trace, shape(i)));
  }
  if (apart) pool = std::make_unique<PoolView>(options, shape(0));

  Result result;
  Ledger ledger(options);
  const auto start = std::chrono::steady_clock::now();
  {
    Progress progress("exact replay", trace.size());
    for (size_t i = 0; i < trace.size(); ++i) {
      const Outcome outcome = engines[i % engines.size()]->Run(i);
      result.explanation += outcome.explanation;
      {
        PhaseTimer timer(&result.phases, Phase::kCheck);
        ledger.Add(outcome);
      }
      progress.Show(i + 1, ", " + std::to_string(ledger.blocks()) + " blocks saved");
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.saved_blocks = ledger.blocks();
  for (const auto& engine : engines) engine->Count(&result);
  Judge(options, *pool, ledger, shape(0), trace, &result);
  for (const auto& engine : engines) engine->Shutdown();
  return result;
}

}  // namespace replay
