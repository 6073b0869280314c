#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "../engine/engine.h"
#include "ledger.h"
#include "runs.h"

namespace replay {
namespace {

using miniature::Cancel;
using miniature::Engine;
using miniature::EngineOptions;
using miniature::GroupSpec;
using miniature::Outcome;
using miniature::PoolSpec;
using miniature::RequestSpec;

// Group 0: KV and a replicated index pool. Group 1: a window. Group 2: MLA-like, layer-first.
std::vector<GroupSpec> Groups(const Options& options) {
  PoolSpec index;
  index.layers = 2;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  PoolSpec latent;
  latent.layers = 4;
  latent.kv_factor = 1;
  latent.layer_first = true;
  std::vector<GroupSpec> groups = {
      GroupSpec{0, 0, {PoolSpec{}, index}},
      GroupSpec{1, std::max(options.block * 5 / 2, 1024u), {PoolSpec{}}},
      GroupSpec{2, 0, {latent}}};
  groups.resize(options.groups);
  return groups;
}

EngineOptions WithPool(const Options& options, const Trace& trace, uint32_t index) {
  EngineOptions engine = BaseEngine(options, trace, index, 2);
  engine.groups = Groups(options);
  engine.token_budget = 4096;
  engine.max_running = 8;
  engine.local_reuse = true;
  engine.max_drafts = engine.context_only ? 0 : 3;
  engine.abandon_passes = true;
  engine.overlap = true;
  engine.haggle = true;
  if (options.async_load) engine.fences = miniature::Fences::kKept;
  return engine;
}

EngineOptions WithoutPool(const Options& options, const Trace& trace, uint32_t index) {
  EngineOptions engine = BaseEngine(options, trace, index, 1);
  engine.groups = Groups(options);
  engine.config_json.reset();
  return engine;
}

// Some requests have scopes, some are cancelled; which ones is a matter of their number alone.
RequestSpec MakeRequest(const Trace& trace, size_t index) {
  RequestSpec request = BaseRequest(trace, index);
  const uint64_t luck = miniature::Scramble(index);
  if (luck % 5 == 0) request.cache_salt = luck % 2 == 0 ? "tenant-a" : "tenant-b";
  if (luck % 7 == 0) request.lora = "adapter";
  if (luck % 11 == 0) {
    request.has_media = true;
    if (luck % 3 != 0) request.media_digests.resize(1 + luck % 2);
    for (auto& digest : request.media_digests) digest.fill(static_cast<uint8_t>(luck % 4));
  }
  switch (luck % 37) {
    case 1:
      request.cancel = Cancel::kBeforeAllocation;
      break;
    case 2:
      request.cancel = Cancel::kInPrefill;
      break;
    case 3:
      request.cancel = Cancel::kAfterOutputs;
      request.cancel_after = 1 + static_cast<uint32_t>(luck / 37 % 8);
      break;
    case 4:
      request.cancel = Cancel::kWhileLoading;
      break;
    default:
      break;
  }
  return request;
}

struct Shared {
  std::vector<std::vector<int32_t>> outputs;  // per request; each is written by one thread
  std::atomic<size_t> done{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards the rest
  std::exception_ptr error;
  Ledger* ledger = nullptr;  // none without a pool
};

// One engine's thread: every N-th request, a few of them queued ahead.
void Drive(Engine* engine, const Trace& trace, size_t first, size_t stride, Shared* shared) {
  size_t next = first;
  while (!shared->stop && (next < trace.size() || !engine->idle())) {
    for (; next < trace.size() && engine->waiting() < 4; next += stride) {
      engine->Submit(MakeRequest(trace, next));
    }
    const bool ran = engine->RunPass();
    for (const Outcome& outcome : engine->TakeOutcomes()) {
      shared->outputs[outcome.spec.id - 1] = outcome.outputs;
      ++shared->done;
      if (shared->ledger == nullptr) continue;
      const std::lock_guard<std::mutex> lock(shared->mutex);
      shared->ledger->Add(outcome);
    }
    if (!ran) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Runs all engines, each on a thread of its own. Returns the seconds it took.
double RunAll(const std::string& what, const std::vector<std::unique_ptr<Engine>>& engines,
              const Trace& trace, Shared* shared) {
  shared->outputs.resize(trace.size());
  const auto start = std::chrono::steady_clock::now();
  std::atomic<size_t> ended{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < engines.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        Drive(engines[i].get(), trace, i, engines.size(), shared);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(shared->mutex);
        if (!shared->error) shared->error = std::current_exception();
        shared->stop = true;
      }
      ++ended;
    });
  }
  {
    Progress progress(what, trace.size());
    while (ended < threads.size()) {
      progress.Show(shared->done, "");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    progress.Show(shared->done, "");
  }
  for (std::thread& thread : threads) thread.join();
  if (shared->error) std::rethrow_exception(shared->error);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::unique_ptr<Engine>> MakeEngines(
    const Options& options, const std::function<EngineOptions(uint32_t)>& shape) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (uint32_t i = 0; i < options.engines; ++i) {
    engines.push_back(std::make_unique<Engine>(shape(i)));
  }
  return engines;
}

}  // namespace

Result RunConcurrent(const Options& options, const Trace& trace) {
  Result result;
  Shared with_pool;
  Ledger ledger(options);
  with_pool.ledger = &ledger;
  {
    const auto shape = [&](uint32_t i) { return WithPool(options, trace, i); };
    const PoolView pool(options, shape(0));
    const auto engines = MakeEngines(options, shape);
    result.seconds = RunAll("concurrent replay", engines, trace, &with_pool);
    for (const auto& engine : engines) {
      result.counters.Add(engine->counters());
      result.Add(engine->Stats());
      for (size_t p = 0; p < miniature::kPhaseCount; ++p) result.phases[p] += engine->phases()[p];
    }
    const auto stats = pool.Stats();
    if (stats) {
      result.evicted_objects = stats->evicted_objects;
      result.refused_puts = stats->refused_puts;
    }
    result.saved_blocks = ledger.blocks();
    if (stats && result.evicted_objects + result.refused_puts == 0) {
      const std::string missing = ledger.Missing(pool, engines.front()->options());
      if (!missing.empty()) result.failures.push_back(missing);
    }
    for (const auto& engine : engines) engine->Shutdown();
  }
  Shared without_pool;
  {
    const auto engines =
        MakeEngines(options, [&](uint32_t i) { return WithoutPool(options, trace, i); });
    result.seconds_without_pool = RunAll("without a pool", engines, trace, &without_pool);
  }
  uint64_t wrong = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (with_pool.outputs[i] != without_pool.outputs[i]) ++wrong;
  }
  result.wrong_outputs = wrong;
  if (wrong > 0) {
    result.failures.push_back(std::to_string(wrong) + " requests had another output than without");
  }
  if (result.counters.wrong_pages > 0) {
    result.failures.push_back("pages loaded from the pool were wrong");
  }
  if (result.counters.touched_pages > 0) {
    result.failures.push_back("somebody wrote into free pages");
  }
  return result;
}

}  // namespace replay
