#include "ledger.h"

namespace replay {
namespace {

constexpr size_t kHashBytes = 32;  // of the kvb1 scheme, which the replay's configuration uses
constexpr size_t kKeyBytes = 513;  // a key and its terminator

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
  scratch_.resize(prompt.size() / options_.block * kHashBytes);
  size_t needed = 0;
  miniature::Check(
      kvb_keys_hash_blocks(KVB_SCHEME_KVB1, &request, options_.block, options_.lookahead,
                           scratch_.data(), scratch_.size(), &needed),
      "hash_blocks");
  for (const uint32_t block : fresh_) {
    const auto from = scratch_.begin() + static_cast<ptrdiff_t>(block * kHashBytes);
    hashes_.insert(hashes_.end(), from, from + kHashBytes);
  }
}

std::string Ledger::Missing(const PoolView& pool, const miniature::Engine& engine) const {
  const miniature::EngineOptions& shape = engine.options();
  const auto layout = miniature::DescribeLayout(shape, engine.cache(0));
  const kvb_engine described = miniature::DescribeEngine(shape, 0);
  std::vector<std::string> keys;
  std::string buffer(kKeyBytes, '\0');
  const auto add = [&](uint32_t group, int32_t rank, const uint8_t* hash) {
    size_t needed = 0;
    miniature::Check(kvb_keys_page_key(pool.config(), &described, layout.get(), group, rank, hash,
                                       kHashBytes, buffer.data(), buffer.size(), &needed),
                     "page_key");
    keys.emplace_back(buffer.c_str());
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
