#include "engine_process.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../engine/channel.h"

namespace replay {
namespace {

using miniature::ComputedBlock;
using miniature::Engine;
using miniature::EngineOptions;
using miniature::Message;
using miniature::Outcome;
using miniature::Phase;
using miniature::PhaseTimer;
using miniature::Process;

class Here : public Runner {
 public:
  Here(const Options& options, const Trace& trace, const EngineOptions& shape)
      : options_(options), trace_(trace), engine_(shape) {}

  Outcome Run(size_t index) override {
    miniature::RequestSpec request = BaseRequest(trace_, index);
    request.explain = index + 1 == options_.explain;
    engine_.Submit(std::move(request));
    while (true) {
      const bool ran = engine_.RunPass();
      std::vector<Outcome> outcomes = engine_.TakeOutcomes();
      if (!outcomes.empty()) return std::move(outcomes.front());
      if (!ran) {
        PhaseTimer timer(&waited_, Phase::kSaveWait);
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }

  void Count(Result* result) override {
    result->counters.Add(engine_.counters());
    result->Add(engine_.Stats());
    for (size_t p = 0; p < miniature::kPhaseCount; ++p) {
      result->phases[p] += engine_.phases()[p] + waited_[p];
    }
  }

  void Shutdown() override { engine_.Shutdown(); }

 private:
  const Options& options_;
  const Trace& trace_;
  Engine engine_;
  miniature::PhaseSeconds waited_{};
};

enum class Call : uint32_t { kRun, kCount, kShutdown };

// In the engine's process.
Message Carry(Here* engine, Message question) {
  Message reply;
  switch (question.Take<Call>()) {
    case Call::kRun: {
      const Outcome outcome = engine->Run(question.Take<uint64_t>());
      reply.PutAll(outcome.saved_blocks).PutAll(outcome.explanation);
      break;
    }
    case Call::kCount: {
      Result result;
      engine->Count(&result);
      reply.Put(result.counters).Put(result.phases).Put(result.stats);
      break;
    }
    case Call::kShutdown:
      engine->Shutdown();
      break;
  }
  return reply;
}

class Apart : public Runner {
 public:
  Apart(const Options& options, const Trace& trace, const EngineOptions& shape)
      : trace_(trace), process_([&]() -> Process::Answer {
          EngineOptions apart = shape;
          apart.rank_processes = true;
          const auto engine = std::make_shared<Here>(options, trace, apart);
          return [engine](Message question) { return Carry(engine.get(), std::move(question)); };
        }) {}

  Outcome Run(size_t index) override {
    Message reply = process_.Ask(Message().Put(Call::kRun).Put<uint64_t>(index));
    Outcome outcome;
    outcome.spec = BaseRequest(trace_, index);
    outcome.saved_blocks = reply.TakeAll<std::vector<ComputedBlock>>();
    outcome.explanation = reply.TakeAll<std::string>();
    return outcome;
  }

  void Count(Result* result) override {
    Message reply = process_.Ask(Message().Put(Call::kCount));
    result->counters.Add(reply.Take<miniature::Counters>());
    const auto phases = reply.Take<miniature::PhaseSeconds>();
    for (size_t p = 0; p < miniature::kPhaseCount; ++p) result->phases[p] += phases[p];
    result->Add({reply.Take<kvb_stats>()});
  }

  void Shutdown() override { process_.Ask(Message().Put(Call::kShutdown)); }

 private:
  const Trace& trace_;
  Process process_;
};

}  // namespace

std::unique_ptr<Runner> RunHere(const Options& options, const Trace& trace,
                                const EngineOptions& shape) {
  return std::make_unique<Here>(options, trace, shape);
}

std::unique_ptr<Runner> RunApart(const Options& options, const Trace& trace,
                                 const EngineOptions& shape) {
  return std::make_unique<Apart>(options, trace, shape);
}

}  // namespace replay
