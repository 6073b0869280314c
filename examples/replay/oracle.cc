#include "oracle.h"

#include <algorithm>
#include <unordered_set>

namespace replay {
namespace {

// Two independent 64-bit lanes; neither the engine's chain nor the library's.
struct Digest {
  uint64_t a = 0x243f6a8885a308d3;
  uint64_t b = 0x13198a2e03707344;

  void Add(uint64_t token) {
    a = (a ^ (token + 1)) * 0x00000100000001b3;
    a ^= a >> 29;
    b = (b + token) * 0xff51afd7ed558ccd;
    b ^= b >> 32;
  }
  bool operator==(const Digest& other) const { return a == other.a && b == other.b; }
};

struct DigestHash {
  size_t operator()(const Digest& digest) const { return digest.a ^ (digest.b >> 7); }
};

}  // namespace

Ideal IdealReuse(const Trace& trace, uint32_t tokens_per_block, uint32_t lookahead) {
  std::unordered_set<Digest, DigestHash> stored;
  std::vector<Digest> chain;
  Ideal ideal;
  for (const TraceRequest& request : trace) {
    const uint64_t length = request.input_length;
    const auto token = [&](uint64_t i) {
      return request.hash_ids[i / kTokensPerId] * kTokensPerId + i % kTokensPerId;
    };
    const uint64_t blocks = length < lookahead ? 0 : (length - lookahead) / tokens_per_block;
    chain.clear();
    Digest digest;
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint64_t end = (b + 1) * tokens_per_block + lookahead;
      for (uint64_t i = b * tokens_per_block; i < end; ++i) digest.Add(token(i));
      chain.push_back(digest);
    }
    const uint64_t usable = std::min<uint64_t>(chain.size(), (length - 1) / tokens_per_block);
    uint64_t hits = 0;
    while (hits < usable && stored.count(chain[hits]) > 0) ++hits;
    ideal.hit_blocks += hits;
    stored.insert(chain.begin(), chain.end());
  }
  ideal.saved_blocks = stored.size();
  return ideal;
}

}  // namespace replay
