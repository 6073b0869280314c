/* Streams as threads with queues, and events. One lock guards all of it; work runs outside of it.
 */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_WORK_H
#define KVBRIDGE_CPP_TESTS_CUDA_WORK_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stand_in.h"

namespace stand_in {

using Lock = std::unique_lock<std::mutex>;

/* How much of a stream's work was queued and has ended. */
struct Progress {
  uint64_t queued = 0;
  uint64_t ended = 0;
};

/* The end of some streams' work at a moment. */
struct Mark {
  std::vector<std::pair<std::shared_ptr<Progress>, uint64_t>> ends;

  void add(const std::shared_ptr<Progress>& progress) {
    ends.emplace_back(progress, progress->queued);
  }
  bool is_past() const {
    for (auto& end : ends)
      if (end.first->ended < end.second) return false;
    return true;
  }
};

struct Job {
  Mark after;
  std::function<void()> work;
};

struct Queue {
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  std::deque<Job> jobs;
  bool held = false;
  bool ended = false;
};

/* A function's misbehaviour. */
struct Failure {
  std::string function;
  long nth = 0;
  int code = 0;
  long seen = 0;
};

struct Allocation {
  size_t size;
  /* Where the CPU reaches the bytes. */
  char* bytes;
  bool of_device;
  int device;
  int file;
  /* Where a device sees registered memory of the host; 0: nowhere. */
  uintptr_t seen = 0;
  /* Size of the mappings that it consists of; 0: it is one. */
  size_t mapping = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_lazy = false;
  int version = 13000;
  bool is_started = false;
  long waiting = 0;
  std::map<std::string, long> waiting_in;
  std::map<std::string, long> calls;
  std::vector<StandInCall> log;
  std::set<unsigned> hidden;
  std::map<int, int> attributes = {{116, 1}, {117, 1}, {118, 0}, {124, 0}};
  std::set<std::string> skipped;
  Failure failure;
  const char* failed = "";
  /* Counts down the calls that are left of a context that is to be lost; the code it is lost with.
   */
  long until_loss = 0;
  int loss = 0;
  long copies = 0;
  std::set<CUcontext> contexts;
  std::set<CUstream> streams;
  std::set<CUevent> events;
  std::set<CUmodule> modules;
  std::map<uintptr_t, Allocation> memory;
  /* Registered memory of the host by where a device sees it. */
  std::map<uintptr_t, uintptr_t> seen;
  CUcontext primary[2] = {nullptr, nullptr};
  int primary_users[2] = {0, 0};
};

/* Never destroyed: threads of streams may outlive main. */
inline State& state() {
  static State& it = *new State;
  return it;
}

/* How this thread meets captures of others: 0 global, 2 relaxed. */
inline thread_local int t_capture_mode = 0;

/* Whether calls of this thread are a test's engine's own. */
inline thread_local bool t_is_exempt = false;

inline size_t pages(size_t size) { return (size + 4095) & ~size_t{4095}; }

/* The allocation that holds an address, or nullptr. */
inline const Allocation* find_memory(uintptr_t address, uintptr_t* start) {
  auto& memory = state().memory;
  auto it = memory.upper_bound(address);
  if (it == memory.begin()) return nullptr;
  --it;
  *start = it->first;
  return address - it->first < it->second.size ? &it->second : nullptr;
}

/* Where the CPU reaches a range that lies in one allocation, or nullptr. */
inline char* bytes_of(CUdeviceptr address, size_t size, const Allocation** found) {
  uintptr_t start = 0;
  auto memory = find_memory(address, &start);
  if (memory == nullptr || size > memory->size - (address - start)) return nullptr;
  *found = memory;
  return memory->bytes + (address - start);
}

/* The same for what a kernel on this device sees: its memory, and the host's where it sees that. */
inline char* bytes_seen(CUdeviceptr address, size_t size, int device, const Allocation** found) {
  if (auto bytes = bytes_of(address, size, found))
    return (*found)->of_device && (*found)->device == device ? bytes : nullptr;
  auto& seen = state().seen;
  auto it = seen.upper_bound(address);
  if (it == seen.begin()) return nullptr;
  --it;
  return bytes_of(it->second + (address - it->first), size, found);
}

/* Until `is_true`; the streams run meanwhile. */
inline void wait(Lock& lock, const char* function, const std::function<bool()>& is_true) {
  auto& all = state();
  ++all.waiting;
  ++all.waiting_in[function];
  all.changed.notify_all();
  all.changed.wait(lock, is_true);
  --all.waiting;
  --all.waiting_in[function];
}

/* The thread of a stream. */
inline void serve(const std::shared_ptr<Queue>& queue) {
  auto& all = state();
  Lock lock(all.mutex);
  for (;;) {
    auto runs = [&] {
      return !queue->jobs.empty() && !queue->held && (!all.is_lazy || all.waiting > 0) &&
             queue->jobs.front().after.is_past();
    };
    all.changed.wait(lock, [&] { return runs() || (queue->ended && queue->jobs.empty()); });
    if (queue->jobs.empty()) return;
    auto work = std::move(queue->jobs.front().work);
    queue->jobs.pop_front();
    lock.unlock();
    if (work) work();
    lock.lock();
    ++queue->progress->ended;
    all.changed.notify_all();
  }
}

}  // namespace stand_in

struct CUctx_st {
  int device;
  CUstream legacy;
  /* What every call answers; 0: it works. */
  int lost = 0;
};

struct CUstream_st {
  CUcontext context;
  bool blocking;
  bool captures = false;
  bool is_spoilt = false;
  std::shared_ptr<stand_in::Queue> queue = std::make_shared<stand_in::Queue>();
};

struct CUmod_st {
  CUcontext context;
};

struct CUevent_st {
  CUcontext context;
  stand_in::Mark recorded;
};

namespace stand_in {

inline CUstream open_stream(CUcontext context, bool blocking) {
  auto stream = new CUstream_st{context, blocking};
  /* Ends by itself when its stream was destroyed and has no work. */
  std::thread(serve, stream->queue).detach();
  return stream;
}

/* Ends a context. Under the lock. */
inline void close_context(CUcontext context) {
  state().contexts.erase(context);
  if (auto legacy = context->legacy) {
    legacy->queue->ended = true;
    state().changed.notify_all();
    delete legacy;
  }
  delete context;
}

/* Whether a context's work is done: not once it is lost or gone. Not under the lock. */
inline bool works(CUcontext context) {
  Lock lock(state().mutex);
  return state().contexts.count(context) != 0 && context->lost == 0;
}

/* Puts work on a stream, behind `after` too. Under the lock. */
inline void push(CUstream stream, Mark after, std::function<void()> work) {
  auto& all = state();
  /* The legacy stream waits for all blocking ones of its context, and they for it. */
  auto legacy = stream->context->legacy;
  if (stream == legacy) {
    for (auto other : all.streams)
      if (other->context == stream->context && other->blocking) after.add(other->queue->progress);
  } else if (stream->blocking && legacy != nullptr) {
    after.add(legacy->queue->progress);
  }
  ++stream->queue->progress->queued;
  stream->queue->jobs.push_back({std::move(after), std::move(work)});
  all.changed.notify_all();
}

}  // namespace stand_in

#endif
