#include "engine.h"

#include <stdexcept>
#include <thread>
#include <utility>

namespace miniature {

void Counters::Add(const Counters& other) {
  requests += other.requests;
  prompt_tokens += other.prompt_tokens;
  output_tokens += other.output_tokens;
  passes += other.passes;
  abandoned_passes += other.abandoned_passes;
  preemptions += other.preemptions;
  cancelled += other.cancelled;
  local_hit_blocks += other.local_hit_blocks;
  hit_blocks += other.hit_blocks;
  compared_pages += other.compared_pages;
  wrong_pages += other.wrong_pages;
  failed_loads += other.failed_loads;
  touched_pages += other.touched_pages;
  parked += other.parked;
  parked_for_nothing += other.parked_for_nothing;
  left_parked += other.left_parked;
  drafts += other.drafts;
  rejected_drafts += other.rejected_drafts;
  given_back_blocks += other.given_back_blocks;
  detached_pages += other.detached_pages;
}

namespace {

std::vector<std::unique_ptr<CacheMemory>> MakeCaches(const EngineOptions& options) {
  if (options.groups.empty() || options.groups.front().window != 0) {
    throw std::invalid_argument("group 0 must have full attention");
  }
  if (options.tokens_per_block == 0 || options.tp_size == 0 || options.max_running == 0 ||
      options.token_budget == 0) {
    throw std::invalid_argument("block, ranks, running requests and budget must be positive");
  }
  if ((options.lookahead > 0 || options.adp_owners > 0) && !options.context_only) {
    throw std::invalid_argument("a prompt lookahead and attention DP need a context server");
  }
  if (options.adp_owners > 0 && options.tp_size != 1) {
    throw std::invalid_argument("an attention DP owner is one rank");
  }
  if (options.rank_processes && options.fences != Fences::kNone) {
    throw std::invalid_argument("ranks in processes of their own have no fences");
  }
  if (options.rank_processes && options.device) {
    throw std::invalid_argument("a device is one process' alone");
  }
  if (options.device) options.device->MakeCurrent();
  std::vector<std::unique_ptr<CacheMemory>> caches;
  for (uint32_t rank = 0; rank < options.tp_size; ++rank) {
    caches.push_back(std::make_unique<CacheMemory>(options.groups, options.blocks,
                                                   options.tokens_per_block, options.device));
  }
  return caches;
}

std::unique_ptr<PageCopies> MakeCopies(const EngineOptions& options,
                                       const std::vector<std::unique_ptr<CacheMemory>>* caches) {
  if (options.fences == Fences::kNone) return nullptr;
  return std::make_unique<PageCopies>(options.fences, caches);
}

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      caches_(MakeCaches(options_)),
      copies_(MakeCopies(options_, &caches_)),
      bridge_(options_, caches_) {
  for (uint32_t rank = 0; rank < options_.tp_size; ++rank) {
    models_.emplace_back(options_.model_seed, options_.groups, options_.tokens_per_block, rank);
  }
  pages_.assign(options_.groups.size(), PagePool(options_.blocks));
  poisoned_.assign(options_.groups.size(), std::vector<bool>(options_.blocks));
}

Engine::~Engine() = default;

void Engine::Submit(RequestSpec spec) {
  if (spec.prompt.empty()) throw std::invalid_argument("a prompt has at least one token");
  if (options_.context_only) spec.max_outputs = 1;
  const uint64_t id = spec.id;
  if (requests_.count(id) > 0) {
    throw std::invalid_argument("request ids are unique among live requests");
  }
  ++counters_.requests;
  counters_.prompt_tokens += spec.prompt.size();
  auto live = std::make_unique<Live>();
  live->tokens = spec.prompt;
  live->spec = std::move(spec);
  ExtendStates(live.get());
  waiting_.push_back(live.get());
  requests_.emplace(id, std::move(live));
}

// The whole contract, in order. Between two calls of an engine's loop nothing else talks to the
// library; a scheduler without a batch runs empty passes, so that saves and loads are still
// reported.
bool Engine::RunPass() {
  Device* device = options_.device.get();
  void* stream = device ? device->stream() : nullptr;  // host memory: no streams
  ++counters_.passes;

  // Requests that already run need pages for their next tokens. New ones ask the pool (match),
  // get their pages and say what they took of the offer (allocated). Those whose offer was
  // asynchronous wait outside the batch for their pages; some are not wanted any more meanwhile.
  GrowRunning();
  AdmitWaiting();
  LeaveParked();

  // Only now is it known how much fits into the pass: chunks shrink, the pages stay.
  TrimToBudget();

  // The pass, as it stands after the trim. Build makes its metadata; every rank binds the same,
  // with a fence where the engine itself still writes into new pages. Asynchronous loads begin
  // here.
  {
    PhaseTimer timer(&phases_, Phase::kBuild);
    bridge_.Build(DescribePass());
  }
  const Abandon abandon = DecideAbandon();
  {
    PhaseTimer timer(&phases_, Phase::kBuild);
    if (options_.before_bind) options_.before_bind();
    const kvb_fence fence = copies_ ? copies_->Fence() : kvb_fence{};
    bridge_.Bind(&fence);
  }
  // What the batch computes or restores is not ordered behind that fence, only asynchronous loads.
  if (!batch_.empty()) WaitForCopies();

  // Restored pages have landed when start_load returns.
  if (abandon != Abandon::kBeforeLoad) {
    PhaseTimer timer(&phases_, Phase::kLoad);
    bridge_.StartLoad(stream);
  }

  // A prepared pass may not run after all (or there was nothing to run). Then there is no forward
  // pass and no wait_for_save, and the same work is described again in the next pass.
  const bool runs = !batch_.empty() && abandon == Abandon::kNo;
  if (runs) {
    {
      PhaseTimer timer(&phases_, Phase::kForward);
      if (device) {
        device->Launch([this] { Forward(); });
      } else {
        Forward();
      }
    }
    {
      PhaseTimer timer(&phases_, Phase::kSaveWait);
      try {
        bridge_.WaitForSave(stream);
      } catch (...) {
        // The pass goes on all the same, on requests and memory of this engine.
        if (device) device->Synchronize();
        throw;
      }
    }
    // What the pass sampled is looked at next.
    if (device) device->Synchronize();
  } else if (!batch_.empty()) {
    ++counters_.abandoned_passes;
  }

  // Requests that lost pages were computed on garbage: their results of this pass do not count,
  // and they start again. This comes before any result becomes visible.
  const std::vector<uint64_t> failed = bridge_.TakeFailedLoads();
  if (!runs) batch_.clear();
  ApplyResults(failed);

  // Requests that ended, were cancelled or are preempted. Pinned pages stay until every rank has
  // reported the id.
  const std::vector<uint64_t> announced = FinishEnded();

  // In every pass, also in an empty one. Requests whose load every rank reported run from the next
  // pass on, but for those that lost a page.
  {
    PhaseTimer timer(&phases_, Phase::kGetFinished);
    const Reported reported = bridge_.GetFinished(announced, AnnounceParked());
    const std::vector<uint64_t> lost = bridge_.TakeFailedAsyncLoads();
    CloseReported(reported.saved);
    Resume(reported.loaded, lost);
  }

  // Allocations that were released to run again, now that nothing moves in their pages.
  ResetReleased();
  return runs;
}

void Engine::Sleep() {
  if (options_.rank_processes) throw std::logic_error("the memory of rank processes stays");
  asleep_ = true;
  for (const auto* list : {&running_, &parked_}) {
    for (Live* request : *list) {
      if (!request->ending) End(request, KVB_FINISH_PREEMPTED);
    }
  }
  // Under TP a load that is broken off on one rank is an error, so nothing may be on its way.
  while (!running_.empty() || !parked_.empty() || !closing_.empty()) {
    if (!RunPass()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  WaitForCopies();
  // Only when the library has let go of it may the memory be freed.
  bridge_.Unregister();
  caches_.clear();
}

void Engine::WakeUp() {
  caches_ = MakeCaches(options_);
  pages_.assign(options_.groups.size(), PagePool(options_.blocks));
  poisoned_.assign(options_.groups.size(), std::vector<bool>(options_.blocks));
  bridge_.Register();
  asleep_ = false;
}

std::vector<Outcome> Engine::TakeOutcomes() { return std::exchange(outcomes_, {}); }

bool Engine::Coin(uint64_t salt, uint64_t a, uint64_t b, uint64_t one_in) const {
  return Scramble(Scramble(Scramble(salt) ^ a) ^ b) % one_in == 0;
}

// Blocks whose identity is settled: whole, and with a lookahead only as far as the prompt knows it.
uint64_t Engine::IdentifiedBlocks(const Live& request) const {
  const uint64_t T = options_.tokens_per_block;
  if (options_.lookahead == 0) return request.tokens.size() / T;
  const uint64_t prompt = request.spec.prompt.size();
  return prompt < options_.lookahead ? 0 : (prompt - options_.lookahead) / T;
}

void Engine::ExtendStates(Live* request) {
  const size_t have = request->states.size();
  const size_t want = request->tokens.size();
  if (have == want) return;
  const TokenView view{request->tokens.data(), request->spec.prompt.size(), options_.lookahead};
  const uint64_t before =
      have == 0 ? ScopeState(options_.model_seed, request->spec) : request->states.back();
  request->states.resize(want);
  AdvanceStates(view, before, have, want, request->states.data() + have);
}

}  // namespace miniature
