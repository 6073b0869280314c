#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "testing.h"

using testing_kvb::expect_error;
using testing_kvb::json;

TEST(Config, RendersToWhatReadsTheSame) {
  auto config = kvb::Config::from_json(json("render"));
  auto rendered = config.render();
  EXPECT_NE(rendered.find("\"transfer_batch_size\""), std::string::npos) << rendered;
  EXPECT_EQ(kvb::Config::from_json(rendered).render(), rendered);
}

TEST(Config, AllProblemsAreSaidAtOnce) {
  expect_error(KVB_CONFIG_INVALID, "transfer_batch_size",
               [] { kvb::Config::from_json(R"({"transfer_batch_size": 0, "namespace": ""})"); });
  EXPECT_NE(kvb::last_error().find("namespace"), std::string::npos) << kvb::last_error();
  EXPECT_NE(kvb::last_error().find("model_key"), std::string::npos) << kvb::last_error();
}

TEST(Config, FilesAreFoundByPathAndByEnvironment) {
  std::string path = testing::TempDir() + "/kvbridge_" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << json("file");
  auto by_path = kvb::Config::from_file(path).render();
  EXPECT_EQ(by_path, kvb::Config::from_json(json("file")).render());
  setenv("KVBRIDGE_CONFIG", path.c_str(), 1);
  EXPECT_EQ(kvb::Config::from_environment().render(), by_path);
  unsetenv("KVBRIDGE_CONFIG");
  unsetenv("MOONCAKE_CONFIG_PATH");
  std::remove(path.c_str());
  expect_error(KVB_CONFIG_UNREADABLE, path, [&] { kvb::Config::from_file(path); });
  expect_error(KVB_CONFIG_UNREADABLE, "", [] { kvb::Config::from_environment(); });
  expect_error(KVB_INVALID_ARGUMENT, "path is empty", [] { kvb::Config::from_file(""); });
  expect_error(KVB_INVALID_ARGUMENT, "UTF-8", [] { kvb::Config::from_file("a\xff"); });
}

TEST(Config, BuffersSayWhatTheyNeedAndAreLeftAlone) {
  auto config = kvb::Config::from_json(json("buffers"));
  size_t needed = 0;
  ASSERT_EQ(kvb_config_render(config.get(), nullptr, 0, &needed), KVB_TOO_SMALL);
  std::string buffer(needed, 'x');
  size_t again = 0;
  ASSERT_EQ(kvb_config_render(config.get(), buffer.data(), needed - 1, &again), KVB_TOO_SMALL);
  EXPECT_EQ(again, needed);
  EXPECT_EQ(buffer, std::string(needed, 'x'));
  ASSERT_EQ(kvb_config_render(config.get(), buffer.data(), needed, &again), KVB_OK);
  EXPECT_EQ(buffer.back(), '\0');
  EXPECT_EQ(buffer.find('\0'), needed - 1);
}

TEST(Config, ACudaDeviceNeedsItsDriver) {
  for (const char* name : {"libcuda.so", "libcuda.so.1"})
    if (dlopen(name, RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has the driver";
  auto engine = kvb::engine(testing_kvb::kBlock);
  engine.device_kind = KVB_DEVICE_CUDA;
  auto open = [&](const std::string& more) {
    kvb::Worker::open(kvb::Config::from_json(json("cuda", more)), engine);
  };
  expect_error(KVB_NO_DEVICE, "libcuda.so.1 cannot be loaded", [&] { open(""); });
  /* It has no cache. */
  open(R"("role": "capacity", )");
}

TEST(Config, WhatAPoolCannotDoIsRefusedByName) {
  auto engine = kvb::engine(testing_kvb::kBlock);
  auto refused = [&](const std::string& text, kvb_status status, const std::string& part) {
    auto config = kvb::Config::from_json(text);
    expect_error(status, part, [&] { kvb::Worker::open(config, engine); });
  };
  refused(R"({"model_key": "m", "master_server_address": "127.0.0.1:1",
              "global_segment_size": 0, "kvbridge": {"store": "mooncake-tcp"}})",
          KVB_POOL_FAILED, "127.0.0.1:1");
  refused(json("lacks", R"("soft_pin_ttl_ms": 5, )"), KVB_POOL_REFUSED, "soft_pin_ttl_ms");
  refused(R"({"model_key": "m", "kvbridge": {"replica_num": 2}})", KVB_POOL_REFUSED,
          "replica_num is set, but the store \"embedded\" cannot do it; \"mooncake-tcp\" can");
  refused(json("lacks", R"("group_blocks": true, )"), KVB_POOL_REFUSED, "group_blocks");
  refused(R"({"model_key": "m", "master_server_address": "127.0.0.1:1", "protocol": "tcp",
              "global_segment_size": 0, "kvbridge": {"library": "libno-such-store.so"}})",
          KVB_POOL_REFUSED, "libno-such-store.so");
}
