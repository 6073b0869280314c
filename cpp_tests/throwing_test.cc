/* Functions of the host that throw: what they throw ends in the library, and calls go on. */
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "rig.h"

namespace {

using namespace testing_rig;
using testing_kvb::expect_error;

void throw_text(void* context, int32_t, const char*, size_t, const char*, size_t) {
  ++*static_cast<std::atomic<int>*>(context);
  throw std::runtime_error("no disk for the log");
}

void throw_number(void* context, int32_t, const char*, size_t, const char*, size_t) {
  ++*static_cast<std::atomic<int>*>(context);
  throw 7;
}

/* Forgets what earlier tests threw. */
void hear_once() {
  kvb::set_log([](int32_t, std::string_view, std::string_view) {});
  Rig rig(json("throwing-before"));
  kvb::set_log(nullptr);
}

/* Serves prompts while every line is thrown at, also on the thread that saves. */
void serves(kvb_log_callback callback, const std::string& text) {
  std::atomic<int> lines{0};
  ASSERT_EQ(kvb_set_log(callback, &lines, KVB_LOG_TRACE), KVB_OK);
  {
    Rig rig(json("throwing"));
    EXPECT_GT(lines, 0);
    EXPECT_EQ(kvb::last_error(), "the log callback threw: " + text);
    EXPECT_EQ(rig.serve(1, counted(3 * T)), 0u);
    EXPECT_EQ(rig.serve(2, counted(3 * T)), 2u * T);
    /* The text of a call that fails is its own. */
    expect_error(KVB_INVALID_ARGUMENT, "kvb_worker_lookup: ", [&] {
      rig.worker.lookup({1, 2, 3});
    });
  }
  ASSERT_EQ(kvb_set_log(nullptr, nullptr, 0), KVB_OK);
}

TEST(Throwing, ALogCallbackThatThrowsLosesLinesAndNothingElse) {
  serves(throw_text, "no disk for the log");
}

TEST(Throwing, WhatIsThrownNeedNotBeAnException) {
  serves(throw_number, "something that is no std::exception");
}

TEST(Throwing, ALaterLineThatGetsThroughSaysHowManyWereLost) {
  hear_once();
  std::atomic<int> thrown{0};
  ASSERT_EQ(kvb_set_log(throw_text, &thrown, KVB_LOG_INFO), KVB_OK);
  { Rig rig(json("throwing-first")); }
  ASSERT_EQ(kvb_set_log(nullptr, nullptr, 0), KVB_OK);
  ASSERT_GT(thrown, 0);

  std::mutex mutex;
  std::vector<std::string> warnings;
  kvb::set_log([&](int32_t level, std::string_view, std::string_view line) {
    std::lock_guard<std::mutex> lock(mutex);
    if (level == KVB_LOG_WARN) warnings.emplace_back(line);
  });
  { Rig rig(json("throwing-second")); }
  kvb::set_log(nullptr);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "the log callback threw, so that " + std::to_string(thrown) +
                             " lines are lost; last: no disk for the log");
}

TEST(Throwing, ASinkOfTheCppLayerMayThrowInTheMiddleOfACatch) {
  std::atomic<int> lines{0};
  kvb::set_log([&](int32_t, std::string_view, std::string_view) {
    ++lines;
    throw std::runtime_error("from a sink");
  });
  try {
    throw std::logic_error("the host's own");
  } catch (const std::logic_error& own) {
    Rig rig(json("throwing-sink"));
    EXPECT_EQ(kvb::last_error(), "the log callback threw: from a sink");
    EXPECT_STREQ(own.what(), "the host's own");
  }
  EXPECT_GT(lines, 0);
  kvb::set_log(nullptr);
}

}  // namespace
