/* The library as a plugin: loaded at run time, in one copy or two, closed with threads alive. */
#include "plugin.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>

namespace {

const char kLibrary[] = KVBRIDGE_LIBRARY;

/* Two files, as two plugins of one host would bring them. */
class PluginCopies : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "kvbridge-copies-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    for (auto* path : {&first, &second}) {
      *path = folder / (path == &first ? "libfirst.so" : "libsecond.so");
      std::filesystem::copy_file(kLibrary, *path);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::filesystem::path folder, first, second;
};

}  // namespace

TEST(Plugin, AnswersTheVersionItWasBuiltForAndNoOther) {
  plugin::Host host(kLibrary);
  EXPECT_EQ(host.api->abi_version, KVB_ABI_VERSION + 0u);
  EXPECT_EQ(host.api->get_abi_version(), KVB_ABI_VERSION + 0u);
  EXPECT_EQ(host.api->struct_size, sizeof(kvb_api));
  EXPECT_EQ(host.entry(KVB_ABI_VERSION), host.api);
  EXPECT_EQ(host.entry(KVB_ABI_VERSION + 1), nullptr);
  EXPECT_NE(host.text().find("version 2"), std::string::npos) << host.text();
  EXPECT_EQ(host.entry(0), nullptr);
}

TEST(Plugin, SavesAndLoadsThroughTheTable) {
  plugin::Host host(kLibrary);
  host.open("plugin.pool");
  EXPECT_EQ(host.run(1, 40), 0u);
  host.finish(1);
  std::fill(host.memory.begin(), host.memory.end(), 0);
  EXPECT_EQ(host.run(2, 90), 4u);
  EXPECT_EQ(host.at(2), 40);
  EXPECT_EQ(host.at(0), 41);
  EXPECT_EQ(host.at(1), 92);
  host.finish(2);
  host.ok(host.api->worker_shutdown(host.worker, 10000));
}

TEST(Plugin, IsClosedWithoutShutdownAndOpenedAgain) {
  plugin::Host left(kLibrary);
  left.open("plugin.left");
  left.run(1, 7);
  /* The host forgets everything: threads and handles live on, since the code stays mapped. */
  left.unload();
  EXPECT_EQ(left.api->get_abi_version(), KVB_ABI_VERSION + 0u);

  plugin::Host again(kLibrary);
  EXPECT_EQ(again.api, left.api) << "the same library";
  again.open("plugin.again");
  EXPECT_EQ(again.run(1, 7), 0u);
  again.finish(1);
}

TEST(Plugin, AThreadThatCalledItMayEndAfterItIsClosed) {
  plugin::Host host(kLibrary);
  std::promise<void> called, closed;
  std::thread caller([&] {
    /* Leaves a text, which belongs to this thread and is freed when it ends. */
    EXPECT_EQ(host.api->config_from_json(nullptr, 1, nullptr), KVB_NULL_POINTER);
    called.set_value();
    closed.get_future().wait();
  });
  called.get_future().wait();
  host.unload();
  closed.set_value();
  caller.join();
}

TEST_F(PluginCopies, ShareNothing) {
  plugin::Host one(first), other(second);
  EXPECT_NE(one.api, other.api);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "kvb_plugin_entry"), nullptr) << "loaded locally";

  /* The same pool by name, in one copy and in the other. */
  one.open("copies.pool");
  other.open("copies.pool");
  EXPECT_EQ(one.run(1, 10), 0u);
  one.finish(1);
  EXPECT_EQ(other.run(1, 60), 0u) << "the other copy's pages are seen";
  other.finish(1);
  for (auto* host : {&one, &other}) {
    std::fill(host->memory.begin(), host->memory.end(), 0);
    EXPECT_EQ(host->run(2, 90), 4u);
    EXPECT_EQ(host->at(2), host == &one ? 10 : 60);
    host->finish(2);
  }

  /* Nor the text of a failure. */
  EXPECT_EQ(one.entry(0), nullptr);
  EXPECT_NE(one.text(), "");
  EXPECT_EQ(other.text(), "");
}

TEST_F(PluginCopies, StayMappedWhenNothingOfThemRuns) {
  plugin::Host host(first);
  /* On a thread of its own: data of a thread that lives would keep any library mapped. */
  std::thread([&] {
    host.open("copies.mapped");
    host.run(1, 1);
    host.close();
  }).join();
  host.unload();
  void* still = dlopen(first.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(still, nullptr) << "the table is gone, and host's destructor will call it";
  dlclose(still);
  EXPECT_EQ(host.api->get_abi_version(), KVB_ABI_VERSION + 0u);
}

TEST_F(PluginCopies, AreClosedWhileTheirThreadsSave) {
  plugin::Host one(first, 64 << 10, 33), other(second, 64 << 10, 33);
  for (auto* host : {&one, &other}) {
    host->open("copies.closed", "16MiB", "1MiB");
    host->run(1, 1, 32);
  }
  one.unload();
  other.unload();
  /* Both threads go on: every page arrives. */
  for (auto* host : {&one, &other}) {
    host->finish(1);
    EXPECT_EQ(host->stats().saved_pages, 32u);
  }
  /* A new copy of the same file, beside the one that never left. */
  plugin::Host again(first);
  EXPECT_EQ(again.api, one.api);
}
