// Rows 12 to 14 of a pass: requests end, pages come back.
#include <algorithm>
#include <stdexcept>

#include "engine.h"

namespace miniature {

void Engine::End(Live* request, int32_t reason) {
  request->ending = true;
  ending_.push_back(Ending{request, reason});
}

// Asks for each ended request whether its pages are pinned. The ids that are go to get_finished,
// once, on every rank.
std::vector<uint64_t> Engine::FinishEnded() {
  std::vector<uint64_t> announced;
  for (const Ending& ended : ending_) {
    Live* request = ended.request;
    for (auto* list : {&running_, &parked_}) {
      list->erase(std::remove(list->begin(), list->end(), request), list->end());
    }
    if (bridge_.Finished(request->spec.id, ended.reason)) {
      announced.push_back(request->spec.id);
      closing_.push_back(Closing{request, ended.reason, caches_.size()});
    } else {
      Conclude(request, ended.reason);
    }
  }
  ending_.clear();
  return announced;
}

void Engine::CloseReported(const std::vector<uint64_t>& saved) {
  for (const uint64_t id : saved) {
    const auto found = std::find_if(closing_.begin(), closing_.end(), [&](const Closing& closing) {
      return closing.request->spec.id == id;
    });
    if (found == closing_.end() || found->ranks_left == 0) {
      throw std::runtime_error("an id was reported that was not announced, or twice");
    }
    if (--found->ranks_left > 0) continue;
    const Closing closed = *found;
    closing_.erase(found);
    closed.request->saves_reported = true;
    Conclude(closed.request, closed.reason);
  }
}

// Last block first, so that the local cache forgets the tail of a chain before its head.
void Engine::ReleasePages(Live* request) {
  for (size_t g = 0; g < request->tables.size(); ++g) {
    Table& table = request->tables[g];
    for (auto page = table.pages.rbegin(); page != table.pages.rend(); ++page) {
      if (*page >= 0) FreePage(g, *page);
    }
    for (auto page = table.leaving.rbegin(); page != table.leaving.rend(); ++page) {
      FreePage(g, *page);
    }
  }
  request->tables.clear();
}

void Engine::Conclude(Live* request, int32_t reason) {
  ReleasePages(request);
  if (request->saves_reported) CollectSavedBlocks(request);
  if (reason == KVB_FINISH_PREEMPTED) {
    released_.push_back(request);
    return;
  }
  Outcome outcome;
  outcome.cancelled = reason == KVB_FINISH_CANCELLED;
  if (outcome.cancelled) ++counters_.cancelled;
  const auto prompt = static_cast<ptrdiff_t>(request->spec.prompt.size());
  outcome.outputs.assign(request->tokens.begin() + prompt, request->tokens.end());
  outcome.saved_blocks = std::move(request->saved_blocks);
  outcome.explanation = std::move(request->explanation);
  outcome.spec = std::move(request->spec);
  outcomes_.push_back(std::move(outcome));
  requests_.erase(outcomes_.back().spec.id);
}

void Engine::CollectSavedBlocks(Live* request) {
  const uint64_t T = options_.tokens_per_block;
  const uint64_t end = std::min({request->computed / T, IdentifiedBlocks(*request),
                                 uint64_t{request->spec.prompt.size()} / T});
  for (uint64_t b = request->loaded_to / T; b < end; ++b) {
    request->saved_blocks.push_back({static_cast<uint32_t>(b), BlockIdentity(*request, b)});
  }
}

// The request runs again from the start, its outputs so far being part of its prompt. Its id comes
// again; for the library it is a new generation.
void Engine::ResetReleased() {
  for (Live* request : released_) {
    bridge_.Reset(request->spec.id);
    request->computed = request->restore = request->reported = 0;
    request->registered_blocks = request->loaded_from = request->loaded_to = 0;
    request->has_offer = request->ending = request->saves_reported = false;
    request->announced = false;
    request->loading_ranks = 0;
    waiting_.push_front(request);
  }
  released_.clear();
}

}  // namespace miniature
