// The "model": KV bytes that are a function of everything real KV depends on.
//
// The state s(p) of token position p is a chain over the scope and all tokens up to p, and over the
// lookahead tokens behind p. A group's primary pool stores the state reversibly, 16 bits in each of
// its first four rows; all other rows derive from it. Every row is also keyed with group, pool,
// layer, factor and (unless replicated) rank, so no page can pass for another. The forward pass
// reads s(p-1) back from cache memory, and a sampled token depends on every page that attention
// would read: a wrong page in the cache becomes a wrong output.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_MODEL_H_
#define KVBRIDGE_EXAMPLES_ENGINE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache_memory.h"
#include "types.h"

namespace miniature {

uint64_t Scramble(uint64_t value);  // one-way enough: splitmix64's finisher

// State before the first token: model seed, salt, adapter, media.
uint64_t ScopeState(uint64_t model_seed, const RequestSpec& request);

// What the states of a token list are computed from. Lookahead tokens at or beyond `prompt_tokens`
// count as absent.
struct TokenView {
  const int32_t* tokens = nullptr;
  size_t prompt_tokens = 0;
  uint32_t lookahead = 0;
};

// States of positions [from, to), given the state before `from`.
void AdvanceStates(const TokenView& view, uint64_t before, size_t from, size_t to, uint64_t* out);

class Model {
 public:
  Model(uint64_t seed, const std::vector<GroupSpec>& groups, uint32_t tokens_per_block,
        uint32_t rank);

  // Stores the KV of `count` tokens in a page, from one slot on.
  void Write(CacheMemory* cache, size_t group, int32_t page, uint32_t slot, const uint64_t* states,
             uint32_t count) const;
  // The state that a primary pool holds.
  uint64_t Read(const CacheMemory& cache, size_t group, int32_t page, uint32_t slot) const;
  // A digest of everything that all pools of the group hold for one token.
  uint64_t Digest(const CacheMemory& cache, size_t group, int32_t page, uint32_t slot,
                  uint64_t digest) const;
  // Whether a whole page holds exactly what these states imply, in all pools, byte by byte.
  bool Holds(const CacheMemory& cache, size_t group, int32_t page, const uint64_t* states) const;

 private:
  struct Row {
    uint32_t pool, layer, factor, element_bytes;
    uint64_t key;
    int32_t piece;  // which 16 bits of the state; -1: derived from all of it
  };
  static void Render(const Row& row, const uint64_t* states, uint32_t count, uint8_t* out);

  uint32_t tokens_per_block_;
  std::vector<std::vector<Row>> rows_;  // per group
};

// Sampled tokens lie outside the range of prompt tokens and inside int32.
constexpr int32_t kFirstOutputToken = 1 << 30;
int32_t SampledToken(uint64_t digest);

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_MODEL_H_
