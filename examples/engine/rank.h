// One rank's half of the bridge: a worker in this process, or in one of its own.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_RANK_H_
#define KVBRIDGE_EXAMPLES_ENGINE_RANK_H_

#include <cstdint>
#include <functional>
#include <kvbridge/kvbridge.hpp>
#include <memory>
#include <vector>

#include "cache_memory.h"
#include "channel.h"
#include "types.h"

namespace miniature {

// What get_finished answered.
struct Reported {
  std::vector<uint64_t> saved;   // their pages are the engine's again
  std::vector<uint64_t> loaded;  // their asynchronous load ended
};

// The calls of a worker, in the order in which a pass makes them.
class Rank {
 public:
  virtual ~Rank() = default;
  virtual uint32_t PromptLookahead() = 0;
  virtual void Register() = 0;
  virtual void Unregister() = 0;
  // The metadata as its bytes, which is what travels.
  virtual void Bind(const std::vector<uint8_t>& metadata, const kvb_fence* fence) = 0;
  virtual void StartLoad(void* stream) = 0;
  virtual void WaitForSave(void* stream) = 0;
  virtual std::vector<uint64_t> TakeFailedLoads() = 0;
  virtual Reported GetFinished(const std::vector<uint64_t>& finished_ids,
                               const std::vector<uint64_t>& loading_ids) = 0;
  virtual std::vector<uint64_t> TakeFailedAsyncLoads() = 0;
  virtual kvb_stats Stats() = 0;
  virtual void Shutdown(uint64_t deadline_ms) = 0;
};

// The memory comes and goes (engine sleep), so it is asked for.
using DescribeMemory = std::function<kvb::Layout()>;

class LocalRank : public Rank {
 public:
  LocalRank(const EngineOptions& options, uint32_t rank, DescribeMemory memory);
  kvb::Worker& worker() { return worker_; }
  // The leader's own metadata needs no bytes.
  void BindBuilt(kvb::Metadata metadata, const kvb_fence* fence);

  uint32_t PromptLookahead() override;
  void Register() override;
  void Unregister() override;
  void Bind(const std::vector<uint8_t>& metadata, const kvb_fence* fence) override;
  void StartLoad(void* stream) override;
  void WaitForSave(void* stream) override;
  std::vector<uint64_t> TakeFailedLoads() override;
  Reported GetFinished(const std::vector<uint64_t>& finished_ids,
                       const std::vector<uint64_t>& loading_ids) override;
  std::vector<uint64_t> TakeFailedAsyncLoads() override;
  kvb_stats Stats() override;
  void Shutdown(uint64_t deadline_ms) override;

 private:
  DescribeMemory memory_;
  kvb::Worker worker_;
  kvb::Metadata metadata_;  // what is bound
};

// A rank in a process of its own, on cache memory that both share. It has no fences, and its memory
// stays where it is.
class RemoteRank : public Rank {
 public:
  RemoteRank(const EngineOptions& options, uint32_t rank, DescribeMemory memory);

  uint32_t PromptLookahead() override;
  void Register() override;
  void Unregister() override;
  void Bind(const std::vector<uint8_t>& metadata, const kvb_fence* fence) override;
  void StartLoad(void* stream) override;
  void WaitForSave(void* stream) override;
  std::vector<uint64_t> TakeFailedLoads() override;
  Reported GetFinished(const std::vector<uint64_t>& finished_ids,
                       const std::vector<uint64_t>& loading_ids) override;
  std::vector<uint64_t> TakeFailedAsyncLoads() override;
  kvb_stats Stats() override;
  void Shutdown(uint64_t deadline_ms) override;

 private:
  Process process_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_RANK_H_
