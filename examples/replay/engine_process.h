// An engine of the exact mode, in this process or in one of its own.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_ENGINE_PROCESS_H_
#define KVBRIDGE_EXAMPLES_REPLAY_ENGINE_PROCESS_H_

#include <cstddef>
#include <memory>

#include "../engine/engine.h"
#include "runs.h"

namespace replay {

// Serves requests of one trace, one at a time.
class Runner {
 public:
  virtual ~Runner() = default;
  // Request number `index`, alone, until its saves are reported.
  virtual miniature::Outcome Run(size_t index) = 0;
  // Adds what the engine counted, and its phases.
  virtual void Count(Result* result) = 0;
  virtual void Shutdown() = 0;
};

std::unique_ptr<Runner> RunHere(const Options& options, const Trace& trace,
                                const miniature::EngineOptions& shape);
// The engine's ranks but the first are processes too. Make all of them before this process opens a
// pool.
std::unique_ptr<Runner> RunApart(const Options& options, const Trace& trace,
                                 const miniature::EngineOptions& shape);

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_ENGINE_PROCESS_H_
