// The walk-through of the README: two "engines" in one process share the embedded pool. The first
// one computes a prompt and publishes its pages, the second one loads them. The README quotes what
// stands between the marks.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <kvbridge/kvbridge.hpp>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kBlockTokens = 16;                          // tokens per block
constexpr uint32_t kLayers = 2, kFactor = 2;                   // factor: key and value
constexpr uint32_t kRow = kBlockTokens * 8;                    // elements per layer and factor
constexpr uint32_t kBlockElements = kLayers * kFactor * kRow;  // elements per page
constexpr uint32_t kPages = 8;                                 // pages of the cache

// [[config]]
const char kConfig[] = R"({
  "model_key": "my-model-v1",
  "global_segment_size": "64MiB",
  "staging_buffer_bytes": "1MiB",
  "kvbridge": { "store": "embedded", "pool": "walkthrough" }
})";
// [[end]]

// [[open]]
struct Engine {
  // Your KV cache, [pages, layers, factor, row]. The library must be closed before it is freed:
  // members are destroyed from the last one up.
  std::vector<uint16_t> cache = std::vector<uint16_t>(kPages * kBlockElements);
  kvb::Worker worker;
  kvb::Scheduler scheduler;

  explicit Engine(const kvb::Config& config) {
    kvb_engine self = kvb::engine(kBlockTokens);
    worker = kvb::Worker::open(config, self);                  // moves pages: one per rank
    scheduler = kvb::Scheduler::beside(worker, config, self);  // decides: on rank 0

    kvb_pool pool{};  // the address arithmetic of a native KVCacheManager
    pool.base = reinterpret_cast<uintptr_t>(cache.data());
    pool.num_blocks = kPages;
    pool.num_layers = kLayers;
    pool.kv_factor = kFactor;
    pool.block_size = kRow;
    pool.element_bits = 16;
    kvb::Layout layout = kvb::Layout::with_mapping();
    layout.add_group(0, /*window=*/0, "float16", "NHD", {0, 1}).add_pool(0, pool);
    worker.register_layout(layout);
  }
};
// [[end]]

// Stands for the model: fills the pages of the blocks from token `computed` on.
void Forward(Engine& engine, const std::vector<int32_t>& prompt, uint64_t computed,
             const std::vector<int32_t>& pages) {
  for (uint64_t block = computed / kBlockTokens; block < prompt.size() / kBlockTokens; ++block) {
    for (uint32_t i = 0; i < kBlockElements; ++i) {
      engine.cache[pages[block] * kBlockElements + i] =
          static_cast<uint16_t>(prompt[block * kBlockTokens] * 31 + i);
    }
  }
}

// [[prefill]]
// Prefills one prompt into the given pages. Answers how many tokens came from the pool.
uint64_t Prefill(Engine& engine, uint64_t id, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& pages) {
  // Before allocation: what does the pool have beyond the local match (here: nothing)?
  const uint64_t local = 0;
  kvb::Scheduler::Offer offer =
      engine.scheduler.match(kvb::request(id, kvb::tokens(prompt)), local);

  // After allocation: where the pages are, and how much of the offer is taken.
  kvb_group_pages list =
      kvb::group_pages(/*group_id=*/0, /*first_block=*/0, pages.data(), pages.size());
  engine.scheduler.allocated(id, offer.tokens, {list});

  // The pass: what is computed, what will be. One step per request of the batch.
  kvb_step step{};
  step.request_id = id;
  step.new_tokens = kvb::tokens(prompt);  // first report: the whole prompt
  step.computed_position = local;         // without what this pass restores
  step.scheduled_tokens = prompt.size() - local - offer.tokens;
  kvb::Metadata metadata = engine.scheduler.build({step});

  engine.worker.bind(metadata);       // on every rank; encode() and decode() in between
  engine.worker.start_load(nullptr);  // when it returns, restored pages are in the cache
  if (!engine.worker.take_failed_loads().empty()) {
    engine.scheduler.reset_request(id);         // the prefix is not there after all:
    return Prefill(engine, id, prompt, pages);  // run again; the offer is shorter now
  }
  Forward(engine, prompt, local + offer.tokens, pages);
  engine.worker.wait_for_save(nullptr);  // queues the saves behind the forward pass
  return offer.tokens;
}
// [[end]]

// [[finish]]
// The request ended: its pages may be used again once its saves are done.
void Finish(Engine& engine, uint64_t id) {
  bool pinned = engine.scheduler.finished(id, KVB_FINISH_ENDED);
  std::vector<uint64_t> ended{id};
  while (pinned) {  // an engine asks once per pass instead of waiting
    for (uint64_t saved : engine.worker.get_finished(ended).saved) pinned &= saved != id;
    ended.clear();  // announced once, reported once
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
// [[end]]

int Run() {
  // [[main]]
  kvb::Config config = kvb::Config::from_json(kConfig);
  Engine first(config), second(config);
  std::vector<int32_t> prompt(40);  // 2 whole blocks and a half
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(100 + i);

  uint64_t cold = Prefill(first, /*id=*/1, prompt, /*pages=*/{0, 1, 2});
  Finish(first, 1);
  uint64_t warm = Prefill(second, /*id=*/7, prompt, /*pages=*/{5, 3, 6});
  Finish(second, 7);
  // [[end]]

  bool same = true;
  const int32_t from[] = {0, 1}, to[] = {5, 3};
  for (int block = 0; block < 2; ++block) {
    for (uint32_t i = 0; i < kBlockElements; ++i) {
      uint16_t value = first.cache[from[block] * kBlockElements + i];
      same &= value != 0 && value == second.cache[to[block] * kBlockElements + i];
    }
  }
  std::printf("first engine: %llu tokens from the pool; second: %llu, pages %s\n",
              static_cast<unsigned long long>(cold), static_cast<unsigned long long>(warm),
              same ? "equal" : "DIFFERENT");
  return cold == 0 && warm == 32 && same ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const kvb::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
