// Progress, the table and the JSON file.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_REPORT_H_
#define KVBRIDGE_EXAMPLES_REPLAY_REPORT_H_

#include <kvbridge/kvbridge.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../engine/types.h"
#include "options.h"
#include "oracle.h"

namespace replay {

struct Result {
  miniature::Counters counters;
  miniature::PhaseSeconds phases{};
  kvb_stats stats{};
  uint64_t saved_blocks = 0;  // distinct prompt blocks
  uint64_t evicted_objects = 0;
  uint64_t refused_puts = 0;
  std::optional<Ideal> expected;          // where the figures must be exact
  std::optional<uint64_t> wrong_outputs;  // concurrent mode
  double seconds = 0;
  double seconds_without_pool = 0;
  std::string explanation;            // of the request that was asked for
  std::vector<std::string> failures;  // why the run does not count as good

  void Add(const std::vector<kvb_stats>& workers);
};

// One line on stderr, rewritten on a terminal, else every ten per cent.
class Progress {
 public:
  Progress(std::string what, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Show(uint64_t done, const std::string& details);

 private:
  std::string what_;
  uint64_t total_;
  bool terminal_;
  uint64_t next_percent_ = 10;
  double last_shown_ = 0;
  bool line_open_ = false;
};

void PrintTable(const Options& options, const Result& result);
void WriteJson(const Options& options, const Result& result);

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_REPORT_H_
