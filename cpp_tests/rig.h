/* One server of a single rank, driven call by call. */
#ifndef KVBRIDGE_CPP_TESTS_RIG_H
#define KVBRIDGE_CPP_TESTS_RIG_H

#include <cstring>
#include <numeric>
#include <thread>

#include "testing.h"

namespace testing_rig {

constexpr uint32_t T = 16; /* tokens per block */
constexpr size_t kPage = 64;
constexpr size_t kSlots = 80;

using Tokens = std::vector<int32_t>;
using Pages = std::vector<int32_t>;

inline Tokens counted(size_t count, int32_t first = 1) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Pages slots(size_t count, int32_t first = 0) { return counted(count, first); }

/* `more` goes into the "kvbridge" object. */
inline std::string json(const std::string& pool, const std::string& more = "",
                        const std::string& size = "1MiB") {
  return R"({"model_key": "model", "staging_buffer_bytes": "64KiB", "global_segment_size": ")" +
         size + R"(", "kvbridge": {"pool": ")" + pool + "\"" + (more.empty() ? "" : ", ") + more +
         "}}";
}

/* One server of a single rank, with its scheduler, a pool and what a test asks of them. */
struct Rig {
  /* With a script the worker's pool breaks by it, and `store` is what the pool really holds. With a
   * table the pool is what that lends. */
  explicit Rig(const std::string& text, const std::string& number_format = "float16",
               const std::string& script = "", const kvb_store_table* table = nullptr)
      : format(number_format),
        config(kvb::Config::from_json(text)),
        engine(kvb::engine(T)),
        store(kvb::Store::open(config, engine, table)),
        faulty(store.wrap_faulty(script.empty() ? R"({"faults": []})" : script)),
        worker(kvb::Worker::open(config, engine, script.empty() ? store : faulty)),
        scheduler(kvb::Scheduler::beside(worker, config, engine)) {
    worker.register_layout(layout());
  }

  std::vector<uint8_t> memory = std::vector<uint8_t>(kPage * kSlots);
  std::string format;
  kvb::Config config;
  kvb_engine engine;
  kvb::Store store;
  kvb::Store faulty;
  kvb::Worker worker;
  kvb::Scheduler scheduler;

  kvb_region region() {
    kvb_region it{};
    it.base = kvb::piece(memory.data(), 0).address;
    it.size = it.stride = kPage;
    it.slot_count = kSlots;
    return it;
  }
  kvb::Layout layout() {
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, format, "", {0}).add_region(0, region());
    return layout;
  }
  uint8_t* page(int32_t index) { return memory.data() + kPage * static_cast<size_t>(index); }
  /* What a forward pass does: page p of these gets bytes `first + ordinal`. */
  void compute(const Pages& pages, int first) {
    for (size_t i = 0; i < pages.size(); ++i)
      std::memset(page(pages[i]), first + static_cast<int>(i), kPage);
  }

  uint64_t match(uint64_t id, const Tokens& prompt, uint64_t local = 0) {
    return scheduler.match(kvb::request(id, kvb::tokens(prompt)), local).tokens;
  }
  void allocated(uint64_t id, uint64_t honoured, const Pages& pages) {
    scheduler.allocated(id, honoured, {kvb::group_pages(0, 0, pages.data(), pages.size())});
  }
  kvb::Metadata build(uint64_t id, const Tokens& fresh, uint64_t computed, uint64_t scheduled,
                      const Pages& pages = {}, uint32_t first_block = 0, bool replace = false) {
    auto list = kvb::group_pages(0, first_block, pages.data(), pages.size());
    list.replace = replace ? 1 : 0;
    kvb_step step{};
    step.request_id = id;
    step.new_tokens = kvb::tokens(fresh);
    step.pages = &list;
    step.page_lists = pages.empty() ? 0 : 1;
    step.computed_position = computed;
    step.scheduled_tokens = scheduled;
    return scheduler.build({step});
  }
  /* A pass, whose pages are computed already. */
  void run(const kvb::Metadata& metadata) {
    worker.bind(metadata);
    worker.start_load(nullptr);
    worker.wait_for_save(nullptr);
  }
  void settle() {
    while (worker.stats().saves_in_flight > 0) std::this_thread::yield();
  }
  /* Ends a request and waits for its pages; answers whether they were pinned. */
  bool finish(uint64_t id, int32_t reason = KVB_FINISH_ENDED) {
    if (!scheduler.finished(id, reason)) return false;
    auto saved = worker.get_finished({id}).saved;
    while (saved.empty()) {
      std::this_thread::yield();
      saved = worker.get_finished({}).saved;
    }
    EXPECT_EQ(saved.size(), 1u);
    EXPECT_EQ(saved[0], id);
    return true;
  }
  /* Runs a whole prompt in one pass on these pages, and ends it. */
  uint64_t serve(uint64_t id, const Tokens& prompt, int fill = 10) {
    auto pages = slots((prompt.size() + T - 1) / T);
    auto offered = match(id, prompt);
    allocated(id, offered, pages);
    auto metadata = build(id, prompt, 0, prompt.size() - offered, pages);
    worker.bind(metadata);
    worker.start_load(nullptr);
    compute({pages.begin() + static_cast<ptrdiff_t>(offered / T), pages.end()},
            fill + static_cast<int>(offered / T));
    worker.wait_for_save(nullptr);
    finish(id);
    return offered;
  }

  std::vector<uint8_t> hashes(const Tokens& tokens) {
    return kvb::hash_blocks(KVB_SCHEME_KVB1, kvb::request(0, kvb::tokens(tokens)), T);
  }
  /* Leading blocks that the pool holds. */
  size_t stored(const Tokens& tokens) { return worker.lookup(hashes(tokens)); }
  std::string key(const Tokens& tokens, size_t block) {
    return kvb::page_key(config, engine, layout(), 0, 0, hashes(tokens).data() + 32 * block, 32);
  }
  bool has(const Tokens& tokens, size_t block) {
    auto name = key(tokens, block);
    return store.exist({kvb::bytes(name)})[0] == KVB_PRESENT;
  }
  /* The first byte of a stored page (raw format). */
  int byte_of(const Tokens& tokens, size_t block) {
    auto name = key(tokens, block);
    std::vector<uint8_t> object(kPage);
    auto got = store.get_into({kvb::bytes(name)}, {kvb::piece(object.data(), kPage)});
    if (got.outcomes[0] != KVB_GET_LANDED) return -1;
    for (auto byte : object) EXPECT_EQ(byte, object[0]);
    return object[0];
  }
  /* Whoever found it has a lease for a moment. */
  void remove(const std::string& name) {
    while (store.remove({kvb::bytes(name)})[0] == KVB_REMOVE_LEASED) std::this_thread::yield();
  }
};

const char kNoLease[] = R"("lease_ttl_ms": 0)";
const char kRaw[] = R"("page_format": "raw")";

}  // namespace testing_rig

#endif
