// Request traces: read, generated, written.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_TRACE_H_
#define KVBRIDGE_EXAMPLES_REPLAY_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace replay {

constexpr uint64_t kTokensPerId = 512;

struct TraceRequest {
  uint64_t timestamp = 0;  // milliseconds
  uint64_t input_length = 0;
  uint64_t output_length = 0;
  std::vector<uint32_t> hash_ids;  // one per 512 prompt tokens
};
using Trace = std::vector<TraceRequest>;

// Plain or gzip. At most `limit` requests, 0 = all. Throws std::runtime_error naming file and line.
Trace ReadTrace(const std::string& path, uint64_t limit);
void WriteTrace(const std::string& path, const Trace& trace);
// Conversations of several turns over shared system prompts, interleaved; the same for a seed.
Trace GenerateTrace(uint64_t seed, size_t requests);

// Token j of block id h is h * 512 + j.
std::vector<int32_t> PromptTokens(const TraceRequest& request);

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_TRACE_H_
