// The executor threads of a tensor-parallel group: all calls of one rank come from one thread.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_RANK_THREADS_H_
#define KVBRIDGE_EXAMPLES_ENGINE_RANK_THREADS_H_

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace miniature {

// Rank 0 is the caller's thread, as the leader's executor runs the scheduler half too; every other
// rank has a thread of its own.
class RankThreads {
 public:
  explicit RankThreads(size_t ranks) { Start(ranks); }
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // For those that were made with 0 ranks.
  void Start(size_t ranks);

  // Calls `work` with every rank, all at the same time, and returns when all have returned. What
  // the lowest failing rank threw is thrown here.
  void Run(const std::function<void(size_t rank)>& work);

 private:
  void Serve(size_t rank);

  std::mutex mutex_;  // guards all below but threads_
  std::condition_variable begun_, ended_;
  const std::function<void(size_t)>* work_ = nullptr;
  size_t round_ = 0;  // counts calls of Run
  size_t busy_ = 0;   // ranks that have not ended this round
  bool stop_ = false;
  std::vector<std::exception_ptr> errors_;  // one per rank
  std::vector<std::thread> threads_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_RANK_THREADS_H_
