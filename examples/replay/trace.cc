#include "trace.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace replay {
namespace {

// Tokens stay below the engine's sampled ones, which begin at 2^30.
constexpr uint64_t kMaxId = (uint64_t{1} << 30) / kTokensPerId - 1;

struct GzClose {
  void operator()(gzFile_s* file) const noexcept { gzclose(file); }
};

bool ReadLine(gzFile_s* file, const std::string& path, std::string* line) {
  line->clear();
  char buffer[65536];
  while (gzgets(file, buffer, sizeof buffer) != nullptr) {
    line->append(buffer);
    if (!line->empty() && line->back() == '\n') return true;
  }
  int error = 0;
  const char* text = gzerror(file, &error);
  if (error != Z_OK && error != Z_STREAM_END) {
    // zlib's own messages name the file already.
    throw std::runtime_error(error == Z_ERRNO ? path + ": " + std::strerror(errno) : text);
  }
  return !line->empty();
}

// The few shapes that a trace line has: a flat object of numbers and one list of numbers.
class LineParser {
 public:
  explicit LineParser(std::string_view text) : text_(text) {}

  TraceRequest Parse() {
    TraceRequest request;
    bool has_input = false;
    bool has_output = false;
    bool has_ids = false;
    Expect('{');
    do {
      const std::string_view key = Key();
      Expect(':');
      if (key == "hash_ids") {
        has_ids = true;
        Expect('[');
        if (!Accept(']')) {
          do {
            request.hash_ids.push_back(static_cast<uint32_t>(Number(kMaxId)));
          } while (Accept(','));
          if (!Accept(']')) Fail("expected , or ] in hash_ids");
        }
      } else if (key == "input_length") {
        has_input = true;
        request.input_length = Number(uint64_t{1} << 30);
      } else if (key == "output_length") {
        has_output = true;
        request.output_length = Number(uint64_t{1} << 30);
      } else if (key == "timestamp") {
        request.timestamp = Number(~uint64_t{0});
      } else {
        SkipValue();
      }
    } while (Accept(','));
    if (!Accept('}')) Fail("expected , or }");
    if (Peek() != '\0') Fail("something follows the object");
    if (!has_input || !has_output || !has_ids) {
      Fail("input_length, output_length or hash_ids is missing");
    }
    if (request.input_length == 0) Fail("input_length is 0");
    if (request.hash_ids.size() * kTokensPerId < request.input_length) {
      Fail("hash_ids names too few blocks for input_length");
    }
    return request;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const { throw std::runtime_error(what); }

  char Peek() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool Accept(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  void Expect(char c) {
    if (!Accept(c)) Fail(std::string("expected ") + c);
  }
  std::string_view Key() {
    Expect('"');
    const size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) Fail("a name does not end");
    const std::string_view key = text_.substr(at_, end - at_);
    at_ = end + 1;
    return key;
  }
  uint64_t Number(uint64_t high) {
    Peek();
    uint64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto parsed = std::from_chars(begin, text_.data() + text_.size(), value);
    if (parsed.ec != std::errc() || value > high)
      Fail("expected a number up to " + std::to_string(high));
    at_ += static_cast<size_t>(parsed.ptr - begin);
    return value;
  }
  void SkipValue() {
    if (Peek() == '"') {
      Key();
      return;
    }
    const size_t end = text_.find_first_of(",}", at_);
    if (end == std::string_view::npos) Fail("a value does not end");
    at_ = end;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Next() % (high - low + 1); }
  bool OneIn(uint64_t n) { return Next() % n == 0; }

 private:
  uint64_t state_;
};

struct Conversation {
  std::vector<uint32_t> blocks;  // whole blocks of its history
  uint64_t turns_left = 0;
};

}  // namespace

Trace ReadTrace(const std::string& path, uint64_t limit) {
  errno = 0;
  std::unique_ptr<gzFile_s, GzClose> file(gzopen(path.c_str(), "rb"));
  if (!file) throw std::runtime_error(path + ": " + std::strerror(errno != 0 ? errno : ENOMEM));
  gzbuffer(file.get(), 1 << 17);
  Trace trace;
  std::string line;
  for (uint64_t number = 1; limit == 0 || trace.size() < limit; ++number) {
    if (!ReadLine(file.get(), path, &line)) break;
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    try {
      trace.push_back(LineParser(line).Parse());
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  if (trace.empty()) throw std::runtime_error(path + ": no requests in it");
  return trace;
}

void WriteTrace(const std::string& path, const Trace& trace) {
  std::ofstream out(path);
  for (const TraceRequest& request : trace) {
    out << "{\"timestamp\": " << request.timestamp << ", \"input_length\": " << request.input_length
        << ", \"output_length\": " << request.output_length << ", \"hash_ids\": [";
    for (size_t i = 0; i < request.hash_ids.size(); ++i) {
      out << (i == 0 ? "" : ", ") << request.hash_ids[i];
    }
    out << "]}\n";
  }
  out.close();
  if (!out) throw std::runtime_error(path + ": cannot be written");
}

Trace GenerateTrace(uint64_t seed, size_t requests) {
  Random random(seed);
  uint32_t next_id = 0;
  const auto grow = [&](std::vector<uint32_t>* blocks, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) blocks->push_back(next_id++);
  };
  std::vector<std::vector<uint32_t>> system_prompts(4);
  for (auto& prompt : system_prompts) grow(&prompt, random.Between(0, 4));

  std::vector<Conversation> live(12);
  Trace trace;
  uint64_t now = 0;
  while (trace.size() < requests) {
    now += random.Between(0, 400);
    if (!trace.empty() && random.OneIn(25)) {
      // Somebody sends the same prompt again.
      trace.push_back(trace[random.Between(trace.size() - std::min<size_t>(trace.size(), 20),
                                           trace.size() - 1)]);
      trace.back().timestamp = now;
      continue;
    }
    Conversation& talk = live[random.Between(0, live.size() - 1)];
    if (talk.turns_left == 0) {
      talk.blocks = system_prompts[random.Between(0, system_prompts.size() - 1)];
      talk.turns_left = random.Between(1, 7);
    }
    --talk.turns_left;
    grow(&talk.blocks, random.Between(0, 5));  // the last answer and the new question
    TraceRequest request;
    request.timestamp = now;
    request.hash_ids = talk.blocks;
    request.input_length = talk.blocks.size() * kTokensPerId;
    if (request.input_length == 0 || !random.OneIn(8)) {
      // The last block is rarely whole; the next turn fills it with something of its own.
      request.hash_ids.push_back(next_id++);
      request.input_length += random.Between(1, kTokensPerId - 1);
    }
    request.output_length = random.Between(1, random.OneIn(4) ? 200 : 24);
    trace.push_back(std::move(request));
  }
  return trace;
}

std::vector<int32_t> PromptTokens(const TraceRequest& request) {
  std::vector<int32_t> tokens(request.input_length);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        static_cast<int32_t>(request.hash_ids[i / kTokensPerId] * kTokensPerId + i % kTokensPerId);
  }
  return tokens;
}

}  // namespace replay
