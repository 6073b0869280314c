// Everything this engine says to kvbridge: one scheduler half and one worker half per rank, each
// rank on its own thread or, if the options say so, in a process of its own (rank.h).
//
// The methods are the roles of a pass; errors are exceptions (kvb::Error), views into handles are
// copied. Without a configuration there is no pool, and every method gives the answer that an empty
// pool would give.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_BRIDGE_H_
#define KVBRIDGE_EXAMPLES_ENGINE_BRIDGE_H_

#include <cstdint>
#include <kvbridge/kvbridge.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cache_memory.h"
#include "rank.h"
#include "rank_threads.h"
#include "types.h"

namespace miniature {

kvb_engine DescribeEngine(const EngineOptions& options, uint32_t rank);
kvb::Layout DescribeLayout(const EngineOptions& options, const CacheMemory& cache);
// Borrows from `request` and `tokens`.
kvb_request DescribeRequest(const RequestSpec& request, const int32_t* tokens, size_t count,
                            bool context_only);

class Bridge {
 public:
  // One rank per cache. The list of caches must outlive the bridge.
  Bridge(const EngineOptions& options, const std::vector<std::unique_ptr<CacheMemory>>& caches);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  bool connected() const { return static_cast<bool>(scheduler_); }

  // The scheduler half, on the leader.
  kvb::Scheduler::Offer Match(const kvb_request& request, uint64_t local_tokens);
  std::string Explain(const kvb_request& request, uint64_t local_tokens) const;
  void Allocated(uint64_t request_id, uint64_t honoured_tokens,
                 const std::vector<kvb_group_pages>& pages);
  void CancelLoad(uint64_t request_id, uint64_t from_token, uint64_t to_token);
  void Build(const std::vector<kvb_step>& steps);
  bool Finished(uint64_t request_id, int32_t reason);  // true: the pages must stay
  void Reset(uint64_t request_id);
  bool PassHasLoads() const;

  // The worker half, on every rank at the same time. `Bind` broadcasts what `Build` made. Lists of
  // ids name an id once per rank that says so.
  void Bind(const kvb_fence* fence);
  void StartLoad(void* stream);
  void WaitForSave(void* stream);
  std::vector<uint64_t> TakeFailedLoads();
  Reported GetFinished(const std::vector<uint64_t>& finished_ids,
                       const std::vector<uint64_t>& loading_ids);
  std::vector<uint64_t> TakeFailedAsyncLoads();

  // The caches' memory may go, and come back elsewhere.
  void Unregister();
  void Register();

  std::vector<kvb_stats> Stats() const;  // of each rank
  void Shutdown();

 private:
  template <typename Take>
  std::vector<uint64_t> TakeFromAll(Take take);

  LocalRank* leader_ = nullptr;  // the first of the ranks
  std::vector<std::unique_ptr<Rank>> ranks_;
  RankThreads threads_;
  kvb::Scheduler scheduler_;
  kvb::Metadata built_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_BRIDGE_H_
