/* The library on a real driver, or on the stand-in: by calls of the driver alone. scripts/gpu-check
 * carries these to a machine with a GPU. */
#include "gpu_rig.h"

namespace {

using namespace testing_gpu;
using testing_kvb::expect_error;

/* A prompt of `blocks` whole blocks and one token more. */
Tokens prompt(size_t blocks, int32_t first = 1) { return counted(blocks * T + 1, first); }

/* One pass of a request: `work` is what the forward pass puts on the stream. Answers what was
 * restored. */
template <typename Work>
uint64_t pass(Server& server, uint64_t id, const Tokens& tokens, const Pages& pages, void* stream,
              Work work) {
  auto restored = server.admit(id, tokens, pages);
  server.worker.bind(server.build(id, tokens, restored));
  server.worker.start_load(stream);
  EXPECT_EQ(failed(server), std::vector<uint64_t>{});
  work();
  server.worker.wait_for_save(stream);
  return restored;
}

uint64_t pass(Server& server, uint64_t id, const Tokens& tokens, const Pages& pages, void* stream) {
  return pass(server, id, tokens, pages, stream, [] {});
}

class Shapes : public testing::TestWithParam<Shape> {};

TEST_P(Shapes, EveryByteOfAPageComesBackAndNoOther) {
  const auto& shape = GetParam();
  Gpu gpu(shape.bytes());
  const auto blocks = shape.pages / 2 - 1;
  /* Pages of a request, in an order that is none. */
  auto pages = [&](int32_t first) {
    Pages list;
    for (size_t i = 0; i < blocks; ++i)
      list.push_back(first + static_cast<int32_t>(i * 5 % blocks));
    list.push_back(first + static_cast<int32_t>(blocks));
    return list;
  };
  if (blocks % 5 == 0) FAIL() << "two blocks would have one page";
  auto saved = pages(0), loaded = pages(static_cast<int32_t>(shape.pages / 2));
  auto name = "shape-" + std::to_string(shape.regions) + "-" + std::to_string(shape.piece);
  {
    Server server(pool(name), shape.on(gpu.pool()), nullptr, 0, 0);
    auto before = noise(shape.bytes(), 1);
    gpu.write(before);
    ASSERT_EQ(pass(server, 1, prompt(blocks), saved, gpu.stream()), 0u);
    server.finish(1);
    ASSERT_EQ(server.stored(prompt(blocks)), blocks);
    EXPECT_TRUE(gpu.read() == before) << "a save changes nothing";

    auto after = noise(shape.bytes(), 2);
    gpu.write(after);
    ASSERT_EQ(pass(server, 2, prompt(blocks), loaded, gpu.stream()), blocks * T);
    for (size_t i = 0; i < blocks; ++i) shape.move(before, saved[i], after, loaded[i]);
    EXPECT_TRUE(gpu.read() == after);
    server.finish(2);
    server.worker.shutdown(60000);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, Shapes,
                         testing::Values(Shape{1, 100, false, 26}, Shape{1, 65536, false, 26},
                                         Shape{1, 1000003, false, 10}, Shape{2, 4096, false, 26},
                                         Shape{16, 32768, false, 10}, Shape{16, 40000, false, 10},
                                         Shape{64, 1024, false, 26}, Shape{64, 999, true, 26},
                                         Shape{128, 512, false, 26}, Shape{128, 77, true, 26},
                                         Shape{128, 4096, true, 10}),
                         [](const auto& it) {
                           return std::to_string(it.param.regions) + "x" +
                                  std::to_string(it.param.piece) +
                                  (it.param.uneven ? "uneven" : "");
                         });

constexpr Shape kPlain{4, 16384, false, 32};

Pages pages(int32_t first) { return slots(4, first); }

TEST(Gpu, ASaveReadsWhatThePassWroteLate) {
  Gpu gpu(kPlain.bytes());
  {
    Server server(pool("late"), kPlain.on(gpu.pool()), nullptr);
    gpu.write(Bytes(kPlain.bytes(), 1));
    Hold hold(gpu.stream());
    pass(server, 1, prompt(3), pages(0), gpu.stream(),
         [&] { gpu.fill(0, kPlain.bytes(), 2, gpu.stream()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(server.stored(prompt(3)), 0u) << "the pass has not run";
    hold.release();
    server.finish(1);
    gpu.write(Bytes(kPlain.bytes(), 3));
    ASSERT_EQ(pass(server, 2, prompt(3), pages(8), gpu.stream()), 3 * T);
    Bytes expected(kPlain.bytes(), 3);
    for (int32_t page = 8; page < 11; ++page)
      kPlain.move(Bytes(kPlain.bytes(), 2), page, expected, page);
    EXPECT_TRUE(gpu.read() == expected);
    server.finish(2);
    server.worker.shutdown(60000);
  }
}

TEST(Gpu, ALoadComesBetweenWhatTheStreamHasAndWhatComesLater) {
  Gpu gpu(kPlain.bytes());
  {
    Server server(pool("between"), kPlain.on(gpu.pool()), nullptr);
    gpu.write(Bytes(kPlain.bytes(), 9));
    pass(server, 1, prompt(3), pages(0), gpu.stream());
    server.finish(1);
    gpu.write(Bytes(kPlain.bytes(), 1));
    ASSERT_EQ(server.admit(2, prompt(3), pages(8)), 3 * T);
    server.worker.bind(server.build(2, prompt(3), 3 * T));
    /* Of region 0: the first page that is loaded, read before and behind the load. */
    auto at = [](size_t page) { return kPlain.stride() * page; };
    Hold hold(gpu.stream());
    gpu.copy(at(20), at(8), kPlain.piece);
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      hold.release();
    });
    server.worker.start_load(gpu.stream());
    gpu.copy(at(21), at(8), kPlain.piece);
    later.join();
    auto found = gpu.read();
    EXPECT_EQ(found[at(20)], 1) << "the load came too early";
    EXPECT_EQ(found[at(20) + kPlain.piece - 1], 1);
    EXPECT_EQ(found[at(21)], 9) << "the load came too late";
    EXPECT_EQ(found[at(21) + kPlain.piece - 1], 9);
    server.worker.wait_for_save(gpu.stream());
    server.finish(2);
    server.worker.shutdown(60000);
  }
}

TEST(Gpu, NullIsTheLegacyStream) {
  Gpu gpu(kPlain.bytes());
  CUstream blocking = nullptr;
  MUST(cuStreamCreate(&blocking, 0));
  {
    Server server(pool("legacy"), kPlain.on(gpu.pool()), nullptr);
    gpu.write(Bytes(kPlain.bytes(), 1));
    {
      Hold hold(blocking);
      pass(server, 1, prompt(3), pages(0), nullptr,
           [&] { gpu.fill(0, kPlain.bytes(), 2, blocking); });
      hold.release();
      MUST(cuStreamSynchronize(blocking));
    }
    server.finish(1);
    gpu.write(Bytes(kPlain.bytes(), 3));
    ASSERT_EQ(pass(server, 2, prompt(3), pages(8), nullptr), 3 * T);
    EXPECT_EQ(gpu.read()[kPlain.stride() * 8], 2);
    server.finish(2);
    server.worker.shutdown(60000);
  }
  MUST(cuStreamDestroy_v2(blocking));
}

TEST(Gpu, AnEventIsWaitedForBeforeParkedPagesAreWritten) {
  Gpu gpu(kPlain.bytes());
  CUevent event = nullptr;
  MUST(cuEventCreate(&event, 2));
  {
    Server server(pool("fence", R"("async_load": true, )"), kPlain.on(gpu.pool()), nullptr, 0, 0,
                  true);
    gpu.write(Bytes(kPlain.bytes(), 9));
    pass(server, 1, prompt(3), pages(0), gpu.stream());
    server.finish(1);
    ASSERT_EQ(server.admit(2, prompt(3), pages(8)), 3 * T);
    Hold hold(gpu.stream());
    gpu.fill(0, kPlain.bytes(), 1, gpu.stream());
    MUST(cuEventRecord(event, gpu.stream()));
    kvb_fence fence{};
    fence.kind = KVB_FENCE_CUDA_EVENT;
    fence.event = reinterpret_cast<uintptr_t>(event);
    server.worker.bind(server.scheduler.build({}), &fence);
    server.worker.start_load(gpu.stream());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(server.worker.get_finished({}, {2}).loaded.empty());
    hold.release();
    while (server.worker.get_finished({}).loaded.empty()) std::this_thread::yield();
    EXPECT_EQ(server.worker.take_failed_async_loads().size(), 0u);
    auto found = gpu.read();
    for (size_t page = 8; page < 11; ++page) EXPECT_EQ(found[kPlain.stride() * page], 9);
    EXPECT_EQ(found[kPlain.stride() * 11], 1);
    server.worker.shutdown(60000);
  }
  MUST(cuEventDestroy_v2(event));
}

TEST(Gpu, ThreadsKeepTheContextThatTheyHave) {
  Gpu gpu(kPlain.bytes());
  {
    Server server(pool("context"), kPlain.on(gpu.pool()), nullptr);
    CUcontext other = nullptr;
    MUST(cuCtxCreate_v2(&other, 0, 0));
    for (auto context : {other, CUcontext(nullptr)}) {
      MUST(cuCtxSetCurrent(context));
      auto id = context == other ? 1u : 2u;
      pass(server, id, prompt(3), pages(0), gpu.stream());
      EXPECT_EQ(current(), context);
      server.finish(id);
      EXPECT_EQ(current(), context);
    }
    EXPECT_EQ(server.stored(prompt(3)), 3u);
    MUST(cuCtxSetCurrent(other));
    server.worker.unregister_layout();
    EXPECT_EQ(current(), other);
    server.worker.shutdown(60000);
    MUST(cuCtxDestroy_v2(other));
  }
}

TEST(Gpu, ThePrimaryContextIsAContextToo) {
  devices();
  CUcontext primary = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  MUST(cuStreamCreate(&stream, 1));
  MUST(cuMemAlloc_v2(&memory, kPlain.bytes()));
  {
    Server server(pool("primary"), kPlain.on(memory), nullptr, 0, 0);
    pass(server, 1, prompt(3), pages(0), stream,
         [&] { MUST(cuMemsetD8Async(memory, 5, kPlain.bytes(), stream)); });
    server.finish(1);
    EXPECT_EQ(pass(server, 2, prompt(3), pages(8), stream), 3 * T);
    server.finish(2);
    server.worker.shutdown(60000);
  }
  MUST(cuMemFree_v2(memory));
  MUST(cuStreamDestroy_v2(stream));
  MUST(cuCtxSetCurrent(nullptr));
  MUST(cuDevicePrimaryCtxRelease_v2(0));
}

TEST(Gpu, MemoryComesAndGoes) {
  Gpu gpu(kPlain.bytes());
  {
    Server server(pool("sleep"), kPlain.on(gpu.pool()), nullptr);
    gpu.write(Bytes(kPlain.bytes(), 7));
    pass(server, 1, prompt(3), pages(0), gpu.stream());
    server.finish(1);
    server.worker.unregister_layout();
    gpu.release();
    gpu.allocate();
    gpu.write(Bytes(kPlain.bytes(), 1));
    server.worker.register_layout(kPlain.layout(gpu.pool()));
    ASSERT_EQ(pass(server, 2, prompt(3), pages(8), gpu.stream()), 3 * T);
    EXPECT_EQ(gpu.read()[kPlain.stride() * 8], 7);
    server.finish(2);
    server.worker.shutdown(60000);
  }
}

TEST(Gpu, WhatIsNoMemoryOfTheDeviceIsRefused) {
  Gpu gpu(kPlain.bytes());
  auto refused = [&](kvb_status status, const std::string& part, CUdeviceptr memory,
                     int32_t ordinal = -1) {
    expect_error(status, part,
                 [&] { Server(pool("refused"), kPlain.on(memory), nullptr, 0, ordinal); });
  };
  Pinned host(kPlain.bytes());
  refused(KVB_INVALID_ARGUMENT, "is memory of the host", host.address());
  Bytes plain(kPlain.bytes());
  refused(KVB_INVALID_ARGUMENT, "memory", reinterpret_cast<uintptr_t>(plain.data()));
  refused(KVB_INVALID_ARGUMENT, "device_ordinal = 77", gpu.pool(), 77);
  MUST(cuCtxSetCurrent(nullptr));
  refused(KVB_NO_DEVICE, "no CUDA context is current", gpu.pool());
  MUST(cuCtxSetCurrent(gpu.context()));
  Server(pool("refused"), kPlain.on(gpu.pool()), nullptr, 0, 0);
}

TEST(Gpu, TwoDevicesShareAPool) {
  if (devices() < 2) GTEST_SKIP() << "this machine has one device";
  Gpu one(kPlain.bytes(), 0), other(kPlain.bytes(), 1);
  {
    MUST(cuCtxSetCurrent(one.context()));
    Server writer(pool("two"), kPlain.on(one.pool()), nullptr, 0, 0);
    one.write(Bytes(kPlain.bytes(), 6));
    MUST(cuCtxSetCurrent(other.context()));
    Server reader(pool("two"), kPlain.on(other.pool()), nullptr, 0, 1);
    other.write(Bytes(kPlain.bytes(), 1));
    pass(writer, 1, prompt(3), pages(0), one.stream());
    writer.finish(1);
    ASSERT_EQ(pass(reader, 2, prompt(3), pages(8), other.stream()), 3 * T);
    EXPECT_EQ(other.read()[kPlain.stride() * 8], 6);
    reader.finish(2);
    writer.worker.shutdown(60000);
    reader.worker.shutdown(60000);
  }
}

/* Passes one behind the other, nothing waited for but what the library waits for: each page has the
 * value of the pass that computed it, wherever it is loaded. */
TEST(Gpu, ManyRoundsKeepTheirOrder) {
  constexpr Shape shape{32, 2048, false, 32};
  constexpr int kRounds = 150;
  Gpu gpu(shape.bytes());
  CUstream streams[] = {gpu.stream(), nullptr};
  MUST(cuStreamCreate(&streams[1], 1));
  {
    Server server(pool("rounds"), shape.on(gpu.pool()), nullptr);
    for (int round = 0; round < kRounds; ++round) {
      auto stream = streams[round % 2];
      auto id = static_cast<uint64_t>(2 * round + 1);
      auto value = 1 + round % 250;
      auto tokens = prompt(3, 1 + 1000 * round);
      pass(server, id, tokens, pages(0), stream,
           [&] { gpu.fill(0, shape.bytes(), value, stream); });
      server.finish(id);
      /* Over what that left; and the pass reads it at once. */
      gpu.fill(0, shape.bytes(), 255, stream);
      ASSERT_EQ(pass(server, id + 1, tokens, pages(8 + 4 * (round % 5)), stream), 3 * T);
      MUST(cuStreamSynchronize(stream));
      auto found = gpu.read();
      Bytes expected(shape.bytes(), 255);
      for (int32_t i = 0; i < 3; ++i)
        shape.move(Bytes(shape.bytes(), static_cast<uint8_t>(value)), 0, expected,
                   8 + 4 * (round % 5) + i);
      ASSERT_TRUE(found == expected) << "round " << round;
      server.finish(id + 1);
    }
    server.worker.shutdown(60000);
  }
  MUST(cuStreamDestroy_v2(streams[1]));
}

}  // namespace
