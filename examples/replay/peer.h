// A server of another make on the same pool: a program that is given prompts.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_PEER_H_
#define KVBRIDGE_EXAMPLES_REPLAY_PEER_H_

#include <memory>

#include "engine_process.h"

namespace replay {

// Runs `options.peer` by the shell, with the master, the namespace, the model key and the tokens
// per block behind it. Per request it reads a line with the prompt's tokens, and answers with a
// line of three numbers: blocks that the pool served, whole blocks of the prompt, wrong pages.
std::unique_ptr<Runner> RunPeer(const Options& options, const Trace& trace,
                                const miniature::EngineOptions& shape);

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_PEER_H_
