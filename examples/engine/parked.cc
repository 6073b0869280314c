// Requests that wait outside the batch for an asynchronous load: they have their pages, and no pass
// describes them until every rank has reported the load.
#include <algorithm>
#include <stdexcept>

#include "engine.h"

namespace miniature {

void Engine::Park(Live* request) {
  request->announced = false;
  request->loading_ranks = caches_.size();
  ++counters_.parked;
  if (request->restore == 0) ++counters_.parked_for_nothing;
}

// Some are cancelled or preempted while they wait: in the pass that brings their load, before it is
// announced, or in a later one. What the load still writes is nobody's then, and their pages come
// back with the handshake of `finished`.
void Engine::LeaveParked() {
  for (Live* request : parked_) {
    const uint64_t id = request->spec.id;
    if (request->ending || !(request->announced || Coin(10, id, request->sequence, 2))) continue;
    if (request->spec.cancel == Cancel::kWhileLoading) {
      End(request, KVB_FINISH_CANCELLED);
    } else if (options_.haggle && Coin(11, id, request->sequence, 6)) {
      ++counters_.preemptions;
      End(request, KVB_FINISH_PREEMPTED);
    } else {
      continue;
    }
    ++counters_.left_parked;
  }
}

// The ids that get_finished has not heard yet. It wants them once, on every rank.
std::vector<uint64_t> Engine::AnnounceParked() {
  std::vector<uint64_t> ids;
  for (Live* request : parked_) {
    if (!request->announced) ids.push_back(request->spec.id);
    request->announced = true;
  }
  return ids;
}

// Loads that ended, and those of them that lost a page, both once per rank. A request whose load
// all ranks reported runs from the next pass on; what came is checked before anything is computed
// on it.
void Engine::Resume(const std::vector<uint64_t>& loaded, const std::vector<uint64_t>& failed) {
  const auto is_in = [](const std::vector<uint64_t>& ids, uint64_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  for (const uint64_t id : failed) {
    if (!is_in(loaded, id)) throw std::runtime_error("a load failed that was not reported");
  }
  for (const uint64_t id : loaded) {
    const auto found = std::find_if(parked_.begin(), parked_.end(),
                                    [id](const Live* request) { return request->spec.id == id; });
    if (found == parked_.end()) {
      throw std::runtime_error("a load was reported that was not announced, or twice");
    }
    Live* request = *found;
    if (--request->loading_ranks > 0) continue;
    parked_.erase(found);
    if (is_in(failed, id)) {
      // Its life is over with the report: there is nothing to wait for, it is only reset.
      ++counters_.failed_loads;
      ReleasePages(request);
      released_.push_back(request);
      continue;
    }
    WaitForCopies();
    CheckLoadedPages(request, request->computed, request->computed + request->restore);
    counters_.hit_blocks += request->restore / options_.tokens_per_block;
    request->computed += request->restore;
    request->restore = 0;
    running_.push_back(request);
  }
}

}  // namespace miniature
