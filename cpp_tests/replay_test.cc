/* The replay: traces, the oracle, the exact mode, the program. */
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <tuple>

#include "channel.h"
#include "options.h"
#include "oracle.h"
#include "runs.h"
#include "testing.h"
#include "trace.h"

using replay::IdealReuse;
using replay::Options;
using replay::ParseOptions;
using replay::Trace;
using replay::TraceRequest;

namespace {

std::string temporary(const std::string& name) {
  return testing::TempDir() + "/kvbridge_" + std::to_string(getpid()) + "_" + name;
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/* A file that is gone at the end of the test. */
struct File {
  explicit File(const std::string& name, const std::string& content = "") : path(temporary(name)) {
    std::ofstream(path) << content;
  }
  ~File() { std::remove(path.c_str()); }
  std::string path;
};

std::string text_of(const Trace& trace) {
  File file("text.jsonl");
  replay::WriteTrace(file.path, trace);
  return read(file.path);
}

TraceRequest request(uint64_t length, std::vector<uint32_t> ids) {
  TraceRequest it;
  it.input_length = length;
  it.output_length = 1;
  it.hash_ids = std::move(ids);
  return it;
}

void expect_ideal(const Trace& trace, uint32_t block, uint32_t lookahead, uint64_t hits,
                  uint64_t saved) {
  auto ideal = IdealReuse(trace, block, lookahead);
  EXPECT_EQ(ideal.hit_blocks, hits) << "block " << block << ", lookahead " << lookahead;
  EXPECT_EQ(ideal.saved_blocks, saved) << "block " << block << ", lookahead " << lookahead;
}

Options parse(std::vector<std::string> words) {
  words.insert(words.begin(), "replay");
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  return ParseOptions(static_cast<int>(arguments.size()), arguments.data());
}

/* Runs the program; answers its exit status and what it said. */
struct Run {
  int status = -1;
  std::string out, err;
};
Run run(const std::string& arguments) {
  File out("out"), err("err");
  int status = std::system((std::string("\"") + REPLAY_PROGRAM + "\" " + arguments + " > \"" +
                            out.path + "\" 2> \"" + err.path + "\"")
                               .c_str());
  Run it;
  if (WIFEXITED(status)) it.status = WEXITSTATUS(status);
  it.out = read(out.path);
  it.err = read(err.path);
  return it;
}

/* The value of a key in the flat JSON object that the program writes. */
std::string value(const std::string& json, const std::string& key) {
  auto at = json.find("\n  \"" + key + "\": ");
  if (at == std::string::npos) return "(no " + key + ")";
  at = json.find(": ", at) + 2;
  return json.substr(at, json.find_first_of(",\n", at) - at);
}

}  // namespace

/* ---- traces ---- */

TEST(Trace, IsTheSameForASeed) {
  EXPECT_EQ(text_of(replay::GenerateTrace(1, 200)), text_of(replay::GenerateTrace(1, 200)));
  EXPECT_NE(text_of(replay::GenerateTrace(1, 200)), text_of(replay::GenerateTrace(2, 200)));
  /* Longer traces begin as shorter ones do. */
  auto whole = replay::GenerateTrace(3, 200);
  whole.resize(50);
  EXPECT_EQ(text_of(whole), text_of(replay::GenerateTrace(3, 50)));
}

TEST(Trace, GeneratedOnesAreWholeAndHaveReuse) {
  auto trace = replay::GenerateTrace(5, 300);
  ASSERT_EQ(trace.size(), 300u);
  uint64_t before = 0;
  for (const auto& it : trace) {
    EXPECT_GT(it.input_length, 0u);
    EXPECT_GT(it.output_length, 0u);
    EXPECT_EQ(it.hash_ids.size(), (it.input_length + 511) / 512);
    EXPECT_GE(it.timestamp, before);
    before = it.timestamp;
  }
  auto ideal = IdealReuse(trace, 512, 0);
  EXPECT_GT(ideal.hit_blocks, 300u);
  EXPECT_GT(ideal.saved_blocks, 300u);
}

TEST(Trace, PlainAndGzipReadAlike) {
  auto trace = replay::GenerateTrace(7, 100);
  auto text = text_of(trace);
  File plain("plain.jsonl", text), packed("packed.jsonl.gz");
  auto* out = gzopen(packed.path.c_str(), "wb");
  ASSERT_EQ(gzwrite(out, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  ASSERT_EQ(gzclose(out), Z_OK);
  EXPECT_LT(read(packed.path).size(), text.size() / 2);
  EXPECT_EQ(text_of(replay::ReadTrace(plain.path, 0)), text);
  EXPECT_EQ(text_of(replay::ReadTrace(packed.path, 0)), text);
  EXPECT_EQ(replay::ReadTrace(packed.path, 30).size(), 30u);
  EXPECT_EQ(replay::ReadTrace(plain.path, 1000).size(), 100u);

  auto half = read(packed.path);
  File broken("broken.jsonl.gz", half.substr(0, half.size() / 2));
  try {
    replay::ReadTrace(broken.path, 0);
    ADD_FAILURE() << "half a file was read";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(broken.path), std::string::npos) << error.what();
  }
}

TEST(Trace, TakesFieldsInAnyOrderAndIgnoresOthers) {
  File file("order.jsonl",
            "\n{\"hash_ids\":[3 , 4],\"output_length\":2,\"session\":\"a\",\"weight\":0.5,"
            "\"input_length\":600}\r\n\n");
  auto trace = replay::ReadTrace(file.path, 0);
  ASSERT_EQ(trace.size(), 1u);
  EXPECT_EQ(trace[0].input_length, 600u);
  EXPECT_EQ(trace[0].output_length, 2u);
  EXPECT_EQ(trace[0].hash_ids, (std::vector<uint32_t>{3, 4}));
  auto tokens = replay::PromptTokens(trace[0]);
  ASSERT_EQ(tokens.size(), 600u);
  EXPECT_EQ(tokens[0], 3 * 512);
  EXPECT_EQ(tokens[511], 3 * 512 + 511);
  EXPECT_EQ(tokens[599], 4 * 512 + 87);
}

TEST(Trace, MalformedOnesAreRefusedByFileAndLine) {
  const std::string good = R"({"input_length": 5, "output_length": 1, "hash_ids": [1]})";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"no json", "expected {"},
      {"{", "expected \""},
      {"{\"input_length", "a name does not end"},
      {R"({"input_length": 5, "output_length": 1})", "is missing"},
      {R"({"input_length": 5, "hash_ids": [1]})", "is missing"},
      {R"({"output_length": 1, "hash_ids": [1]})", "is missing"},
      {R"({"input_length": 0, "output_length": 1, "hash_ids": [1]})", "input_length is 0"},
      {R"({"input_length": -5, "output_length": 1, "hash_ids": [1]})", "expected a number"},
      {R"({"input_length": 5.5, "output_length": 1, "hash_ids": [1]})", "expected , or }"},
      {R"({"input_length": "5", "output_length": 1, "hash_ids": [1]})", "expected a number"},
      {R"({"input_length": 99999999999, "output_length": 1, "hash_ids": [1]})", "up to"},
      {R"({"input_length": 513, "output_length": 1, "hash_ids": [1]})", "too few blocks"},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": []})", "too few blocks"},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": 1})", "expected ["},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": [1 2]})", "in hash_ids"},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": [1,]})", "expected a number"},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": [1],})", "expected \""},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": [9999999999]})", "up to"},
      {R"({"input_length": 5, "output_length": 1, "hash_ids": [1])", "expected , or }"},
      {good + " x", "something follows"},
  };
  for (const auto& [line, part] : wrong) {
    File file("wrong.jsonl", good + "\n" + line + "\n");
    try {
      replay::ReadTrace(file.path, 0);
      ADD_FAILURE() << "was read: " << line;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(file.path + ":2: "), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks " << part << "\nfor " << line;
    }
    EXPECT_EQ(replay::ReadTrace(file.path, 1).size(), 1u) << "what is not asked for is not read";
  }
  File empty("empty.jsonl", "\n\n");
  for (const auto& path : {empty.path, temporary("not_there.jsonl")}) {
    try {
      replay::ReadTrace(path, 0);
      ADD_FAILURE() << path;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

/* ---- the oracle, against what was counted by hand ---- */

TEST(Oracle, CountsWholeBlocksAndLeavesATokenToCompute) {
  const Trace trace = {request(1536, {1, 2, 3}), request(1536, {1, 2, 3}),
                       request(1300, {1, 2, 9})};
  /* 512: the second is served 2 (its last block is needed), the third 2. */
  expect_ideal(trace, 512, 0, 2 + 2, 3);
  /* 256: 5 of 6; the third's first 4, its fifth is new. */
  expect_ideal(trace, 256, 0, 5 + 4, 6 + 1);
  /* 1024: 1; 1. */
  expect_ideal(trace, 1024, 0, 1 + 1, 1);
  expect_ideal(trace, 2048, 0, 0, 0);
}

TEST(Oracle, LookaheadIsPartOfABlock) {
  const Trace trace = {request(1536, {1, 2, 3}), request(1536, {1, 2, 3}),
                       request(1300, {1, 2, 9})};
  /* The first two have 2 blocks each; the third's second block looks ahead at another token. */
  expect_ideal(trace, 512, 1, 2 + 1, 2 + 1);
  /* With 512 tokens of lookahead the third has 1 block, which sees tokens of ids 1 and 2 alone. */
  expect_ideal(trace, 512, 512, 2 + 1, 2);
  expect_ideal({request(512, {1}), request(513, {1, 2}), request(513, {1, 2})}, 512, 1, 1, 1);
  expect_ideal({request(1, {1})}, 512, 64, 0, 0);
}

TEST(Oracle, PrefixesMatchFromTheStartOnly) {
  expect_ideal({request(1024, {1, 2}), request(1536, {2, 1, 5}), request(1536, {1, 5, 2})}, 512, 0,
               1, 2 + 3 + 2);
  expect_ideal({request(512, {1}), request(512, {1}), request(513, {1, 1})}, 512, 0, 1, 1);
  /* A block twice in one prompt is two blocks, since what is before them differs. */
  expect_ideal({request(1025, {1, 1, 1}), request(1025, {1, 1, 1})}, 512, 0, 2, 2);
}

TEST(Oracle, BlockSizesThatDoNotDivideIds) {
  /* 700 tokens in common: 7 blocks of 100, and the eighth differs. */
  Trace trace = {request(1000, {1, 2}), request(1024, {1, 2})};
  expect_ideal(trace, 100, 0, 10, 10);
  expect_ideal(trace, 1000, 0, 1, 1);
  trace = {request(700, {1, 2}), request(1000, {1, 2}), request(1000, {1, 3})};
  expect_ideal(trace, 100, 0, 7 + 5, 10 + 5);
}

/* ---- the exact mode ---- */

class Exact
    : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, uint32_t, std::string, bool>> {};

TEST_P(Exact, FiguresAreTheOracles) {
  const auto& [block, lookahead, groups, ranks, async_load] = GetParam();
  Options options;
  options.block = block;
  options.lookahead = lookahead;
  options.groups = groups;
  options.tp = ranks == "Tp2" ? 2 : 1;
  options.adp = ranks == "Adp";
  options.async_load = async_load;
  options.engines = 2;
  options.pool_bytes = "256MiB";
  const auto trace = replay::GenerateTrace(100 * block + 10 * lookahead + groups, 14);
  const auto result = replay::RunExact(options, trace);
  for (const auto& failure : result.failures) ADD_FAILURE() << failure;
  ASSERT_TRUE(result.expected);
  const auto ideal = IdealReuse(trace, block, lookahead);
  EXPECT_EQ(result.counters.hit_blocks, ideal.hit_blocks);
  EXPECT_EQ(result.saved_blocks, ideal.saved_blocks);
  EXPECT_GT(ideal.hit_blocks, 0u);
  const uint64_t pages = uint64_t{groups} * options.tp;
  EXPECT_EQ(result.stats.loaded_pages, ideal.hit_blocks * pages);
  if (lookahead > 0 || options.adp) {
    EXPECT_EQ(result.stats.saved_pages, ideal.saved_blocks * pages);
  } else {
    /* Engines that decode publish what they generate, too. */
    EXPECT_GE(result.stats.saved_pages, ideal.saved_blocks * pages);
  }
  EXPECT_EQ(result.counters.compared_pages, ideal.hit_blocks * pages);
  EXPECT_EQ(result.counters.wrong_pages, 0u);
  EXPECT_EQ(result.counters.touched_pages, 0u);
  EXPECT_EQ(result.counters.parked > 0, async_load);
  EXPECT_EQ(result.counters.failed_loads, 0u);
  EXPECT_EQ(result.counters.requests, trace.size());
}

INSTANTIATE_TEST_SUITE_P(Shapes, Exact,
                         testing::Combine(testing::Values(16u, 64u, 512u),
                                          testing::Values(0u, 1u, 2u), testing::Values(1u, 3u),
                                          testing::Values(std::string("Tp1"), std::string("Tp2"),
                                                          std::string("Adp")),
                                          testing::Bool()),
                         [](const auto& it) {
                           return "Block" + std::to_string(std::get<0>(it.param)) + "Lookahead" +
                                  std::to_string(std::get<1>(it.param)) + "Groups" +
                                  std::to_string(std::get<2>(it.param)) + std::get<3>(it.param) +
                                  (std::get<4>(it.param) ? "Async" : "");
                         });

TEST(ExactMode, SaysWhatAPoolThatIsTooSmallDid) {
  Options options;
  options.block = 64;
  options.groups = 1;
  options.pool_bytes = "64KiB";
  const auto result = replay::RunExact(options, replay::GenerateTrace(1, 20));
  EXPECT_FALSE(result.expected) << "no exact figures";
  EXPECT_GT(result.evicted_objects + result.refused_puts, 0u);
  EXPECT_EQ(result.counters.wrong_pages, 0u);
  for (const auto& failure : result.failures) ADD_FAILURE() << failure;
}

/* ---- the command line and the program ---- */

TEST(Options, AreReadInEitherSpelling) {
  auto options = parse({"--requests=12", "--engines", "3", "--block", "128", "--lookahead", "2",
                        "--pool-bytes", "1.5 GiB", "--seed=9", "--tp", "4", "--groups=3", "--async",
                        "--json", "out.json", "trace.jsonl"});
  EXPECT_EQ(options.requests, 12u);
  EXPECT_EQ(options.engines, 3u);
  EXPECT_EQ(options.block, 128u);
  EXPECT_EQ(options.lookahead, 2u);
  EXPECT_EQ(options.pool_bytes, "1.5 GiB");
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(options.tp, 4u);
  EXPECT_EQ(options.groups, 3u);
  EXPECT_TRUE(options.async_load);
  EXPECT_FALSE(parse({}).async_load);
  EXPECT_EQ(options.json_path, "out.json");
  EXPECT_EQ(options.trace_path, "trace.jsonl");
  EXPECT_FALSE(options.concurrent);
  EXPECT_EQ(parse({}).block, 512u);
  EXPECT_EQ(parse({"--concurrent"}).block, 64u);
  EXPECT_EQ(parse({"--concurrent"}).groups, 2u);
  EXPECT_EQ(parse({"--", "--odd"}).trace_path, "--odd");
}

TEST(Options, WrongOnesAreRefusedByName) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--requets", "5"}, "--requets"},
      {{"-x"}, "-x"},
      {{"--requests"}, "--requests needs"},
      {{"--requests", "0"}, "\"0\""},
      {{"--requests", "5x"}, "\"5x\""},
      {{"--requests="}, "\"\""},
      {{"--engines", "-1"}, "--engines"},
      {{"--block", "99999999999"}, "--block"},
      {{"--concurrent=1"}, "takes no value"},
      {{"--groups", "4"}, "1 to 3"},
      {{"--adp", "2", "--tp", "2"}, "exclude"},
      {{"--adp", "1"}, "from 2 to 64"},
      {{"--processes"}, "pool between processes"},
      {{"--processes", "--store", "mooncake", "--concurrent"}, "--concurrent"},
      {{"--peer", "true"}, "--keys trtllm"},
      {{"--keys", "sha256"}, "kvb1 or trtllm"},
      {{"a", "b"}, "more than one trace"},
      {{"--pool-bytes", "1\""}, "character"},
      {{"--store", "a\nb"}, "character"},
      {{"--generate", "x", "y"}, "TRACE"},
      {{"--generate="}, "file name"},
      {{""}, "empty"},
  };
  for (const auto& [words, part] : wrong) {
    try {
      parse(words);
      ADD_FAILURE() << "was taken: " << words.front();
    } catch (const replay::UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks " << part;
    }
  }
}

