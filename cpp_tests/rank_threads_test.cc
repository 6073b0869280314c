/* The threads of a miniature engine's ranks. */
#include "rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

TEST(RankThreads, EachRankHasItsThreadAndTheLeaderTheCallers) {
  miniature::RankThreads threads(4);
  std::vector<std::thread::id> first(4), second(4);
  /* Each waits for all others, so they run at the same time. */
  std::atomic<int> there{0};
  threads.Run([&](size_t rank) {
    first[rank] = std::this_thread::get_id();
    ++there;
    while (there < 4) std::this_thread::yield();
  });
  threads.Run([&](size_t rank) { second[rank] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 4u);
}

TEST(RankThreads, WhatARankThrowsArrivesWhenAllHaveReturned) {
  miniature::RankThreads threads(3);
  std::atomic<int> returned{0};
  const auto run = [&](size_t failing) {
    threads.Run([&, failing](size_t rank) {
      ++returned;
      if (rank >= failing) throw std::runtime_error("rank " + std::to_string(rank));
    });
  };
  for (size_t failing : {0u, 1u, 2u}) {
    try {
      run(failing);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "rank " + std::to_string(failing));
    }
  }
  run(3);
  EXPECT_EQ(returned, 12);
  miniature::RankThreads(0).Run([](size_t) { FAIL(); });
}
