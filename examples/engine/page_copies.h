// The engine's own writes into newly allocated pages, done by a helper thread and deliberately
// late: what an engine with an offload tier has on a copy stream. Asynchronous loads must wait for
// them, and the allocation fence is how they do.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_PAGE_COPIES_H_
#define KVBRIDGE_EXAMPLES_ENGINE_PAGE_COPIES_H_

#include <kvbridge/kvbridge.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache_memory.h"
#include "types.h"

namespace miniature {

class PageCopies {
 public:
  // The caches may be exchanged while no copy is on its way.
  PageCopies(Fences kind, const std::vector<std::unique_ptr<CacheMemory>>* caches);
  ~PageCopies();
  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;

  // The page is overwritten with garbage on all ranks, soon.
  void Add(size_t group, int32_t page);
  // On return everything that was added has been written.
  void Wait();
  // For `bind`: it covers everything that was added before. The copies must outlive the worker's
  // layout, since a load thread may wait here.
  kvb_fence Fence();

 private:
  struct Copy {
    size_t group;
    int32_t page;
  };
  static void WaitForFence(void* copies) noexcept;
  void Serve();

  const Fences kind_;
  const std::vector<std::unique_ptr<CacheMemory>>& caches_;
  std::mutex mutex_;  // guards all below but the thread
  std::condition_variable changed_;
  std::vector<Copy> queue_;
  uint64_t added_ = 0, done_ = 0;
  bool wanted_ = false;  // somebody of the engine waits
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_PAGE_COPIES_H_
