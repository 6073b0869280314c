// Which distinct prompt blocks were reported as saved, and whether the pool agrees.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_LEDGER_H_
#define KVBRIDGE_EXAMPLES_REPLAY_LEDGER_H_

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "../engine/engine.h"
#include "runs.h"

namespace replay {

// Blocks are told apart by the engine's own identity of a block; the library's hashes are kept
// only to ask the pool about the same blocks in the end.
class Ledger {
 public:
  explicit Ledger(const Options& options)
      : options_(options),
        scheme_(options.keys == "trtllm" ? KVB_SCHEME_TRTLLM : KVB_SCHEME_KVB1),
        hash_bytes_(options.keys == "trtllm" ? 16 : 32) {}

  void Add(const miniature::Outcome& outcome);
  uint64_t blocks() const { return identities_.size(); }
  // Asks for every page of every block. Empty if all are there, else what to say about it. Only
  // meaningful if the pool has evicted and refused nothing.
  std::string Missing(const PoolView& pool, const miniature::EngineOptions& shape) const;

 private:
  const Options& options_;
  const int32_t scheme_;
  const size_t hash_bytes_;
  std::unordered_set<uint64_t> identities_;
  std::vector<uint8_t> hashes_;
  std::vector<uint32_t> fresh_;
};

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_LEDGER_H_
