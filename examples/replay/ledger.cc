#include "ledger.h"

namespace replay {
namespace {

constexpr size_t kHashBytes = 32;  // of the kvb1 scheme, which the replay's configuration uses

}  // namespace

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
      kvb::hash_blocks(KVB_SCHEME_KVB1, request, options_.block, options_.lookahead);
  for (const uint32_t block : fresh_) {
    const auto from = hashes.begin() + static_cast<ptrdiff_t>(block * kHashBytes);
    hashes_.insert(hashes_.end(), from, from + kHashBytes);
  }
}

std::string Ledger::Missing(const PoolView& pool, const miniature::Engine& engine) const {
  const miniature::EngineOptions& shape = engine.options();
  const kvb::Layout layout = miniature::DescribeLayout(shape, engine.cache(0));
  const kvb_engine described = miniature::DescribeEngine(shape, 0);
  std::vector<std::string> keys;
  const auto add = [&](uint32_t group, int32_t rank, const uint8_t* hash) {
    keys.push_back(kvb::page_key(pool.config(), described, layout, group, rank, hash, kHashBytes));
  };
  for (size_t at = 0; at < hashes_.size(); at += kHashBytes) {
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
