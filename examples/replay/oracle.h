// What an unbounded prefix pool of whole blocks serves of a trace, computed without engine or pool.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_ORACLE_H_
#define KVBRIDGE_EXAMPLES_REPLAY_ORACLE_H_

#include <cstdint>

#include "trace.h"

namespace replay {

struct Ideal {
  uint64_t hit_blocks = 0;
  uint64_t saved_blocks = 0;  // distinct
};

// Requests run one after another. Each is served its longest run of leading blocks that were
// published before, leaving at least one prompt token to compute, and then publishes all whole
// blocks of its prompt; with a lookahead only those whose lookahead lies inside the prompt.
Ideal IdealReuse(const Trace& trace, uint32_t tokens_per_block, uint32_t lookahead);

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_ORACLE_H_