/* What the processes of a replay say to each other. */
TEST(Processes, AnswerThrowAndEnd) {
  using miniature::Message;
  miniature::Process process([]() -> miniature::Process::Answer {
    return [calls = 0](Message question) mutable {
      const auto numbers = question.TakeAll<std::vector<int32_t>>();
      if (numbers.empty()) throw std::runtime_error("no numbers");
      Message reply;
      reply.Put(++calls).Put(getpid()).PutAll(
          std::vector<int32_t>{numbers.rbegin(), numbers.rend()});
      return reply;
    };
  });
  auto ask = [&](const std::vector<int32_t>& numbers) {
    return process.Ask(Message().PutAll(numbers));
  };
  auto first = ask({1, 2, 3});
  EXPECT_EQ(first.Take<int>(), 1);
  EXPECT_NE(first.Take<pid_t>(), getpid());
  EXPECT_EQ(first.TakeAll<std::vector<int32_t>>(), (std::vector<int32_t>{3, 2, 1}));
  EXPECT_THROW(first.Take<uint8_t>(), std::runtime_error);
  try {
    ask({});
    ADD_FAILURE() << "it was answered";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "no numbers");
  }
  /* Larger than a socket takes at once. */
  const std::vector<int32_t> many(1 << 20, 7);
  auto second = ask(many);
  EXPECT_EQ(second.Take<int>(), 2);
  second.Take<pid_t>();
  EXPECT_EQ(second.TakeAll<std::vector<int32_t>>(), many);
}

