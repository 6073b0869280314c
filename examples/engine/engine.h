// A miniature LLM engine: what an integrator does around kvbridge, in the order it has to happen.
//
// Read Engine::RunPass in engine.cc first; the steps it calls are in schedule.cc, parked.cc,
// forward.cc and finish.cc. One thread drives an engine; ranks beside the leader have threads of
// their own for their halves of the bridge.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_ENGINE_H_
#define KVBRIDGE_EXAMPLES_ENGINE_ENGINE_H_

#include <kvbridge/kvbridge.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bridge.h"
#include "cache_memory.h"
#include "model.h"
#include "page_copies.h"
#include "page_pool.h"
#include "types.h"

namespace miniature {

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Submit(RequestSpec request);
  // One iteration. False: nothing ran (no work, or only saves and loads to wait for), and the
  // caller should wait a moment before the next one.
  bool RunPass();

  // Gives the memory of all pools back, with what they cache, and gets new one: what an engine does
  // that lends its device to somebody else. Requests that have pages are preempted before.
  void Sleep();
  void WakeUp();

  bool idle() const { return requests_.empty(); }
  size_t waiting() const { return waiting_.size(); }
  size_t parked() const { return parked_.size(); }
  std::vector<Outcome> TakeOutcomes();

  const EngineOptions& options() const { return options_; }
  const CacheMemory& cache(size_t rank) const { return *caches_.at(rank); }
  const Counters& counters() const { return counters_; }
  const PhaseSeconds& phases() const { return phases_; }
  std::vector<kvb_stats> Stats() const { return bridge_.Stats(); }  // of each rank
  void Shutdown() { bridge_.Shutdown(); }

 private:
  // One request's pages in one layer group.
  struct Table {
    std::vector<int32_t> pages;    // -1: no page (behind the window)
    std::vector<int32_t> leaving;  // behind the window, but a save may still read them
    size_t reported = 0;           // pages that the scheduler half knows
    size_t left = 0;               // blocks that the window has left behind
    bool replace = false;          // the list shrank or lost pages: report it whole
  };

  struct Live {
    RequestSpec spec;
    std::vector<int32_t> tokens;   // prompt and outputs
    std::vector<uint64_t> states;  // what the tokens imply, for checks and for block identities
    uint64_t sequence = 0;         // order of admission: the youngest is preempted first
    // The current allocation.
    std::vector<Table> tables;
    uint64_t matched = 0;            // tokens.size() when the pool was asked
    uint64_t computed = 0;           // tokens with valid KV
    uint64_t restore = 0;            // honoured tokens that the next pass loads, from `computed` on
    uint64_t reported = 0;           // tokens that the scheduler half knows
    uint64_t registered_blocks = 0;  // blocks that the local prefix cache knows
    uint64_t loaded_from = 0, loaded_to = 0;  // tokens that came from the pool
    // The pool's offer, while it is unsettled.
    bool has_offer = false;
    bool offer_is_async = false;
    uint64_t offer_from = 0, offer_to = 0;
    // While it is parked.
    bool announced = false;  // as one whose load is to be reported
    size_t loading_ranks = 0;
    std::string explanation;
    bool extra_pass = false;  // finished, and in one more pass (overlapping loop)
    bool ending = false;
    bool saves_reported = false;
    std::vector<ComputedBlock> saved_blocks;  // of all its allocations
  };

  // One request's part of the pass.
  struct Scheduled {
    Live* request;
    uint64_t first;   // first position to compute
    uint64_t count;   // tokens of the chunk, or 1
    uint64_t drafts;  // speculative slots behind them
    bool decoding;
    std::vector<int32_t> sampled;  // by the forward pass; drafts that were right, and one more
  };

  struct Ending {
    Live* request;
    int32_t reason;  // KVB_FINISH_...
  };
  struct Closing {
    Live* request;
    int32_t reason;
    size_t ranks_left;  // that have not reported the id
  };
  enum class Abandon { kNo, kBeforeLoad, kAfterLoad };

