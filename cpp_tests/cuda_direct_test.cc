/* The pool reads and writes device memory itself, through the public interface, with a stand-in of
 * the CUDA driver. */
#include "cuda_direct_rig.h"

namespace {

using namespace testing_cuda;
using testing_kvb::expect_error;

constexpr uint64_t kMiB = 1 << 20;

TEST(CudaDirect, PagesTravelWithoutStaging) {
  Gpu gpu;
  DirectPool pool;
  auto table = pool.table();
  {
    Server server(direct_json(), {pages_of(gpu.pool)}, &table);
    EXPECT_EQ(pool.sorted_ranges(),
              (std::vector<std::pair<uint64_t, uint64_t>>{{gpu.pool, kPage * kSlots}}));
    auto pages = slots(4);
    ASSERT_EQ(server.admit(1, kPrompt, pages), 0u);
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(gpu.stream);
    stand_in_hold(gpu.stream, 1);
    gpu.compute(pages, 10);
    server.worker.wait_for_save(gpu.stream);
    while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
    EXPECT_EQ(pool.size(), 0u) << "the pass has not ended";
    stand_in_hold(gpu.stream, 0);
    server.finish(1);
    EXPECT_EQ(pool.size(), 3u);

    /* Work that is on the stream reads the pages before the pool writes there. */
    auto others = slots(4, 20), copies = slots(3, 40);
    gpu.compute(others, 90);
    ASSERT_EQ(server.admit(2, kPrompt, others), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    stand_in_hold(gpu.stream, 1);
    for (size_t i = 0; i < 3; ++i)
      ok(cuMemcpyAsync(gpu.page(copies[i]), gpu.page(others[i]), kPage, gpu.stream));
    std::thread release([&] {
      while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
      stand_in_hold(gpu.stream, 0);
    });
    server.worker.start_load(gpu.stream);
    release.join();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(gpu.value(20 + i), 10 + i);
      EXPECT_EQ(gpu.value(40 + i), 90 + i);
    }
    EXPECT_EQ(stand_in_calls("cuMemHostRegister_v2"), 0) << "nothing is staged";
    EXPECT_EQ(stand_in_calls("cuMemcpyBatchAsync_v2"), 0) << "nothing is copied by us";
    EXPECT_EQ(stand_in_calls("cuFlushGPUDirectRDMAWrites"), 1);
    EXPECT_EQ(pool.strangers, 0);
    server.worker.wait_for_save(gpu.stream);
    server.finish(2);
    server.worker.unregister_layout();
    EXPECT_TRUE(pool.sorted_ranges().empty());
    server.worker.shutdown(10000);
  }
}

TEST(CudaDirect, WritesAreFlushedWhereTheDeviceNeedsThat) {
  /* Ordering of a network's writes, options of a flush, and whether there is one. */
  const int cases[][3] = {{0, 1, 1}, {0, 3, 1}, {0, 2, 0}, {100, 1, 0}, {200, 1, 0}};
  for (auto& it : cases) {
    Gpu gpu;
    DirectPool pool;
    auto table = pool.table();
    stand_in_set_attribute(118, it[0]);
    stand_in_set_attribute(117, it[1]);
    Server server(direct_json(), {pages_of(gpu.pool)}, &table);
    serve(server, gpu, 1, 10);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    server.worker.start_load(gpu.stream);
    EXPECT_EQ(stand_in_calls("cuFlushGPUDirectRDMAWrites"), it[2]);
    EXPECT_EQ(gpu.value(20), 10);
    server.worker.shutdown(10000);
  }
  stand_in_set_attribute(118, 0);
  stand_in_set_attribute(117, 1);
}

/* Pages whose bytes may not be visible to the device are lost. */
TEST(CudaDirect, AFlushThatFailsCostsThePages) {
  Gpu gpu;
  DirectPool pool;
  auto table = pool.table();
  Server server(direct_json(), {pages_of(gpu.pool)}, &table);
  serve(server, gpu, 1, 10);
  ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
  server.worker.bind(server.build(2, kPrompt, 3 * T));
  stand_in_fail("cuFlushGPUDirectRDMAWrites", 0, 999);
  server.worker.start_load(gpu.stream);
  EXPECT_EQ(failed(server), std::vector<uint64_t>{2});
  stand_in_reset();
  /* A stream that cannot be waited for: nothing is written. */
  server.scheduler.reset_request(2);
  server.worker.get_finished({});
  gpu.compute(slots(4, 20), 90);
  ok(cuStreamSynchronize(gpu.stream));
  stand_in_fail("cuEventRecord", 0, 999);
  ASSERT_EQ(server.admit(4, kPrompt, slots(4, 20)), 3 * T);
  server.worker.bind(server.build(4, kPrompt, 3 * T));
  server.worker.start_load(gpu.stream);
  EXPECT_EQ(failed(server), std::vector<uint64_t>{4});
  stand_in_reset();
  EXPECT_EQ(gpu.value(20), 90);
  server.worker.shutdown(10000);
}

/* 100 MiB in mappings of 32 MiB, from 8 MiB behind the reservation's start on. */
struct Reserved {
  Reserved() : base(stand_in_reserve(128 * kMiB, 32 * kMiB)) {}
  ~Reserved() { ok(cuMemFree_v2(base)); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  kvb_region region(uint64_t page, uint64_t count) const {
    return pages_of(base + 8 * kMiB, page, count);
  }
  /* Ranges by MiB, counted from the reservation. */
  std::vector<std::pair<uint64_t, uint64_t>> ranges(DirectPool& pool) const {
    auto ranges = pool.sorted_ranges();
    for (auto& range : ranges) range = {(range.first - base) / kMiB, range.second / kMiB};
    return ranges;
  }
  void fill(int32_t index, uint64_t page, int value) const {
    std::memset(stand_in_bytes(base + 8 * kMiB + static_cast<uint64_t>(index) * page, page), value,
                page);
  }
  int value(int32_t index, uint64_t page) const {
    auto bytes = static_cast<unsigned char*>(
        stand_in_bytes(base + 8 * kMiB + static_cast<uint64_t>(index) * page, page));
    EXPECT_EQ(std::memcmp(bytes, bytes + 1, page - 1), 0) << "bytes of page " << index;
    return bytes[0];
  }
  CUdeviceptr base;
};

const std::vector<std::pair<uint64_t, uint64_t>> kCut = {{8, 24}, {32, 32}, {64, 32}, {96, 12}};

TEST(CudaDirect, RangesAndPiecesEndWhereMappingsDo) {
  Gpu gpu;
  Reserved memory;
  DirectPool pool;
  auto table = pool.table();
  constexpr uint64_t kLarge = 10 * kMiB;
  {
    /* The engine says nothing of mappings. */
    Server server(direct_json(), {memory.region(kLarge, 10)}, &table);
    EXPECT_EQ(memory.ranges(pool), kCut);
    /* Of these 0 lies in one mapping, and 2 and 5 reach over an end. */
    Pages pages{2, 5, 0, 9};
    for (int i = 0; i < 4; ++i) memory.fill(pages[static_cast<size_t>(i)], kLarge, 30 + i);
    server.admit(1, kPrompt, pages);
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(gpu.stream);
    server.worker.wait_for_save(gpu.stream);
    server.finish(1);
    EXPECT_EQ(pool.size(), 3u);
    EXPECT_EQ(pool.pieces.size(), 5u);
    for (auto page : pages) memory.fill(page, kLarge, 99);
    Pages others{8, 1, 2, 3};
    ASSERT_EQ(server.admit(2, kPrompt, others), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    server.worker.start_load(gpu.stream);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(memory.value(others[static_cast<size_t>(i)], kLarge), 30 + i);
    EXPECT_EQ(memory.value(9, kLarge), 99);
    /* Page 8, from 88 to 98 MiB, and page 2, from 28 to 38. */
    EXPECT_EQ(pool.pieces.size(), 5u + 5u);
    EXPECT_EQ(pool.strangers, 0);
    server.worker.shutdown(10000);
  }
}

TEST(CudaDirect, WhatTheDriverDoesNotKnowTheLayoutSays) {
  Gpu gpu;
  Reserved memory;
  auto cut = [&](std::vector<unsigned> hidden, uint64_t mapping, uint64_t reservation) {
    DirectPool pool;
    auto table = pool.table();
    for (auto attribute : hidden) stand_in_hide_attribute(attribute, 1);
    auto region = memory.region(kMiB, 100);
    region.reservation_base = reservation;
    Server server(direct_json(), {region}, &table, mapping);
    auto ranges = memory.ranges(pool);
    server.worker.shutdown(10000);
    for (auto attribute : hidden) stand_in_hide_attribute(attribute, 0);
    return ranges;
  };
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
  /* Without mappings: the layout's, counted from where the driver says that the reservation begins.
   */
  EXPECT_EQ(cut({18, 19}, 32 * kMiB, 0), kCut);
  EXPECT_EQ(cut({18, 19}, 32 * kMiB, memory.base + 4 * kMiB), kCut);
  EXPECT_EQ(cut({18, 19}, 0, 0), (Ranges{{8, 100}}));
  /* Without the reservation's attributes it is the allocation. */
  EXPECT_EQ(cut({11, 18, 19}, 32 * kMiB, 0), kCut);
  EXPECT_EQ(cut({11, 12}, 0, 0), kCut);
  /* Without anything the layout's word is all. */
  stand_in_fail("cuMemGetAddressRange_v2", 0, 801);
  EXPECT_EQ(cut({11, 12}, 0, 0), kCut);
  EXPECT_EQ(cut({11, 12, 18, 19}, 32 * kMiB, memory.base), kCut);
  EXPECT_EQ(cut({11, 12, 18, 19}, 32 * kMiB, 0), (Ranges{{8, 32}, {40, 32}, {72, 32}, {104, 4}}));
}

TEST(CudaDirect, WhatAPoolCannotDoIsRefusedWithTheReason) {
  Gpu gpu;
  Reserved memory;
  DirectPool pool;
  auto open = [&](const kvb_store_table& table, const std::vector<kvb_region>& regions,
                  const std::string& text = direct_json()) {
    Server(text, regions, &table).worker.shutdown(10000);
  };
  auto table = pool.table();
  auto hosts = table;
  hosts.device_memory = 0;
  expect_error(KVB_POOL_REFUSED, "the store \"host\" takes memory of the host alone",
               [&] { open(hosts, {pages_of(gpu.pool)}); });
  expect_error(KVB_POOL_REFUSED, "the store \"embedded\" takes memory of the host alone", [&] {
    Server(R"({"model_key": "m", "stage_through_host": false,
               "kvbridge": {"page_format": "raw", "pool": "cuda-direct"}})",
           gpu.pool);
  });
  expect_error(KVB_POOL_REFUSED, "the store \"mooncake\" takes memory of the host alone", [&] {
    Server(R"({"model_key": "m", "stage_through_host": false, "protocol": "tcp",
               "master_server_address": "127.0.0.1:1", "kvbridge": {"page_format": "raw"}})",
           gpu.pool);
  });
  auto one = pool.table(1);
  expect_error(KVB_POOL_REFUSED, "up to 2 pieces, the store \"host\" takes 1", [&] {
    open(one, {pages_of(gpu.pool, kPage, 8), pages_of(gpu.page(8), kPage, 8)});
  });
  expect_error(KVB_POOL_REFUSED, "up to 2 pieces, 1 of them since pages reach over ends",
               [&] { open(one, {memory.region(10 * kMiB, 10)}); });
  EXPECT_TRUE(pool.sorted_ranges().empty());
  open(one, {memory.region(kMiB, 100)});
  /* Memory that a network's adapter cannot take. */
  table.register_memory = [](void*, uint64_t, uint64_t) { return -14; };
  for (auto part :
       {"refuses 4 of the cache's 4 ranges: 25165824 bytes at 0x", "33554432 bytes at 0x",
        "12582912 bytes at 0x", "the host's register_memory answered -14",
        "CUDA device 0: GPUDirect RDMA of the device: yes, of this memory: yes, dma-buf: no, "
        "kernel "
        "module nvidia_peermem: ",
        "locked memory: 104857600 bytes of the cache, "})
    expect_error(KVB_POOL_FAILED, part, [&] { open(table, {memory.region(kMiB, 100)}); });
}

