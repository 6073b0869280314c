/* Faults that were reported against systems of this kind, as far as the interface can show them:
   each is an input and its right answer. The numbers are those of the project's list of cases.
   Here: what passes load and publish. */
#include <atomic>

#include "rig.h"

using testing_kvb::expect_error;
using namespace testing_rig;

TEST(Cases, Case17MediaWithoutDigestsTakesNoPart) {
  std::atomic<int> warnings{0};
  kvb::set_log([&](int32_t level, std::string_view, std::string_view message) {
    if (level == KVB_LOG_WARN && message.find("media") != std::string_view::npos) ++warnings;
  });
  Rig rig(json("case17"));
  auto prompt = counted(64);
  rig.serve(1, prompt);
  auto before = rig.worker.stats();
  for (uint64_t id = 2; id < 5; ++id) {
    auto request = kvb::request(id, kvb::tokens(prompt));
    request.has_media = 1;
    EXPECT_EQ(rig.scheduler.match(request, 0).tokens, 0u);
    auto pages = slots(4, 8);
    rig.allocated(id, 0, pages);
    auto metadata = rig.build(id, prompt, 0, 64, pages);
    EXPECT_EQ(metadata.summary().save_blocks, 0u);
    rig.run(metadata);
    EXPECT_FALSE(rig.finish(id));
  }
  EXPECT_EQ(rig.worker.stats().lookups, before.lookups);
  EXPECT_EQ(rig.worker.stats().saved_pages, before.saved_pages);
  static bool first = true; /* of this process */
  EXPECT_EQ(warnings, first ? 1 : 0);
  first = false;
  kvb::set_log(nullptr);
}

TEST(Cases, Case34OneCompletionForLoadAndSaveOfOnePass) {
  Rig rig(json("case34"));
  auto prompt = counted(100);
  rig.serve(1, {prompt.begin(), prompt.begin() + 40});
  auto pages = slots(7, 20);
  ASSERT_EQ(rig.match(2, prompt), 32u);
  rig.allocated(2, 32, pages);
  auto metadata = rig.build(2, prompt, 0, 68, pages);
  EXPECT_EQ(metadata.summary().load_blocks, 2u);
  EXPECT_EQ(metadata.summary().save_blocks, 4u);
  rig.run(metadata);
  ASSERT_TRUE(rig.scheduler.finished(2, KVB_FINISH_ENDED));
  size_t saved = rig.worker.get_finished({2}).saved.size();
  rig.settle();
  for (int poll = 0; poll < 20; ++poll) {
    auto reported = rig.worker.get_finished({});
    saved += reported.saved.size();
    EXPECT_TRUE(reported.loaded.empty());
  }
  EXPECT_EQ(saved, 1u);
  EXPECT_TRUE(rig.worker.take_failed_loads().empty());
  EXPECT_EQ(rig.stored(prompt), 6u);
}

TEST(Cases, Case42OneRangeInTwoRegionsOrTwoWorkers) {
  Rig rig(json("case42")), other(json("case42"));
  auto twice = rig.layout();
  EXPECT_THROW(
      {
        twice.add_region(0, rig.region());
        other.worker.unregister_layout();
        other.worker.register_layout(twice);
      },
      kvb::Error);
  auto prompt = counted(40);
  auto worker = kvb::Worker::open(rig.config, rig.engine);
  worker.register_layout(rig.layout());
  worker.unregister_layout();
  rig.serve(1, prompt);
  EXPECT_EQ(rig.stored(prompt), 2u) << "still registered with the first worker";
}

