/* Passes that do not run, pages that must stay or are not there, handles in any order. */
#include <algorithm>

#include "rig.h"

using testing_kvb::expect_error;
using namespace testing_rig;

TEST(Passes, OneThatNeverRanIsEmittedAgain) {
  Rig rig(json("passes.emitted", kRaw));
  auto prompt = counted(48);
  auto pages = slots(3);
  ASSERT_EQ(rig.match(1, prompt), 0u);
  rig.allocated(1, 0, pages);
  rig.compute(pages, 1); /* garbage: the pass does not run */
  auto metadata = rig.build(1, prompt, 0, 48, pages);
  EXPECT_EQ(metadata.summary().save_blocks, 3u);
  rig.worker.bind(metadata);
  rig.worker.start_load(nullptr);
  auto again = rig.build(1, {}, 0, 48);
  EXPECT_EQ(again.summary().save_blocks, 3u);
  rig.compute(pages, 60);
  rig.run(again);
  rig.finish(1);
  for (size_t block = 0; block < 3; ++block)
    EXPECT_EQ(rig.byte_of(prompt, block), 60 + static_cast<int>(block));
  EXPECT_EQ(rig.worker.stats().saved_pages, 3u);
}

TEST(Passes, PreemptionPinsUntilItIsReported) {
  Rig rig(json("passes.pinned", kRaw));
  auto prompt = counted(64);
  auto pages = slots(4);
  for (int generation = 0; generation < 50; ++generation) {
    Tokens own = counted(64, 1 + 1000 * generation);
    ASSERT_EQ(rig.match(1, own), 0u);
    rig.allocated(1, 0, pages);
    rig.compute(pages, 10);
    rig.run(rig.build(1, own, 0, 64, pages));
    EXPECT_TRUE(rig.finish(1, KVB_FINISH_PREEMPTED));
    rig.compute(pages, 0xbb - 3); /* the next owner's bytes */
    rig.scheduler.reset_request(1);
    for (size_t block = 0; block < 4; ++block)
      EXPECT_EQ(rig.byte_of(own, block), 10 + static_cast<int>(block));
    /* What comes back is what was saved. */
    EXPECT_EQ(rig.match(1, own), 48u);
    rig.finish(1);
  }
}

/* Local tokens, reservation, request and range differ from each other, so that none stands for
 * another. */
TEST(Passes, AReservationIsReleasedAcceptedOnceAndReportedByItsId) {
  auto text = json("passes.reserved", kRaw);
  Rig writer(text), rig(text.insert(1, R"("async_load": true, )"));
  auto prompt = counted(6 * T + 1);
  writer.serve(1, prompt);

  auto request = kvb::request(7, kvb::tokens(prompt));
  auto offer = rig.scheduler.reserve(request, T, 900);
  EXPECT_EQ(offer.tokens, 5 * T);
  EXPECT_TRUE(offer.is_async);
  expect_error(KVB_INVALID_ARGUMENT, "reservation 900",
               [&] { rig.scheduler.release_reservation(900, 2 * T, 3 * T); });
  rig.scheduler.release_reservation(900, 4 * T, 6 * T);
  rig.scheduler.release_reservation(900, 4 * T, 6 * T); /* once is enough */
  rig.scheduler.release_reservation(901, 0, 6 * T);     /* nobody's */

  auto pages = slots(7, 20);
  auto list = kvb::group_pages(0, 0, pages.data(), pages.size());
  auto accept = [&](uint64_t reservation, uint64_t id) {
    kvb_accepted it{};
    it.reservation_id = reservation;
    it.request_id = id;
    it.pages = &list;
    it.page_lists = 1;
    return rig.scheduler.build({}, {it});
  };
  EXPECT_EQ(accept(900, 8).summary().parked_requests, 0u) << "made for another request";
  EXPECT_EQ(accept(7, 900).summary().parked_requests, 0u);
  auto metadata = accept(900, 7);
  EXPECT_EQ(metadata.summary().parked_requests, 1u);
  EXPECT_EQ(metadata.summary().parked_blocks, 3u);
  EXPECT_EQ(accept(900, 7).summary().parked_requests, 0u) << "it travels once";

  rig.worker.bind(metadata);
  EXPECT_EQ(rig.worker.get_finished({}, {7}).loaded.size(), 0u) << "no reservation has this id";
  auto loaded = rig.worker.get_finished({}, {900}).loaded;
  while (loaded.empty()) {
    std::this_thread::yield();
    loaded = rig.worker.get_finished({}).loaded;
  }
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0], 900u);
  EXPECT_TRUE(rig.worker.take_failed_async_loads().empty());
  /* Blocks 1, 2 and 3, as the writer filled them. */
  for (int block = 0; block < 7; ++block) {
    EXPECT_EQ(*rig.page(20 + block), block >= 1 && block <= 3 ? 10 + block : 0) << block;
  }
}

