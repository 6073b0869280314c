#include "peer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "../engine/model.h"

namespace replay {
namespace {

using miniature::ComputedBlock;
using miniature::Outcome;

class Peer : public Runner {
 public:
  Peer(const Options& options, const Trace& trace, const miniature::EngineOptions& shape)
      : trace_(trace), shape_(shape) {
    // The shell sees the command as it was given; what stands behind it comes as arguments.
    const std::string command = options.peer + " \"$@\"";
    const std::string block = std::to_string(options.block);
    const std::string model = ModelKey(options);
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) Fail("a pipe to the peer");
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) Fail("a process for the peer");
    if (pid_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
      execl("/bin/sh", "sh", "-c", command.c_str(), "peer", options.master.c_str(), kNamespace,
            model.c_str(), block.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    prompts_ = fdopen(to[1], "w");
    answers_ = fdopen(from[0], "r");
    if (prompts_ == nullptr || answers_ == nullptr) Fail("a pipe to the peer");
    // A peer that ends early is an error of a write, not a signal.
    std::signal(SIGPIPE, SIG_IGN);
  }

  ~Peer() override { End(); }

  Outcome Run(size_t index) override {
    Outcome outcome;
    outcome.spec = BaseRequest(trace_, index);
    const std::vector<int32_t>& prompt = outcome.spec.prompt;
    for (size_t i = 0; i < prompt.size(); ++i) {
      std::fprintf(prompts_, "%s%" PRId32, i == 0 ? "" : " ", prompt[i]);
    }
    std::fputc('\n', prompts_);
    std::fflush(prompts_);
    uint64_t hits, blocks, wrong;
    if (std::fscanf(answers_, "%" SCNu64 "%" SCNu64 "%" SCNu64, &hits, &blocks, &wrong) != 3) {
      throw std::runtime_error("the peer gave no answer to request " + std::to_string(index + 1));
    }
    ++counters_.requests;
    counters_.prompt_tokens += prompt.size();
    counters_.hit_blocks += hits;
    counters_.compared_pages += hits;
    counters_.wrong_pages += wrong;
    std::vector<uint64_t> states(prompt.size());
    const miniature::TokenView view{prompt.data(), prompt.size(), 0};
    miniature::AdvanceStates(view, miniature::ScopeState(shape_.model_seed, outcome.spec), 0,
                             prompt.size(), states.data());
    for (uint64_t block = hits; block < blocks; ++block) {
      const uint64_t identity = states.at((block + 1) * shape_.tokens_per_block - 1);
      outcome.saved_blocks.push_back(ComputedBlock{static_cast<uint32_t>(block), identity});
    }
    return outcome;
  }

  void Count(Result* result) override { result->counters.Add(counters_); }

  void Shutdown() override {
    if (const int status = End(); status != 0) {
      throw std::runtime_error("the peer ended with status " + std::to_string(status));
    }
  }

 private:
  [[noreturn]] static void Fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  // It ends when there are no more prompts.
  int End() {
    if (pid_ < 0) return 0;
    if (prompts_ != nullptr) std::fclose(prompts_);
    if (answers_ != nullptr) std::fclose(answers_);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
    pid_ = -1;
    return status;
  }

  const Trace& trace_;
  const miniature::EngineOptions shape_;
  pid_t pid_ = -1;
  FILE* prompts_ = nullptr;
  FILE* answers_ = nullptr;
  miniature::Counters counters_;
};

}  // namespace

std::unique_ptr<Runner> RunPeer(const Options& options, const Trace& trace,
                                const miniature::EngineOptions& shape) {
  return std::make_unique<Peer>(options, trace, shape);
}

}  // namespace replay
