// The plain types of the miniature engine: what it is built from, what it is asked, what it
// answers.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_TYPES_H_
#define KVBRIDGE_EXAMPLES_ENGINE_TYPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "kvbridge/kvbridge.h"

namespace miniature {

// One block pool: [num_blocks, layers, kv_factor, tokens_per_block] elements, one element per
// token.
struct PoolSpec {
  uint32_t layers = 2;
  uint32_t kv_factor = 2;      // 1 where there is no value (MLA, index pools)
  uint32_t element_bits = 16;  // 8 or 16
  bool layer_first = false;    // [layers, num_blocks, kv_factor, tokens_per_block] instead
  bool replicated = false;     // the same bytes on every rank of the TP group
};

// Layers that share one page index space. The first pool is the primary one (see model.h): four
// rows of 16 bits or more.
struct GroupSpec {
  uint32_t id = 0;
  uint32_t window = 0;  // attention window in tokens; 0 = full. Group 0 must be full.
  std::vector<PoolSpec> pools = {PoolSpec{}};
};

// The allocation fences that an engine passes with each bind.
enum class Fences {
  kNone,    // new pages are filled before anybody hears of them
  kKept,    // new pages are filled late, and the fence waits for that
  kBroken,  // the fence does not wait: a fault that the checks must see
};

struct EngineOptions {
  std::string name = "engine";
  std::optional<std::string> config_json;  // none: run without a pool
  uint32_t tokens_per_block = 64;
  uint32_t blocks = 256;  // pages per group
  std::vector<GroupSpec> groups = {GroupSpec{}};
  uint32_t tp_size = 1;         // ranks that this engine drives; each has its own pools and worker
  bool rank_processes = false;  // all but the first in a process of its own; no fences, no sleep
  uint32_t adp_owner = 0;       // under attention DP: which owner this engine is,
  uint32_t adp_owners = 0;      // of how many; 0 = no attention DP
  uint32_t lookahead = 0;       // prompt lookahead of a one-model draft
  bool context_only = false;  // a disaggregated context server: the first output token and no more
  const kvb_store_table* lent = nullptr;  // what the store "host" of the configuration calls
  std::shared_ptr<Device> device;         // of the caches; none: memory of the host
  uint64_t model_seed = 1;
  uint32_t token_budget = 8192;  // per pass
  uint32_t max_running = 1;      // requests that hold pages at a time
  bool local_reuse = false;
  Fences fences = Fences::kNone;
  // What real engines do now and then; each is a deterministic choice by request and pass.
  uint32_t max_drafts = 0;      // speculative slots per decode step
  bool abandon_passes = false;  // prepare a pass and then not run it
  bool overlap = false;         // some finished requests take part in one more pass
  // Honour offers in part or not at all, settle them after the local match grew, preempt requests
  // that wait for their load.
  bool haggle = false;
  std::function<void()> before_bind;  // for tests: called in every pass before its loads begin
};

enum class Cancel {
  kNever,
  kBeforeAllocation,
  kWhileLoading,  // while its pages are on their way; where it does not wait for them, kInPrefill
  kInPrefill,
  kAfterOutputs,
};

struct RequestSpec {
  uint64_t id = 0;  // unique among live requests
  std::vector<int32_t> prompt;
  uint32_t max_outputs = 1;
  std::optional<std::string> cache_salt;
  std::optional<std::string> lora;
  std::vector<std::array<uint8_t, 32>> media_digests;
  bool has_media = false;
  Cancel cancel = Cancel::kNever;
  uint32_t cancel_after = 0;  // outputs, for kAfterOutputs
  bool explain = false;       // have the library explain its offers
};

// A whole prompt block (with its lookahead) that a request computed. The identity is a hash over
// everything that the block's KV depends on.
struct ComputedBlock {
  uint32_t ordinal = 0;
  uint64_t identity = 0;
};

// A request that is over, and all its saves with it.
struct Outcome {
  RequestSpec spec;
  bool cancelled = false;
  std::vector<int32_t> outputs;
  // Computed by this request, not loaded or found locally, and reported as saved by every rank.
  std::vector<ComputedBlock> saved_blocks;
  std::string explanation;  // of each offer, where it was asked for
};

struct Counters {
  uint64_t requests = 0;
  uint64_t prompt_tokens = 0;
  uint64_t output_tokens = 0;
  uint64_t passes = 0;
  uint64_t abandoned_passes = 0;
  uint64_t preemptions = 0;
  uint64_t cancelled = 0;
  uint64_t local_hit_blocks = 0;
  uint64_t hit_blocks = 0;  // served by the pool; once per block, whatever the groups and ranks
  uint64_t compared_pages = 0;
  uint64_t wrong_pages = 0;
  uint64_t failed_loads = 0;   // requests that were handed back
  uint64_t touched_pages = 0;  // free pages into which somebody wrote
  uint64_t parked = 0;         // requests that waited outside the batch for an asynchronous load,
  uint64_t parked_for_nothing = 0;  // of them those that had honoured no token of the offer,
  uint64_t left_parked = 0;         // or that were cancelled or preempted meanwhile
  uint64_t drafts = 0;
  uint64_t rejected_drafts = 0;
  uint64_t given_back_blocks = 0;  // offered, and not honoured
  uint64_t detached_pages = 0;     // left behind by a window

  void Add(const Counters& other);
};

enum class Phase { kMatch, kAllocate, kBuild, kLoad, kForward, kSaveWait, kGetFinished, kCheck };
constexpr size_t kPhaseCount = 8;
using PhaseSeconds = std::array<double, kPhaseCount>;

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_TYPES_H_
