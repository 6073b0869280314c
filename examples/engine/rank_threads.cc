#include "rank_threads.h"

namespace miniature {

void RankThreads::Start(size_t ranks) {
  errors_.resize(ranks);
  for (size_t rank = 1; rank < ranks; ++rank) threads_.emplace_back([this, rank] { Serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::Run(const std::function<void(size_t)>& work) {
  if (errors_.empty()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    busy_ = threads_.size();
    ++round_;
  }
  begun_.notify_all();
  std::exception_ptr first;
  try {
    work(0);
  } catch (...) {
    first = std::current_exception();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return busy_ == 0; });
  for (std::exception_ptr& error : errors_) {
    if (error && !first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

void RankThreads::Serve(size_t rank) {
  size_t served = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return stop_ || round_ != served; });
    if (stop_) return;
    served = round_;
    const std::function<void(size_t)>& work = *work_;
    lock.unlock();
    std::exception_ptr error;
    try {
      work(rank);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[rank] = error;
    if (--busy_ == 0) ended_.notify_one();
  }
}

}  // namespace miniature
