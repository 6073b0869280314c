// Rows 9 to 11 of a pass: compute, then make the results count.
#include <algorithm>
#include <stdexcept>

#include "engine.h"

namespace miniature {

void Engine::Forward() {
  for (Scheduled& part : batch_) {
    Live& request = *part.request;
    ComputeRange(request, part.first, part.first + part.count);
    const uint64_t total = request.tokens.size();
    if (part.first + part.count < total) continue;
    int32_t next = Sample(request, total - 1);
    part.sampled.push_back(next);
    // Draft tokens are computed in the same pass. Which ones are right is a matter of chance here;
    // wrong ones leave KV in memory that belongs to no token of the request.
    bool accepting = true;
    for (uint64_t i = 0; i < part.drafts; ++i) {
      const bool right = accepting && !Coin(8, request.spec.id, total + i, 3);
      request.tokens.push_back(right ? next : static_cast<int32_t>(i));
      ComputeRange(request, total + i, total + i + 1);
      ++counters_.drafts;
      accepting = right;
      if (accepting) {
        next = Sample(request, total + i);
        part.sampled.push_back(next);
      } else {
        ++counters_.rejected_drafts;
      }
    }
    request.tokens.resize(total);
  }
}

// KV of positions [from, to) on every rank. Block by block, the state before is read from the
// cache, as attention would: whether it was computed there or loaded.
void Engine::ComputeRange(const Live& request, uint64_t from, uint64_t to) {
  const uint64_t T = options_.tokens_per_block;
  const TokenView view{request.tokens.data(), request.spec.prompt.size(), options_.lookahead};
  scratch_states_.resize(T);
  for (size_t rank = 0; rank < caches_.size(); ++rank) {
    for (uint64_t p = from; p < to;) {
      const uint64_t end = std::min(to, (p / T + 1) * T);
      const uint64_t before =
          p == 0 ? ScopeState(options_.model_seed, request.spec)
                 : models_[rank].Read(*caches_[rank], 0, request.tables[0].pages[(p - 1) / T],
                                      static_cast<uint32_t>((p - 1) % T));
      AdvanceStates(view, before, p, end, scratch_states_.data());
      for (size_t g = 0; g < pages_.size(); ++g) {
        const int32_t page = request.tables[g].pages.at(p / T);
        if (page < 0) throw std::logic_error("a token was computed without a page");
        models_[rank].Write(caches_[rank].get(), g, page, static_cast<uint32_t>(p % T),
                            scratch_states_.data(), static_cast<uint32_t>(end - p));
      }
      p = end;
    }
  }
}

// The token after `position`: a function of what attention reads on all ranks, one token of every
// block in every group's window.
int32_t Engine::Sample(const Live& request, uint64_t position) const {
  const uint64_t T = options_.tokens_per_block;
  uint64_t digest = options_.model_seed;
  for (size_t rank = 0; rank < caches_.size(); ++rank) {
    for (size_t g = 0; g < pages_.size(); ++g) {
      for (uint64_t b = FirstNeededBlock(g, position); b <= position / T; ++b) {
        const auto slot = static_cast<uint32_t>(std::min((b + 1) * T - 1, position) % T);
        digest =
            models_[rank].Digest(*caches_[rank], g, request.tables[g].pages.at(b), slot, digest);
      }
    }
  }
  return SampledToken(digest);
}

void Engine::ApplyResults(const std::vector<uint64_t>& failed) {
  for (const uint64_t id : failed) {
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second->ending || found->second->tables.empty()) {
      continue;  // gone already, or named twice
    }
    ++counters_.failed_loads;
    End(found->second.get(), KVB_FINISH_PREEMPTED);
  }
  for (Scheduled& part : batch_) {
    if (!part.request->ending) Apply(&part);
  }
}