TEST(Cases, Case47AKeyThatIsThereButCannotBeRead) {
  Rig rig(json("case47", kNoLease));
  auto prompt = counted(100);
  rig.serve(1, prompt);
  auto name = rig.key(prompt, 3);
  rig.remove(name);
  ASSERT_EQ(rig.store.put({kvb::bytes(name)}, {kvb::piece(name.data(), 3)})[0], KVB_PUT_STORED);

  auto pages = slots(7, 20);
  ASSERT_EQ(rig.match(2, prompt), 96u);
  rig.allocated(2, 96, pages);
  rig.run(rig.build(2, prompt, 0, 4, pages));
  auto failed = rig.worker.take_failed_loads();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0], 2u);
  EXPECT_TRUE(rig.worker.take_failed_loads().empty()) << "read and clear";
  /* As often as it is asked, across resets, that block is not offered again. */
  for (int i = 0; i < 3; ++i) {
    rig.finish(2, KVB_FINISH_PREEMPTED);
    rig.scheduler.reset_request(2);
    EXPECT_EQ(rig.match(2, prompt), 48u);
    EXPECT_EQ(rig.match(2, prompt), 48u);
  }
  rig.allocated(2, 48, pages);
  rig.run(rig.build(2, prompt, 0, 52, pages));
  EXPECT_TRUE(rig.worker.take_failed_loads().empty());
  EXPECT_EQ(*rig.page(22), 12) << "what lies before it is loaded";
  rig.finish(2);
}

TEST(Cases, Case48EvictedBetweenLookupAndLoad) {
  Rig rig(json("case48", kNoLease));
  auto prompt = counted(64);
  rig.serve(1, prompt);
  auto pages = slots(4, 20);
  ASSERT_EQ(rig.match(2, prompt), 48u);
  rig.allocated(2, 48, pages);
  auto metadata = rig.build(2, prompt, 0, 16, pages);
  rig.remove(rig.key(prompt, 1));
  rig.compute(pages, 0);
  rig.run(metadata);
  auto failed = rig.worker.take_failed_loads();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0], 2u);
  EXPECT_EQ(rig.worker.stats().failed_load_requests, 1u);
  rig.settle();
  EXPECT_EQ(rig.stored(prompt), 1u) << "nothing of the pass is published";
  rig.finish(2, KVB_FINISH_PREEMPTED);
  rig.scheduler.reset_request(2);
  EXPECT_EQ(rig.serve(2, prompt), 16u);
  EXPECT_EQ(rig.stored(prompt), 4u);
}

TEST(Cases, Case56ThePoolLosesEverything) {
  Rig rig(json("case56", kNoLease));
  auto prompt = counted(64);
  rig.serve(1, prompt);
  for (size_t block = 0; block < 4; ++block) rig.remove(rig.key(prompt, block));
  ASSERT_EQ(rig.store.stats().objects, 0u);
  EXPECT_EQ(rig.serve(2, prompt), 0u);
  EXPECT_EQ(rig.stored(prompt), 4u);
  EXPECT_EQ(rig.worker.stats().saved_pages, 8u);
}