  // schedule.cc
  void GrowRunning();
  void AdmitWaiting();
  void JoinBatch(Live* request);
  bool TryAdmit(Live* request);
  void AskPool(Live* request, uint64_t local);
  uint64_t ChooseHonoured(const Live& request, uint64_t local) const;
  void SettleOffer(Live* request, uint64_t local, uint64_t honoured);
  uint64_t LocalMatch(const Live& request) const;
  bool AllocatePages(Live* request, uint64_t local_blocks, uint64_t blocks);
  void GrowTables(Live* request, uint64_t blocks);
  void PreemptYoungest();
  void TrimToBudget();
  const std::vector<kvb_step>& DescribePass();
  void DescribePages(const Live& request, std::vector<kvb_group_pages>* out) const;
  Abandon DecideAbandon();
  uint64_t FirstNeededBlock(size_t group, uint64_t position) const;
  void PreparePage(size_t group, int32_t page);
  void FreePage(size_t group, int32_t page);
  void WaitForCopies();

  // parked.cc
  void Park(Live* request);
  void LeaveParked();
  std::vector<uint64_t> AnnounceParked();
  void Resume(const std::vector<uint64_t>& loaded, const std::vector<uint64_t>& failed);

  // forward.cc
  void Forward();
  void ComputeRange(const Live& request, uint64_t from, uint64_t to);
  int32_t Sample(const Live& request, uint64_t position) const;
  void ApplyResults(const std::vector<uint64_t>& failed);
  void Apply(Scheduled* part);
  void CheckLoadedPages(Live* request, uint64_t from, uint64_t to);
  void RegisterBlocks(Live* request);
  void LeaveWindow(Live* request);
  void RewindDrafts(Live* request);
  void ExtendStates(Live* request);

  // finish.cc
  void End(Live* request, int32_t reason);
  std::vector<uint64_t> FinishEnded();
  void CloseReported(const std::vector<uint64_t>& saved);
  void ReleasePages(Live* request);
  void Conclude(Live* request, int32_t reason);
  void CollectSavedBlocks(Live* request);
  void ResetReleased();

  bool Coin(uint64_t salt, uint64_t a, uint64_t b, uint64_t one_in) const;
  uint64_t BlockIdentity(const Live& request, uint64_t block) const {
    return request.states[(block + 1) * options_.tokens_per_block - 1];
  }
  uint64_t IdentifiedBlocks(const Live& request) const;

  EngineOptions options_;
  std::vector<std::unique_ptr<CacheMemory>> caches_;  // one per rank; they outlive the bridge
  std::vector<Model> models_;                         // one per rank
  std::vector<PagePool> pages_;                       // one per group, common to all ranks
  // Per group and page: free, and overwritten with garbage when it became so.
  std::vector<std::vector<bool>> poisoned_;
  std::unordered_map<uint64_t, std::unique_ptr<Live>> requests_;
  std::deque<Live*> waiting_;
  std::vector<Live*> running_;
  std::vector<Live*> parked_;  // they have pages, and wait for their load outside the batch
  std::vector<Scheduled> batch_;
  std::vector<Ending> ending_;
  std::vector<Closing> closing_;
  std::vector<Live*> released_;  // to be reset and run again
  std::vector<Outcome> outcomes_;
  std::vector<kvb_step> steps_;
  std::vector<std::vector<kvb_group_pages>> step_pages_;
  std::vector<uint64_t> scratch_states_;
  std::unique_ptr<PageCopies> copies_;  // it outlives the bridge: load threads may wait there
  Bridge bridge_;
  Counters counters_;
  PhaseSeconds phases_{};
  uint64_t next_sequence_ = 0;
  bool stalled_ = false;  // a running request did not get its pages in this pass
  bool asleep_ = false;   // or about to be: nobody is admitted
};

// Adds the time of its scope to a phase.
class PhaseTimer {
 public:
  PhaseTimer(PhaseSeconds* phases, Phase phase)
      : seconds_((*phases)[static_cast<size_t>(phase)]), start_(std::chrono::steady_clock::now()) {}
  ~PhaseTimer() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_ENGINE_H_