void Engine::Apply(Scheduled* part) {
  Live* request = part->request;
  if (request->restore > 0) {
    CheckLoadedPages(request, request->computed, request->computed + request->restore);
    counters_.hit_blocks += request->restore / options_.tokens_per_block;
    request->restore = 0;
  }
  request->computed = part->first + part->count;
  if (request->extra_pass) {
    End(request, KVB_FINISH_ENDED);
    return;
  }
  const RequestSpec& spec = request->spec;
  if (spec.cancel == Cancel::kInPrefill || spec.cancel == Cancel::kWhileLoading) {
    End(request, KVB_FINISH_CANCELLED);
    return;
  }
  for (size_t i = 0; i < part->sampled.size(); ++i) {
    if (request->tokens.size() - spec.prompt.size() >= spec.max_outputs) break;
    if (i > 0) ++request->computed;  // an accepted draft
    request->tokens.push_back(part->sampled[i]);
    ++counters_.output_tokens;
  }
  ExtendStates(request);
  RegisterBlocks(request);
  RewindDrafts(request);
  LeaveWindow(request);

  const uint64_t outputs = request->tokens.size() - spec.prompt.size();
  if (spec.cancel == Cancel::kAfterOutputs && outputs >= spec.cancel_after) {
    request->tokens.resize(spec.prompt.size() + spec.cancel_after);
    End(request, KVB_FINISH_CANCELLED);
  } else if (outputs >= spec.max_outputs) {
    // An overlapping loop notices too late: the request takes part in one more pass.
    if (options_.overlap && !options_.context_only && Coin(9, spec.id, 0, 2)) {
      request->extra_pass = true;
    } else {
      End(request, KVB_FINISH_ENDED);
    }
  }
}

void Engine::CheckLoadedPages(Live* request, uint64_t from, uint64_t to) {
  PhaseTimer timer(&phases_, Phase::kCheck);
  const uint64_t T = options_.tokens_per_block;
  for (size_t rank = 0; rank < caches_.size(); ++rank) {
    for (size_t g = 0; g < pages_.size(); ++g) {
      for (uint64_t b = from / T; b < to / T; ++b) {
        ++counters_.compared_pages;
        if (!models_[rank].Holds(*caches_[rank], g, request->tables[g].pages.at(b),
                                 request->states.data() + b * T)) {
          ++counters_.wrong_pages;
        }
      }
    }
  }
}

void Engine::RegisterBlocks(Live* request) {
  if (!options_.local_reuse) return;
  const uint64_t whole =
      std::min(request->computed / options_.tokens_per_block, IdentifiedBlocks(*request));
  for (uint64_t& b = request->registered_blocks; b < whole; ++b) {
    for (size_t g = 0; g < pages_.size(); ++g) {
      const int32_t page = request->tables[g].pages[b];
      if (page >= 0) pages_[g].SetContent(page, BlockIdentity(*request, b));
    }
  }
}

// Pages that only rejected drafts needed go back; the list has shrunk, so it is sent whole again.
// They hold no complete block, so no save can be reading them.
void Engine::RewindDrafts(Live* request) {
  const uint64_t T = options_.tokens_per_block;
  const uint64_t needed = (request->tokens.size() + T - 1) / T;
  for (size_t g = 0; g < pages_.size(); ++g) {
    Table& table = request->tables[g];
    while (table.pages.size() > needed) {
      FreePage(g, table.pages.back());
      table.pages.pop_back();
      table.replace = true;
    }
  }
}

// Blocks that a window has passed lose their page (-1 from now on). A block that was computed here
// may still be read by a save, and nothing says when that save is done before the request's own
// handshake: its page stays with the request until then. Loaded blocks are never written back.
void Engine::LeaveWindow(Live* request) {
  const uint64_t T = options_.tokens_per_block;
  for (size_t g = 0; g < pages_.size(); ++g) {
    if (options_.groups[g].window == 0) continue;
    Table& table = request->tables[g];
    const uint64_t needed = std::min(FirstNeededBlock(g, request->computed), table.pages.size());
    for (; table.left < needed; ++table.left) {
      int32_t& page = table.pages[table.left];
      if (page < 0) continue;
      const uint64_t token = table.left * T;
      const bool loaded = token >= request->loaded_from && token < request->loaded_to;
      if (loaded || !bridge_.connected()) {
        FreePage(g, page);
      } else {
        table.leaving.push_back(page);
      }
      page = -1;
      table.replace = true;
      ++counters_.detached_pages;
    }
  }
}

}  // namespace miniature
