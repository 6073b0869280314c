// Rows 1 to 4 of a pass: who runs, on which pages, with how many tokens, and how the library is
// told.
#include <algorithm>
#include <stdexcept>

#include "engine.h"

namespace miniature {
namespace {

uint64_t BlocksFor(uint64_t tokens, uint64_t tokens_per_block) {
  return (tokens + tokens_per_block - 1) / tokens_per_block;
}

}  // namespace

// The first block that attention from `position` still reads.
uint64_t Engine::FirstNeededBlock(size_t group, uint64_t position) const {
  const uint64_t window = options_.groups[group].window;
  if (window == 0 || position + 1 <= window) return 0;
  return (position + 1 - window) / options_.tokens_per_block;
}

void Engine::GrowRunning() {
  PhaseTimer timer(&phases_, Phase::kAllocate);
  const uint64_t T = options_.tokens_per_block;
  batch_.clear();
  stalled_ = false;
  for (Live* request : running_) {
    if (request->ending) continue;
    const uint64_t first = request->computed + request->restore;
    const uint64_t total = request->tokens.size();
    // A request decodes once it has sampled a token in this allocation.
    const bool decoding = total > request->matched;
    uint64_t count = std::min<uint64_t>(total - first, options_.token_budget);
    uint64_t drafts = 0;
    if (decoding && !request->extra_pass && options_.max_drafts > 0) {
      drafts = Scramble(request->spec.id ^ (total << 20)) % (options_.max_drafts + 1);
    }
    GrowTables(request, BlocksFor(first + count + drafts, T));
    const uint64_t capacity = request->tables.front().pages.size() * T;
    if (capacity <= first) {
      stalled_ = true;
      PreemptYoungest();
      continue;
    }
    count = std::min(count, capacity - first);
    drafts = std::min(drafts, capacity - first - count);
    batch_.push_back(Scheduled{request, first, count, drafts, decoding, {}});
  }
}

void Engine::GrowTables(Live* request, uint64_t blocks) {
  while (request->tables.front().pages.size() < blocks) {
    for (const PagePool& pool : pages_) {
      if (pool.available() == 0) return;
    }
    for (size_t g = 0; g < pages_.size(); ++g) {
      const int32_t page = pages_[g].Allocate();
      PreparePage(g, page);
      request->tables[g].pages.push_back(page);
    }
  }
}

// What unwritten pages look like: publishing one is seen by whoever loads it. Nobody may have
// written into a page that was free.
void Engine::PreparePage(size_t group, int32_t page) {
  const bool poisoned = poisoned_[group][static_cast<size_t>(page)];
  poisoned_[group][static_cast<size_t>(page)] = false;
  for (const auto& cache : caches_) {
    if (poisoned && cache->HoldsGarbage(group, page)) continue;
    if (poisoned) ++counters_.touched_pages;
    if (!copies_) cache->FillGarbage(group, page);
  }
  if (copies_) copies_->Add(group, page);
}

// Nothing may write into a page that is given back, also not a load that nobody waits for.
void Engine::FreePage(size_t group, int32_t page) {
  WaitForCopies();
  if (!pages_[group].Release(page)) return;
  for (const auto& cache : caches_) cache->FillGarbage(group, page);
  poisoned_[group][static_cast<size_t>(page)] = true;
}

void Engine::WaitForCopies() {
  if (copies_) copies_->Wait();
}

// The victim's pages become free after the handshake, some passes later.
void Engine::PreemptYoungest() {
  if (!ending_.empty() || !closing_.empty()) return;  // pages are on their way
  if (running_.size() + parked_.size() == 1) {
    throw std::runtime_error("a request needs more pages than there are");
  }
  Live* youngest = running_.back();
  for (const auto* list : {&running_, &parked_}) {
    for (Live* request : *list) {
      if (request->sequence > youngest->sequence) youngest = request;
    }
  }
  ++counters_.preemptions;
  End(youngest, KVB_FINISH_PREEMPTED);
  batch_.erase(std::remove_if(batch_.begin(), batch_.end(),
                              [&](const Scheduled& part) { return part.request == youngest; }),
               batch_.end());
}

void Engine::AdmitWaiting() {
  if (stalled_ || asleep_) return;
  while (!waiting_.empty() && running_.size() + parked_.size() < options_.max_running) {
    Live* request = waiting_.front();
    if (request->spec.cancel == Cancel::kBeforeAllocation) {
      AskPool(request, LocalMatch(*request));
      waiting_.pop_front();
      End(request, KVB_FINISH_CANCELLED);
      continue;
    }
    if (!TryAdmit(request)) break;
    waiting_.pop_front();
    if (request->loading_ranks > 0) {
      parked_.push_back(request);
    } else {
      JoinBatch(request);
    }
  }
}

void Engine::JoinBatch(Live* request) {
  running_.push_back(request);
  const uint64_t first = request->computed + request->restore;
  const uint64_t capacity =
      request->tables.front().pages.size() * uint64_t{options_.tokens_per_block};
  const uint64_t count =
      std::min<uint64_t>(std::min(request->tokens.size(), capacity) - first, options_.token_budget);
  batch_.push_back(Scheduled{request, first, count, 0, false, {}});
}

bool Engine::TryAdmit(Live* request) {
  const uint64_t T = options_.tokens_per_block;
  const uint64_t local = LocalMatch(*request);

  // 1. What does the pool have beyond the local match? If the pages do not suffice, this was an
  // admission query: it is asked again later.
  AskPool(request, local);
  const uint64_t honoured = ChooseHonoured(*request, local);

  // 2. Pages: for the whole prompt, or as far as the first chunk needs. Every honoured block needs
  // a page in every group, also where a window has passed it already.
  const uint64_t total = request->tokens.size();
  const bool whole = !options_.haggle || Coin(1, request->spec.id, 0, 2);
  const uint64_t target =
      whole ? total : std::min<uint64_t>(total, local + honoured + options_.token_budget);
  {
    PhaseTimer timer(&phases_, Phase::kAllocate);
    if (!AllocatePages(request, local / T, BlocksFor(target, T))) {
      if (running_.empty() && parked_.empty() && closing_.empty() && ending_.empty()) {
        throw std::runtime_error("a request needs more pages than there are");
      }
      return false;
    }
  }
  SettleOffer(request, local, honoured);
  request->sequence = next_sequence_++;
  request->computed = local;
  request->restore = honoured;
  request->loaded_from = local;
  request->loaded_to = local + honoured;
  request->registered_blocks = local / T;
  counters_.local_hit_blocks += local / T;
  // A request that was made an asynchronous offer waits, however little of it is honoured or left.
  if (request->offer_is_async) Park(request);
  return true;
}

// Tokens of the longest prefix that this engine still has. At least one token stays to compute.
uint64_t Engine::LocalMatch(const Live& request) const {
  if (!options_.local_reuse) return 0;
  const uint64_t T = options_.tokens_per_block;
  const uint64_t limit = std::min((request.tokens.size() - 1) / T, IdentifiedBlocks(request));
  uint64_t blocks = 0;
  const auto present = [&](size_t group, uint64_t block) {
    return pages_[group].Find(BlockIdentity(request, block)) >= 0;
  };
  const auto in_full_groups = [&](uint64_t block) {
    for (size_t g = 0; g < pages_.size(); ++g) {
      if (options_.groups[g].window == 0 && !present(g, block)) return false;
    }
    return true;
  };
  const auto windows_filled = [&](uint64_t end) {
    for (size_t g = 0; g < pages_.size(); ++g) {
      if (options_.groups[g].window == 0) continue;
      for (uint64_t b = FirstNeededBlock(g, end * T); b < end; ++b) {
        if (!present(g, b)) return false;
      }
    }
    return true;
  };
  while (blocks < limit && in_full_groups(blocks)) ++blocks;
  while (blocks > 0 && !windows_filled(blocks)) --blocks;
  return blocks * T;
}

void Engine::AskPool(Live* request, uint64_t local) {
  PhaseTimer timer(&phases_, Phase::kMatch);
  // An earlier answer may be kept when the local match has grown into it since.
  if (options_.haggle && request->has_offer && local >= request->offer_from &&
      Coin(2, request->spec.id, 0, 2)) {
    return;
  }
  const kvb_request described = DescribeRequest(request->spec, request->tokens.data(),
                                                request->tokens.size(), options_.context_only);
  request->matched = request->tokens.size();
  request->offer_from = local;
  if (request->spec.explain) request->explanation += bridge_.Explain(described, local);
  const kvb::Scheduler::Offer offer = bridge_.Match(described, local);
  request->offer_to = local + offer.tokens;
  request->offer_is_async = offer.is_async;
  request->has_offer = true;
}

// How many tokens of the offer are taken, counted from the local match on. Its end never moves.
uint64_t Engine::ChooseHonoured(const Live& request, uint64_t local) const {
  if (local >= request.offer_to) return 0;
  if (options_.haggle && Coin(12, request.spec.id, request.sequence, 8)) return 0;
  const uint64_t T = options_.tokens_per_block;
  const uint64_t blocks = (request.offer_to - local) / T;
  if (options_.haggle && blocks >= 2 && Coin(3, request.spec.id, 0, 5)) return blocks / 2 * T;
  return blocks * T;
}

void Engine::SettleOffer(Live* request, uint64_t local, uint64_t honoured) {
  PhaseTimer timer(&phases_, Phase::kMatch);
  const uint64_t id = request->spec.id;
  const uint64_t from = request->offer_from;
  const uint64_t to = request->offer_to;
  if (local > from && to > from) {
    // The local match has grown meanwhile: the offer gives back its head, its end stays.
    bridge_.CancelLoad(id, from, std::min(local, to));
  }
  if (local + honoured < to && honoured > 0 && Coin(4, id, 0, 2)) {
    // A tail may be given back explicitly, or simply not be honoured.
    bridge_.CancelLoad(id, local + honoured, to);
  }
  const uint64_t served = local + honoured;
  counters_.given_back_blocks +=
      (to > served ? to - std::max(served, from) : 0) / options_.tokens_per_block;
  std::vector<kvb_group_pages> lists;
  DescribePages(*request, &lists);
  bridge_.Allocated(id, honoured, lists);
  request->has_offer = false;
}

bool Engine::AllocatePages(Live* request, uint64_t local_blocks, uint64_t blocks) {
  const uint64_t T = options_.tokens_per_block;
  request->tables.assign(pages_.size(), Table{});
  bool enough = true;
  for (size_t g = 0; g < pages_.size(); ++g) {
    Table& table = request->tables[g];
    table.left = std::min(local_blocks, FirstNeededBlock(g, local_blocks * T));
    table.pages.assign(table.left, -1);
    for (uint64_t b = table.left; b < local_blocks; ++b) {
      const int32_t page = pages_[g].Find(BlockIdentity(*request, b));
      pages_[g].Hold(page);
      table.pages.push_back(page);
    }
    enough = enough && pages_[g].available() >= blocks - local_blocks;
  }
  if (!enough) {
    ReleasePages(request);
    return false;
  }
  GrowTables(request, blocks);
  return true;
}

void Engine::TrimToBudget() {
  uint64_t left = options_.token_budget;
  for (const bool decoding : {true, false}) {
    for (Scheduled& part : batch_) {
      if (part.decoding != decoding) continue;
      part.count = std::min(part.count, left);
      left -= part.count;
      part.drafts = std::min(part.drafts, left);
      left -= part.drafts;
    }
  }
  batch_.erase(std::remove_if(batch_.begin(), batch_.end(),
                              [](const Scheduled& part) { return part.count == 0; }),
               batch_.end());
}

// Page lists that the scheduler half does not know yet.
void Engine::DescribePages(const Live& request, std::vector<kvb_group_pages>* out) const {
  out->clear();
  for (size_t g = 0; g < pages_.size(); ++g) {
    const Table& table = request.tables[g];
    const size_t first = table.replace ? 0 : table.reported;
    if (first == table.pages.size() && !table.replace) continue;
    kvb_group_pages list{};
    list.group_id = options_.groups[g].id;
    list.first_block = static_cast<uint32_t>(first);
    list.indices = table.pages.data() + first;
    list.count = table.pages.size() - first;
    list.replace = table.replace ? 1 : 0;
    out->push_back(list);
  }
}

const std::vector<kvb_step>& Engine::DescribePass() {
  steps_.clear();
  step_pages_.resize(std::max(step_pages_.size(), batch_.size()));
  for (size_t i = 0; i < batch_.size(); ++i) {
    const Scheduled& part = batch_[i];
    Live* request = part.request;
    DescribePages(*request, &step_pages_[i]);
    kvb_step step{};
    step.request_id = request->spec.id;
    step.new_tokens = kvb_tokens{request->tokens.data() + request->reported,
                                 request->tokens.size() - request->reported, KVB_TOKENS_INT32};
    step.pages = step_pages_[i].data();
    step.page_lists = step_pages_[i].size();
    step.computed_position = request->computed;  // without what this pass restores
    step.scheduled_tokens = part.count + part.drafts;
    steps_.push_back(step);
    request->reported = request->tokens.size();
    for (Table& table : request->tables) {
      table.reported = table.pages.size();
      table.replace = false;
    }
  }
  return steps_;
}

Engine::Abandon Engine::DecideAbandon() {
  if (!options_.abandon_passes || batch_.empty()) return Abandon::kNo;
  if (Coin(5, counters_.passes, 0, 11)) return Abandon::kAfterLoad;
  if (!Coin(6, counters_.passes, 0, 13)) return Abandon::kNo;
  // Loads that never start are lost: their requests are handed back. Under TP, where ranks cannot
  // restart alone, that is an error, and an engine must not do it.
  if (bridge_.PassHasLoads() && (options_.tp_size > 1 || !Coin(7, counters_.passes, 0, 3))) {
    return Abandon::kAfterLoad;
  }
  return Abandon::kBeforeLoad;
}

}  // namespace miniature
