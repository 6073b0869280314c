// The command line of the replay.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_OPTIONS_H_
#define KVBRIDGE_EXAMPLES_REPLAY_OPTIONS_H_

#include <cstdint>
#include <stdexcept>
#include <string>

namespace replay {

struct Options {
  uint64_t requests = 0;  // 0: all of a given trace, 300 of a generated one
  uint32_t engines = 2;
  uint32_t block = 0;  // 0: 512 in the exact mode, 64 in the concurrent one
  uint32_t lookahead = 0;
  bool concurrent = false;
  std::string pool_bytes = "4GiB";
  std::string store = "embedded";
  std::string master;  // host:port, for pools that have one
  std::string keys = "kvb1";
  bool processes = false;
  std::string peer;  // a command
  std::string json_path;
  uint64_t seed = 1;
  uint32_t tp = 1;
  bool adp = false;
  bool async_load = false;
  uint64_t explain = 0;  // number of a request, from 1
  uint32_t groups = 0;   // 0: 1 in the exact mode, 2 in the concurrent one
  std::string generate_path;
  std::string trace_path;
  bool help = false;
};

// A mistake of the caller: shown with a hint at --help, without more ado.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

Options ParseOptions(int argc, char** argv);
extern const char kHelp[];

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_OPTIONS_H_