TEST(Cases, Case60RefusedBlocksAreOfferedToThePoolAgain) {
  Rig rig(json("case60", R"("lease_ttl_ms": 700)", "4KiB"));
  auto prompt = counted(7 * T);
  auto pages = slots(7);
  rig.compute(pages, 10);
  ASSERT_EQ(rig.match(1, prompt), 0u);
  rig.allocated(1, 0, pages);
  rig.run(rig.build(1, prompt, 0, 3 * T, pages));
  rig.settle();
  ASSERT_EQ(rig.stored(prompt), 3u); /* leases them, too */

  /* Others fill the pool, and hold on to what they have there. */
  std::vector<std::string> others;
  std::vector<kvb_bytes> names;
  const std::vector<uint8_t> filler(48 + kPage);
  for (int32_t outcome = KVB_PUT_STORED; outcome == KVB_PUT_STORED;) {
    rig.stored(prompt);
    names.clear();
    for (const auto& name : others) names.push_back(kvb::bytes(name));
    if (!names.empty()) rig.store.exist(names);
    others.push_back("other " + std::to_string(others.size()));
    outcome =
        rig.store.put({kvb::bytes(others.back())}, {kvb::piece(filler.data(), filler.size())})[0];
    ASSERT_LT(others.size(), 100u);
  }
  std::atomic<bool> stop{false};
  std::thread holders([&] {
    while (!stop) {
      rig.store.exist(names);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  rig.run(rig.build(1, {}, 3 * T, 3 * T));
  rig.settle();
  auto refused = rig.worker.stats().no_space_pages;
  stop = true;
  holders.join();
  EXPECT_EQ(refused, 3u);
  EXPECT_EQ(rig.stored(prompt), 3u);

  for (const auto& name : others) rig.remove(name);
  rig.run(rig.build(1, {}, 6 * T, T));
  rig.settle();
  EXPECT_EQ(rig.stored(prompt), 7u);
  EXPECT_EQ(rig.worker.stats().saved_pages, 7u);
  rig.finish(1);
  EXPECT_EQ(rig.serve(2, prompt), 6u * T);
  EXPECT_EQ(*rig.page(4), 14);
}

TEST(Cases, Case62OnlyPresentIsAHit) {
  Rig rig(json("case62", kNoLease));
  auto prompt = counted(65);
  rig.serve(1, prompt);
  rig.remove(rig.key(prompt, 2));
  auto before = rig.worker.stats();
  EXPECT_EQ(rig.match(2, prompt), 2u * T);
  auto stats = rig.worker.stats();
  EXPECT_EQ(stats.lookups - before.lookups, 1u);
  EXPECT_EQ(stats.lookup_keys - before.lookup_keys, 4u);
  EXPECT_EQ(stats.hit_blocks - before.hit_blocks, 2u);
  EXPECT_EQ(stats.missing_keys - before.missing_keys, 1u);
  EXPECT_EQ(stats.failed_lookup_keys, 0u) << "a miss is not a failure";
}

TEST(Cases, Case63AReplacedTableIsTheTable) {
  Rig rig(json("case63", kRaw));
  auto prompt = counted(80);
  rig.compute(slots(kSlots), 0); /* page p holds p */
  ASSERT_EQ(rig.match(1, prompt), 0u);
  rig.allocated(1, 0, {0, 1});
  rig.build(1, prompt, 0, 20, {0, 1}); /* and this pass never runs */
  rig.run(rig.build(1, {}, 0, 80, {47, 6, 35, 14, 23}, 0, true));
  rig.settle();
  int expected[] = {47, 6, 35, 14, 23};
  for (size_t block = 0; block < 5; ++block)
    EXPECT_EQ(rig.byte_of(prompt, block), expected[block]) << block;
  EXPECT_EQ(rig.worker.stats().saved_pages, 5u);
  /* Without the mark, other pages are a contradiction. */
  expect_error(KVB_CONTRADICTION, "", [&] { rig.build(1, {}, 80, 0, {1, 2, 3, 4, 5}); });
  rig.finish(1);
}

TEST(Cases, Case64TheLastTokenIsNeverOffered) {
  Rig rig(json("case64"));
  rig.serve(1, counted(80));
  EXPECT_EQ(rig.match(2, counted(64)), 48u);
  EXPECT_EQ(rig.match(3, counted(65)), 64u);
  EXPECT_EQ(rig.match(4, counted(15)), 0u);
  EXPECT_EQ(rig.match(5, {}), 0u);
  EXPECT_EQ(rig.match(6, counted(16)), 0u);
  EXPECT_EQ(rig.match(7, counted(17)), 16u);
  EXPECT_EQ(rig.match(8, counted(1)), 0u);
  /* Beyond a local match; one that ends inside a block gets nothing. */
  EXPECT_EQ(rig.match(9, counted(64), 32), 16u);
  EXPECT_EQ(rig.match(10, counted(64), 48), 0u);
  EXPECT_EQ(rig.match(11, counted(64), 33), 0u);
}

TEST(Cases, Case65OnlyAcceptedTokensArePublished) {
  Rig rig(json("case65", kRaw));
  auto pages = slots(4);
  rig.compute(pages, 30);
  auto tokens = counted(29);
  ASSERT_EQ(rig.match(1, tokens), 0u);
  rig.allocated(1, 0, pages);
  rig.run(rig.build(1, tokens, 0, 29, pages));
  rig.settle();
  EXPECT_EQ(rig.stored(tokens), 1u);
  /* Token 29 is sampled. The next pass runs it with 3 drafts (30, 31, 32); 1 is accepted. */
  tokens.push_back(500);
  auto drafted = tokens;
  for (int draft : {501, 901, 902}) drafted.push_back(draft);
  rig.run(rig.build(1, {500}, 29, 4));
  rig.settle();
  EXPECT_FALSE(rig.has(drafted, 1)) << "the block would end with a rejected draft";
  EXPECT_EQ(rig.worker.stats().saved_pages, 1u);
  /* 501 was right, and 502 was sampled behind it. */
  tokens.insert(tokens.end(), {501, 502});
  rig.run(rig.build(1, {501, 502}, 31, 4));
  rig.settle();
  EXPECT_TRUE(rig.has(tokens, 1));
  EXPECT_FALSE(rig.has(drafted, 1));
  EXPECT_EQ(rig.byte_of(tokens, 1), 31);
  EXPECT_EQ(rig.worker.stats().saved_pages, 2u);
  rig.finish(1);
}

TEST(Cases, Case69PagesAheadOfComputationAreNotPublished) {
  Rig rig(json("case69"));
  auto prompt = counted(64);
  auto pages = slots(4);
  ASSERT_EQ(rig.match(1, prompt), 0u);
  rig.allocated(1, 0, pages);
  auto metadata = rig.build(1, prompt, 0, 16, pages);
  EXPECT_EQ(metadata.summary().save_blocks, 1u);
  rig.run(metadata);
  rig.finish(1);
  EXPECT_EQ(rig.store.stats().objects, 1u);
  EXPECT_EQ(rig.stored(prompt), 1u);
}

TEST(Cases, Case71OddEndsAreAnsweredCleanly) {
  Rig rig(json("case71"));
  auto prompt = counted(64);
  for (int32_t reason : {KVB_FINISH_ENDED, KVB_FINISH_CANCELLED, KVB_FINISH_PREEMPTED}) {
    EXPECT_FALSE(rig.scheduler.finished(99, reason)) << "unknown";
    rig.match(1, prompt);
    EXPECT_FALSE(rig.scheduler.finished(1, reason)) << "never got a page";
    EXPECT_FALSE(rig.scheduler.finished(1, reason)) << "twice";
  }
  rig.scheduler.reset_request(98);
  rig.scheduler.reset_request(1);
  EXPECT_NO_THROW(rig.allocated(97, 0, {0}));
  EXPECT_NO_THROW(rig.scheduler.cancel_load(97, 0, 16));
  EXPECT_EQ(rig.build(97, prompt, 0, 64, slots(4)).summary().save_requests, 0u);
  /* Announced though nothing is queued: reported in that call. */
  auto saved = rig.worker.get_finished({99}).saved;
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(saved[0], 99u);
  /* One that did save: pinned once. */
  auto pages = slots(4);
  rig.match(2, prompt);
  rig.allocated(2, 0, pages);
  rig.run(rig.build(2, prompt, 0, 64, pages));
  EXPECT_TRUE(rig.finish(2));
  EXPECT_FALSE(rig.scheduler.finished(2, KVB_FINISH_ENDED));
  EXPECT_EQ(rig.worker.stats().saves_in_flight, 0u);
  EXPECT_TRUE(rig.worker.get_finished({}).saved.empty());
}

TEST(Cases, Case88ExistenceIsAskedOncePerBlock) {
  Rig rig(json("case88"));
  auto prompt = counted(64 * T);
  auto pages = slots(64);
  ASSERT_EQ(rig.match(1, prompt), 0u);
  rig.allocated(1, 0, pages);
  for (uint64_t chunk = 0; chunk < 64; ++chunk) {
    auto metadata = chunk == 0 ? rig.build(1, prompt, 0, T, pages) : rig.build(1, {}, chunk * T, T);
    EXPECT_EQ(metadata.summary().save_blocks, 1u);
    rig.run(metadata);
  }
  rig.finish(1);
  auto stats = rig.worker.stats();
  EXPECT_EQ(stats.lookups, 1u);
  EXPECT_LE(stats.lookup_blocks, 64u);
  EXPECT_LE(stats.lookup_keys, 64u);
  EXPECT_EQ(stats.saved_pages, 64u);
  EXPECT_EQ(stats.already_stored_pages, 0u);
  EXPECT_EQ(rig.stored(prompt), 64u);
}
