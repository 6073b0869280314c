#include "rank.h"

#include <stdexcept>
#include <utility>

#include "bridge.h"

namespace miniature {
namespace {

// The view that a call answers ends with the next call.
std::vector<uint64_t> Copied(const kvb::Ids& ids) { return {ids.begin(), ids.end()}; }

enum class Call : uint32_t {
  kPromptLookahead,
  kRegister,
  kUnregister,
  kBind,
  kStartLoad,
  kWaitForSave,
  kTakeFailedLoads,
  kGetFinished,
  kTakeFailedAsyncLoads,
  kStats,
  kShutdown,
};

Message Question(Call call) { return Message().Put(call); }

// In the rank's process. There are no streams over host memory.
Message Carry(Rank* rank, Message question) {
  Message reply;
  switch (question.Take<Call>()) {
    case Call::kPromptLookahead:
      reply.Put(rank->PromptLookahead());
      break;
    case Call::kRegister:
      rank->Register();
      break;
    case Call::kUnregister:
      rank->Unregister();
      break;
    case Call::kBind:
      rank->Bind(question.TakeAll<std::vector<uint8_t>>(), nullptr);
      break;
    case Call::kStartLoad:
      rank->StartLoad(nullptr);
      break;
    case Call::kWaitForSave:
      rank->WaitForSave(nullptr);
      break;
    case Call::kTakeFailedLoads:
      reply.PutAll(rank->TakeFailedLoads());
      break;
    case Call::kGetFinished: {
      const auto finished = question.TakeAll<std::vector<uint64_t>>();
      const auto loading = question.TakeAll<std::vector<uint64_t>>();
      const Reported reported = rank->GetFinished(finished, loading);
      reply.PutAll(reported.saved).PutAll(reported.loaded);
      break;
    }
    case Call::kTakeFailedAsyncLoads:
      reply.PutAll(rank->TakeFailedAsyncLoads());
      break;
    case Call::kStats:
      reply.Put(rank->Stats());
      break;
    case Call::kShutdown:
      rank->Shutdown(question.Take<uint64_t>());
      break;
  }
  return reply;
}

kvb::Worker OpenWorker(const EngineOptions& options, uint32_t rank) {
  const kvb::Config config = kvb::Config::from_json(*options.config_json);
  const kvb_engine engine = DescribeEngine(options, rank);
  if (options.lent == nullptr) return kvb::Worker::open(config, engine);
  return kvb::Worker::open(config, engine, kvb::Store::open(config, engine, options.lent));
}

}  // namespace

LocalRank::LocalRank(const EngineOptions& options, uint32_t rank, DescribeMemory memory)
    : memory_(std::move(memory)), worker_(OpenWorker(options, rank)) {}

void LocalRank::BindBuilt(kvb::Metadata metadata, const kvb_fence* fence) {
  metadata_ = std::move(metadata);
  worker_.bind(metadata_, fence);
}

uint32_t LocalRank::PromptLookahead() { return worker_.declarations().prompt_lookahead; }
void LocalRank::Register() { worker_.register_layout(memory_()); }
void LocalRank::Unregister() { worker_.unregister_layout(); }
void LocalRank::Bind(const std::vector<uint8_t>& metadata, const kvb_fence* fence) {
  BindBuilt(kvb::Metadata::decode(metadata), fence);
}
void LocalRank::StartLoad(void* stream) { worker_.start_load(stream); }
void LocalRank::WaitForSave(void* stream) { worker_.wait_for_save(stream); }
std::vector<uint64_t> LocalRank::TakeFailedLoads() { return Copied(worker_.take_failed_loads()); }
Reported LocalRank::GetFinished(const std::vector<uint64_t>& finished_ids,
                                const std::vector<uint64_t>& loading_ids) {
  const kvb::Worker::Finished finished = worker_.get_finished(finished_ids, loading_ids);
  return {Copied(finished.saved), Copied(finished.loaded)};
}
std::vector<uint64_t> LocalRank::TakeFailedAsyncLoads() {
  return Copied(worker_.take_failed_async_loads());
}
kvb_stats LocalRank::Stats() { return worker_.stats(); }
void LocalRank::Shutdown(uint64_t deadline_ms) { worker_.shutdown(deadline_ms); }

RemoteRank::RemoteRank(const EngineOptions& options, uint32_t rank, DescribeMemory memory)
    : process_([&]() -> Process::Answer {
        const auto local = std::make_shared<LocalRank>(options, rank, memory);
        return [local](Message question) { return Carry(local.get(), std::move(question)); };
      }) {
  if (options.fences != Fences::kNone) {
    throw std::invalid_argument("a rank in a process of its own has no fences");
  }
}

uint32_t RemoteRank::PromptLookahead() {
  return process_.Ask(Question(Call::kPromptLookahead)).Take<uint32_t>();
}
void RemoteRank::Register() { process_.Ask(Question(Call::kRegister)); }
void RemoteRank::Unregister() { process_.Ask(Question(Call::kUnregister)); }
void RemoteRank::Bind(const std::vector<uint8_t>& metadata, const kvb_fence*) {
  process_.Ask(Question(Call::kBind).PutAll(metadata));
}
void RemoteRank::StartLoad(void*) { process_.Ask(Question(Call::kStartLoad)); }
void RemoteRank::WaitForSave(void*) { process_.Ask(Question(Call::kWaitForSave)); }
std::vector<uint64_t> RemoteRank::TakeFailedLoads() {
  return process_.Ask(Question(Call::kTakeFailedLoads)).TakeAll<std::vector<uint64_t>>();
}
Reported RemoteRank::GetFinished(const std::vector<uint64_t>& finished_ids,
                                 const std::vector<uint64_t>& loading_ids) {
  Message reply =
      process_.Ask(Question(Call::kGetFinished).PutAll(finished_ids).PutAll(loading_ids));
  Reported reported;
  reported.saved = reply.TakeAll<std::vector<uint64_t>>();
  reported.loaded = reply.TakeAll<std::vector<uint64_t>>();
  return reported;
}
std::vector<uint64_t> RemoteRank::TakeFailedAsyncLoads() {
  return process_.Ask(Question(Call::kTakeFailedAsyncLoads)).TakeAll<std::vector<uint64_t>>();
}
kvb_stats RemoteRank::Stats() { return process_.Ask(Question(Call::kStats)).Take<kvb_stats>(); }
void RemoteRank::Shutdown(uint64_t deadline_ms) {
  process_.Ask(Question(Call::kShutdown).Put(deadline_ms));
}

}  // namespace miniature