TEST(Passes, PagesWithoutAPlaceInOneGroupAreNotSavedInAny) {
  /* Two groups over one memory each; block 0 has left group 1's window. */
  std::vector<uint8_t> full(kPage * 8, 1), window(kPage * 8, 2);
  auto config = kvb::Config::from_json(json("passes.window"));
  auto engine = kvb::engine(T);
  auto store = kvb::Store::open(config, engine);
  auto worker = kvb::Worker::open(config, engine, store);
  auto scheduler = kvb::Scheduler::beside(worker, config, engine);
  auto layout = kvb::Layout::with_mapping();
  kvb_region region{};
  region.size = region.stride = kPage;
  region.slot_count = 8;
  region.base = kvb::piece(full.data(), 0).address;
  layout.add_group(0, 0, "float16", "", {0}).add_region(0, region);
  region.base = kvb::piece(window.data(), 0).address;
  layout.add_group(1, 32, "float16", "", {1}).add_region(1, region);
  worker.register_layout(layout);

  auto prompt = counted(64);
  int32_t first[] = {0, 1, 2, 3}, second[] = {-1, 1, 2, 3};
  std::vector<kvb_group_pages> lists = {kvb::group_pages(0, 0, first, 4),
                                        kvb::group_pages(1, 0, second, 4)};
  auto request = kvb::request(1, kvb::tokens(prompt));
  ASSERT_EQ(scheduler.match(request, 0).tokens, 0u);
  scheduler.allocated(1, 0, lists);
  kvb_step step{};
  step.request_id = 1;
  step.new_tokens = kvb::tokens(prompt);
  step.pages = lists.data();
  step.page_lists = lists.size();
  step.scheduled_tokens = 64;
  auto metadata = scheduler.build({step});
  EXPECT_EQ(metadata.summary().save_blocks, 3u);
  worker.bind(metadata);
  worker.start_load(nullptr);
  worker.wait_for_save(nullptr);
  while (worker.stats().saves_in_flight > 0) std::this_thread::yield();
  EXPECT_EQ(store.stats().objects, 6u);
  EXPECT_EQ(scheduler.match(kvb::request(2, kvb::tokens(prompt)), 0).tokens, 0u)
      << "a prefix ends at its first missing block";

  /* Once it is there, a load needs a page for it in every group. */
  second[0] = 0;
  request.request_id = 3;
  ASSERT_EQ(scheduler.match(request, 0).tokens, 0u);
  scheduler.allocated(3, 0, lists);
  step.request_id = 3;
  worker.bind(scheduler.build({step}));
  worker.start_load(nullptr);
  worker.wait_for_save(nullptr);
  while (worker.stats().saves_in_flight > 0) std::this_thread::yield();
  request.request_id = 4;
  ASSERT_EQ(scheduler.match(request, 0).tokens, 48u);
  second[0] = -1;
  expect_error(KVB_CONTRADICTION, "no page", [&] { scheduler.allocated(4, 48, lists); });
}

TEST(Handles, AreFreedInAnyOrderWithWorkInFlight) {
  auto prompt = counted(64);
  std::vector<int> order = {0, 1, 2, 3, 4};
  do {
    Rig rig(json("freed"));
    auto pages = slots(4);
    rig.match(1, prompt);
    rig.allocated(1, 0, pages);
    auto metadata = rig.build(1, prompt, 0, 64, pages);
    rig.run(metadata);
    for (int which : order) {
      if (which == 0) rig.config.reset();
      if (which == 1) rig.store.reset();
      if (which == 2) rig.worker.reset();
      if (which == 3) rig.scheduler.reset();
      if (which == 4) metadata.reset();
      if (rig.scheduler) {
        EXPECT_NO_THROW(rig.scheduler.build({}));
      }
      if (rig.store && !rig.worker) {
        EXPECT_EQ(rig.store.stats().objects, 4u);
      }
      if (!rig.worker && rig.scheduler) {
        EXPECT_EQ(rig.match(9, prompt), 0u);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}
