#include "model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace miniature {
namespace {

constexpr uint64_t kChain = 0x9e3779b97f4a7c15;
constexpr uint64_t kToken = 0xd6e8feb86659fd93;
constexpr uint64_t kAhead = 0xa0761d6478bd642f;

// A bijection of the state for any given token: chains that differ once stay different.
inline uint64_t Step(uint64_t state, uint64_t token_term) {
  state = (state ^ token_term) * kChain;
  return state ^ (state >> 32);
}

inline uint64_t Term(int32_t token) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 1) * kToken;
}

uint64_t HashBytes(uint64_t hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  hash = Scramble(hash ^ size);
  for (size_t i = 0; i < size; ++i) hash = Step(hash, (bytes[i] + 1) * kToken);
  return Scramble(hash);
}

}  // namespace

uint64_t Scramble(uint64_t value) {
  value += kChain;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

uint64_t ScopeState(uint64_t model_seed, const RequestSpec& request) {
  uint64_t state = Scramble(model_seed);
  const std::string salt = request.cache_salt.value_or("");
  const std::string lora = request.lora.value_or("");
  state = HashBytes(state, salt.data(), salt.size());
  state = HashBytes(state ^ (request.lora ? 1 : 0), lora.data(), lora.size());
  for (const auto& digest : request.media_digests) {
    state = HashBytes(state, digest.data(), digest.size());
  }
  // Media that nobody can name is its request's own.
  if (request.has_media && request.media_digests.empty()) state = Scramble(state ^ ~request.id);
  return state;
}

void AdvanceStates(const TokenView& view, uint64_t before, size_t from, size_t to, uint64_t* out) {
  uint64_t state = before;
  if (view.lookahead == 0) {
    for (size_t p = from; p < to; ++p) *out++ = state = Step(state, Term(view.tokens[p]));
    return;
  }
  for (size_t p = from; p < to; ++p) {
    uint64_t term = Term(view.tokens[p]);
    uint64_t factor = kAhead;
    for (uint32_t i = 1; i <= view.lookahead; ++i, factor *= kAhead) {
      if (p + i < view.prompt_tokens) term += Term(view.tokens[p + i]) * factor;
    }
    *out++ = state = Step(state, term);
  }
}

Model::Model(uint64_t seed, const std::vector<GroupSpec>& groups, uint32_t tokens_per_block,
             uint32_t rank)
    : tokens_per_block_(tokens_per_block) {
  for (const GroupSpec& group : groups) {
    std::vector<Row> rows;
    for (uint32_t pool = 0; pool < group.pools.size(); ++pool) {
      const PoolSpec& spec = group.pools[pool];
      if (spec.element_bits != 8 && spec.element_bits != 16) {
        throw std::invalid_argument("an element has 8 or 16 bits");
      }
      const uint64_t where = spec.replicated ? ~uint64_t{0} : rank;
      for (uint32_t layer = 0; layer < spec.layers; ++layer) {
        for (uint32_t factor = 0; factor < spec.kv_factor; ++factor) {
          uint64_t key = seed;
          for (uint64_t part :
               {uint64_t{group.id}, uint64_t{pool}, uint64_t{layer}, uint64_t{factor}, where}) {
            key = Scramble(key ^ part);
          }
          const uint32_t index = layer * spec.kv_factor + factor;
          const bool carries = pool == 0 && index < 4;
          rows.push_back(Row{pool, layer, factor, spec.element_bits / 8, key,
                             carries ? static_cast<int32_t>(index) : -1});
        }
      }
    }
    const PoolSpec& primary = group.pools.at(0);
    if (primary.layers * primary.kv_factor < 4 || primary.element_bits != 16) {
      throw std::invalid_argument("a primary pool has at least four rows of 16 bits");
    }
    rows_.push_back(std::move(rows));
  }
}

void Model::Render(const Row& row, const uint64_t* states, uint32_t count, uint8_t* out) {
  const uint64_t key = row.key;
  if (row.piece >= 0) {
    const auto shift = static_cast<uint32_t>(row.piece) * 16;
    auto* elements = reinterpret_cast<uint16_t*>(out);
    for (uint32_t i = 0; i < count; ++i) {
      elements[i] = static_cast<uint16_t>((states[i] >> shift) ^ key);
    }
  } else if (row.element_bytes == 2) {
    auto* elements = reinterpret_cast<uint16_t*>(out);
    for (uint32_t i = 0; i < count; ++i) {
      elements[i] = static_cast<uint16_t>(((states[i] ^ key) * kAhead) >> 48);
    }
  } else {
    for (uint32_t i = 0; i < count; ++i) {
      out[i] = static_cast<uint8_t>(((states[i] ^ key) * kAhead) >> 56);
    }
  }
}

void Model::Write(CacheMemory* cache, size_t group, int32_t page, uint32_t slot,
                  const uint64_t* states, uint32_t count) const {
  for (const Row& row : rows_[group]) {
    uint8_t* out = cache->Row(group, row.pool, page, row.layer, row.factor);
    Render(row, states, count, out + slot * row.element_bytes);
  }
}

uint64_t Model::Read(const CacheMemory& cache, size_t group, int32_t page, uint32_t slot) const {
  uint64_t state = 0;
  for (const Row& row : rows_[group]) {
    if (row.piece < 0) continue;
    uint16_t element;
    std::memcpy(&element, cache.Row(group, row.pool, page, row.layer, row.factor) + slot * 2, 2);
    const auto bits = static_cast<uint16_t>(element ^ static_cast<uint16_t>(row.key));
    state |= static_cast<uint64_t>(bits) << (16 * row.piece);
  }
  return state;
}

uint64_t Model::Digest(const CacheMemory& cache, size_t group, int32_t page, uint32_t slot,
                       uint64_t digest) const {
  for (const Row& row : rows_[group]) {
    uint16_t element = 0;
    std::memcpy(&element,
                cache.Row(group, row.pool, page, row.layer, row.factor) + slot * row.element_bytes,
                row.element_bytes);
    digest = Step(digest, (uint64_t{element} + 1) * kToken);
  }
  return digest;
}

bool Model::Holds(const CacheMemory& cache, size_t group, int32_t page,
                  const uint64_t* states) const {
  constexpr uint32_t kChunk = 512;
  alignas(64) std::array<uint8_t, kChunk * 2> expected;
  for (const Row& row : rows_[group]) {
    const uint8_t* stored = cache.Row(group, row.pool, page, row.layer, row.factor);
    for (uint32_t slot = 0; slot < tokens_per_block_; slot += kChunk) {
      const uint32_t count = std::min(kChunk, tokens_per_block_ - slot);
      Render(row, states + slot, count, expected.data());
      const size_t offset = size_t{slot} * row.element_bytes;
      if (std::memcmp(stored + offset, expected.data(), size_t{count} * row.element_bytes) != 0) {
        return false;
      }
    }
  }
  return true;
}

int32_t SampledToken(uint64_t digest) {
  return kFirstOutputToken + static_cast<int32_t>(Scramble(digest) >> 34);
}

}  // namespace miniature
