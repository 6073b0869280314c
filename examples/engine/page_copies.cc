#include "page_copies.h"

#include <chrono>

namespace miniature {
namespace {

// Long enough for a load of a few pages that does not wait for the fence to be done before.
constexpr std::chrono::microseconds kLateness{300};

}  // namespace

PageCopies::PageCopies(Fences kind, const std::vector<std::unique_ptr<CacheMemory>>* caches)
    : kind_(kind), caches_(*caches), thread_([this] { Serve(); }) {}

PageCopies::~PageCopies() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PageCopies::Add(size_t group, int32_t page) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(Copy{group, page});
    ++added_;
  }
  changed_.notify_all();
}

void PageCopies::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t all = added_;
  wanted_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= all; });
  wanted_ = false;
}

kvb_fence PageCopies::Fence() {
  kvb_fence fence{};
  fence.kind = KVB_FENCE_CALLBACK;
  fence.wait = &PageCopies::WaitForFence;
  fence.context = this;
  return fence;
}

// On a load thread of the library.
void PageCopies::WaitForFence(void* context) noexcept {
  PageCopies& copies = *static_cast<PageCopies*>(context);
  if (copies.kind_ == Fences::kBroken) return;
  std::unique_lock<std::mutex> lock(copies.mutex_);
  const uint64_t all = copies.added_;
  copies.changed_.wait(lock, [&] { return copies.done_ >= all; });
}

void PageCopies::Serve() {
  std::vector<Copy> batch;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    // Beside a broken fence the copies come as late as they can.
    changed_.wait(lock, [this] {
      return stop_ || (!queue_.empty() && (wanted_ || kind_ != Fences::kBroken));
    });
    if (stop_ && queue_.empty()) return;
    batch.swap(queue_);
    const bool hurry = stop_;
    lock.unlock();
    if (!hurry) std::this_thread::sleep_for(kLateness);
    for (const Copy& copy : batch) {
      for (const auto& cache : caches_) cache->FillGarbage(copy.group, copy.page);
    }
    lock.lock();
    done_ += batch.size();
    batch.clear();
    changed_.notify_all();
  }
}

}  // namespace miniature
