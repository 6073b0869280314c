#include "ledger.h"

namespace replay {
void Ledger::Add(const miniature::Outcome& outcome) {
  fresh_.clear();
  for (const miniature::ComputedBlock& block : outcome.saved_blocks) {
    if (identities_.insert(block.identity).second) fresh_.push_back(block.ordinal);
  }
  if (fresh_.empty()) return;
  const std::vector<int32_t>& prompt = outcome.spec.prompt;
  const kvb_request request =
      miniature::DescribeRequest(outcome.spec, prompt.data(), prompt.size(), ContextOnly(options_));
  const std::vector<uint8_t> hashes =
      kvb::hash_blocks(scheme_, request, options_.block, options_.lookahead);
  for (const uint32_t block : fresh_) {
    const auto from = hashes.begin() + static_cast<ptrdiff_t>(block * hash_bytes_);
    hashes_.insert(hashes_.end(), from, from + hash_bytes_);
  }
}

std::string Ledger::Missing(const PoolView& pool, const miniature::EngineOptions& shape) const {
  // Only its description is needed; untouched memory costs nothing.
  const miniature::CacheMemory cache(shape.groups, shape.blocks, shape.tokens_per_block);
  const kvb::Layout layout = miniature::DescribeLayout(shape, cache);
  const kvb_engine described = miniature::DescribeEngine(shape, 0);
  std::vector<std::string> keys;
  const auto add = [&](uint32_t group, int32_t rank, const uint8_t* hash) {
    keys.push_back(kvb::page_key(pool.config(), described, layout, group, rank, hash, hash_bytes_));
  };
  for (size_t at = 0; at < hashes_.size(); at += hash_bytes_) {
    for (const miniature::GroupSpec& group : shape.groups) {
      bool replicated = false;
      for (const miniature::PoolSpec& spec : group.pools) replicated |= spec.replicated;
      for (uint32_t rank = 0; rank < shape.tp_size; ++rank) {
        add(group.id, static_cast<int32_t>(rank), hashes_.data() + at);
      }
      if (replicated) add(group.id, KVB_SHARD_REPLICATED, hashes_.data() + at);
    }
  }
  const uint64_t stored = pool.CountStored(keys);
  if (stored == keys.size()) return {};
  return "the pool holds " + std::to_string(stored) + " of " + std::to_string(keys.size()) +
         " pages that were reported as saved";
}

}  // namespace replay