TEST(CudaDirect, ALoadThatIsLateFailsTheWorker) {
  Gpu gpu;
  DirectPool pool;
  auto table = pool.table();
  std::atomic<bool> goes_on{false}, is_inside{false};
  pool.before = [&](const std::string& name) {
    if (name != "get") return;
    is_inside = true;
    while (!goes_on) std::this_thread::yield();
  };
  {
    Server server(direct_json("", R"("load_timeout_ms": 2000, "lookup_timeout_ms": 60000)"),
                  {pages_of(gpu.pool)}, &table);
    serve(server, gpu, 1, 10);
    gpu.compute(slots(4, 20), 90);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    expect_error(KVB_LOAD_FAILED, "may still write into the cache",
                 [&] { server.worker.start_load(gpu.stream); });
    EXPECT_TRUE(failed(server).empty());
    expect_error(KVB_LOAD_FAILED, "may still write into the cache",
                 [&] { server.worker.get_finished({}); });
    while (!is_inside) std::this_thread::yield();
    EXPECT_EQ(gpu.value(20), 90);
    expect_error(KVB_BUSY, "whose memory must stay", [&] { server.worker.shutdown(0); });
    goes_on = true;
    while (gpu.value(22) != 12) std::this_thread::yield();
    /* Once the call has returned the memory is the engine's. */
    while (kvb_worker_shutdown(server.worker.get(), 0) != KVB_OK) std::this_thread::yield();
  }
  pool.await_release();
}

}  // namespace
