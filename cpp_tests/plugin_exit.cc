/* Processes that end while the library still works: as a plugin in two copies, with save threads
 * that have pages queued. How it ends is the argument; the status must be 0. */
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "plugin.h"

namespace {

constexpr size_t kBlocks = 64;
constexpr size_t kPage = 256 << 10;

/* A host whose save thread has pages queued. Not every pass leaves some: the thread may be faster
 * than this one is scheduled again. */
plugin::Host* busy(const std::string& path) {
  auto* host = new plugin::Host(path, kPage, kBlocks + 1);
  /* With load threads that have nothing to do. */
  host->open("exit.pool", "64MiB", "1MiB", true);
  for (uint64_t id = 1; id <= 100; ++id) {
    host->run(id, 1, kBlocks, static_cast<int32_t>(id) * 1000);
    if (host->stats().saves_in_flight > 0) return host;
  }
  throw std::runtime_error("the save thread never had anything queued");
}

/* Left alone at the end, but reachable: what is forgotten here is not leaked. */
plugin::Host* hosts[2];

/* Frees its handles after main, when the thread's own data is gone already. */
std::unique_ptr<plugin::Host> freed_at_exit;

int end(const std::string& how) {
  if (how == "return") return 0;
  if (how == "exit") {
    std::thread([] { std::exit(0); }).join();
    return 4; /* not reached: exit ends this thread too */
  }
  if (how == "close") {
    for (auto* host : hosts) host->unload();
    return 0;
  }
  if (how == "free" || how == "free-exit") {
    freed_at_exit.reset(hosts[0]);
    hosts[0] = nullptr;
    if (how == "free-exit") std::thread([] { std::exit(0); }).join();
    return 0;
  }
  std::fputs("plugin_exit return|exit|close|free|free-exit\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) try {
  namespace fs = std::filesystem;
  std::string folder = fs::temp_directory_path() / "kvbridge-exit-XXXXXX";
  if (!mkdtemp(folder.data())) return 3;
  for (int i = 0; i < 2; ++i) {
    auto path = fs::path(folder) / ("libcopy" + std::to_string(i) + ".so");
    fs::copy_file(KVBRIDGE_LIBRARY, path);
    hosts[i] = busy(path);
  }
  fs::remove_all(folder);
  return end(argc == 2 ? argv[1] : "");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