TEST(Processes, ThatCannotBeginSayWhy) {
  miniature::Process process(
      []() -> miniature::Process::Answer { throw std::runtime_error("no memory today"); });
  miniature::Process other([]() -> miniature::Process::Answer {
    return [](miniature::Message) -> miniature::Message { _exit(3); };
  });
  for (auto [which, text] : {std::pair{&process, "no memory today"},
                             std::pair{&other, "a process of an engine ended"}}) {
    try {
      which->Ask({});
      ADD_FAILURE() << "it was answered";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), text);
    }
  }
}

TEST(Program, WritesEveryKeyOfItsJson) {
  for (const std::string mode : {"--block 64", "--concurrent --block 64 --groups 3",
                                 "--concurrent --block 64 --groups 3 --async --tp 2"}) {
    File json("result.json");
    auto it = run("--requests 12 --pool-bytes 256MiB " + mode + " --json \"" + json.path + "\"");
    EXPECT_EQ(it.status, 0) << it.out << it.err;
    const auto text = read(json.path);
    for (const char* key : {"requests", "prompt_tokens", "hit_blocks", "hit_tokens",
                            "local_hit_tokens", "saved_blocks", "saved_pages", "loaded_pages",
                            "wrong_pages", "failed_loads", "touched_pages", "parked"}) {
      const auto number = value(text, key);
      EXPECT_EQ(number.find_first_not_of("0123456789"), std::string::npos) << key << number;
    }
    EXPECT_GT(std::stod(value(text, "seconds")), 0.0);
    EXPECT_EQ(value(text, "requests"), "12");
    EXPECT_EQ(value(text, "wrong_pages"), "0");
    EXPECT_EQ(value(text, "failed_loads"), "0");
    EXPECT_EQ(value(text, "passed"), "true");
    EXPECT_EQ(std::stoull(value(text, "hit_tokens")), 64 * std::stoull(value(text, "hit_blocks")));
    EXPECT_GT(std::stoull(value(text, "saved_pages")), 0u);
    EXPECT_EQ(text.front(), '{');
    EXPECT_EQ(text.substr(text.size() - 2), "}\n");
  }
}

