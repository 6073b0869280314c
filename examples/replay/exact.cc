#include <chrono>
#include <memory>
#include <thread>

#include "../engine/engine.h"
#include "ledger.h"
#include "runs.h"

namespace replay {
namespace {

using miniature::Engine;
using miniature::EngineOptions;
using miniature::Outcome;
using miniature::Phase;
using miniature::PhaseTimer;

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
  if (result->counters.touched_pages > 0) fail("somebody wrote into free pages");
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
  if (const std::string missing = ledger.Missing(pool, engine); !missing.empty()) fail(missing);
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
      miniature::RequestSpec request = BaseRequest(trace, i);
      request.explain = i + 1 == options.explain;
      const Outcome outcome = RunAlone(engine, std::move(request), &result.phases);
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