TEST(Program, ReplaysWhatItGenerated) {
  File trace("generated.jsonl"), one("one.json"), two("two.json");
  EXPECT_EQ(run("--requests 10 --seed 4 --generate \"" + trace.path + "\"").status, 0);
  EXPECT_EQ(read(trace.path), text_of(replay::GenerateTrace(4, 10)));
  const std::string rest = " --pool-bytes 64MiB --json \"";
  EXPECT_EQ(run("\"" + trace.path + "\"" + rest + one.path + "\"").status, 0);
  EXPECT_EQ(run("--requests 10 --seed 4" + rest + two.path + "\"").status, 0);
  for (const char* key : {"prompt_tokens", "hit_blocks", "saved_blocks", "saved_bytes"}) {
    EXPECT_EQ(value(read(one.path), key), value(read(two.path), key)) << key;
  }
  EXPECT_GT(std::stoull(value(read(one.path), "saved_blocks")), 0u);
}

TEST(Program, ExplainsTheOfferOfOneRequest) {
  const std::string base = "--requests 12 --seed 4 --pool-bytes 256MiB --block 64";
  EXPECT_EQ(run(base).out.find("\nrequest "), std::string::npos) << "nobody asked";
  /* What the first one has is stored when it comes again, but for the block of its last token. */
  File twice("twice.jsonl");
  {
    std::ofstream out(twice.path);
    for (int i = 0; i < 2; ++i) {
      out << R"({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]})"
          << "\n";
    }
  }
  for (const auto& [number, offer] :
       {std::pair{"1", "offered: 0 tokens: block 0 in layer group 0, rank 0 of 1 is absent"},
        std::pair{"2", "offered: 960 tokens"}}) {
    auto it = run("\"" + twice.path + "\" --pool-bytes 64MiB --block 64 --explain " + number);
    EXPECT_EQ(it.status, 0) << it.err;
    const auto said = it.out.find(std::string("\nrequest ") + number + ": a prompt of 1024 tokens");
    ASSERT_NE(said, std::string::npos) << it.out;
    EXPECT_NE(it.out.find(offer, said), std::string::npos) << it.out;
  }
}

TEST(Program, SaysWhatIsWrongAndFails) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"--unknown", "unknown option --unknown"},
      {"--block many", "\"many\""},
      {"/not/there.jsonl", "/not/there.jsonl"},
      {"--requests 1 --pool-bytes 5GB", "5GB"},
      {"--requests 1 --store nowhere", "nowhere"},
      {"--requests 1 --json /not/there.json", "/not/there.json"},
      {"--requests 1 --generate /not/there.jsonl", "/not/there.jsonl"},
  };
  for (const auto& [arguments, part] : wrong) {
    auto it = run(arguments);
    EXPECT_EQ(it.status, 2) << arguments;
    EXPECT_NE(it.err.find(part), std::string::npos) << it.err;
    EXPECT_NE(it.err.find("replay: "), std::string::npos) << it.err;
  }
  auto help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--requests"), std::string::npos);
  EXPECT_EQ(help.err, "");
}
