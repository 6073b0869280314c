/* Block pools of a native cache manager as a layout: what of them a page consists of, and what is
 * refused. The manager is a fake of the shape of TensorRT-LLM's. */
#include <functional>
#include <memory>
#include <numeric>

#include "kvbridge/kvbridge_kvcache.hpp"
#include "testing.h"

using testing_kvb::expect_error;

namespace {

using Bytes = std::vector<uint8_t>;
using kvb::KvCacheContent;

/* ---- a fake manager, with the names of TensorRT-LLM's ---- */

struct Dims {
  int nbDims;
  int64_t d[8];
};

struct Tensor {
  Tensor(std::vector<int64_t> of, size_t element_bytes) : shape(std::move(of)) {
    auto count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    memory.resize(static_cast<size_t>(count) * element_bytes);
    /* No two rows are alike, whatever their size. */
    uint32_t state = 7 + next++;
    for (auto& byte : memory) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<uint8_t>(state >> 24);
    }
  }
  Dims getShape() const {
    Dims dims{static_cast<int>(shape.size()), {}};
    std::copy(shape.begin(), shape.end(), dims.d);
    return dims;
  }
  const void* data() const { return memory.data(); }
  size_t getSizeInBytes() const { return memory.size(); }

  static inline uint32_t next = 0;
  std::vector<int64_t> shape;
  Bytes memory;
};

struct Pool {
  int numLayers;
  std::shared_ptr<Tensor> primaryPtr;
  bool containsBlockScales = false;
  bool containsIndexerKCache = false;
  bool layerFirstLayout = false;
};

struct WindowMetadata {
  bool isSWA;
};

/* As managers were before they had recurrent states. */
struct OldPool {
  int numLayers;
  std::shared_ptr<Tensor> primaryPtr;
  bool containsBlockScales = false;
  bool containsIndexerKCache = false;
};

template <typename Pool>
struct Manager {
  std::vector<Pool> pools;
  std::vector<int> pool_windows;
  std::map<int, bool> sliding;
  std::vector<std::pair<int, int>> layers; /* pool, and place in it */

  int getNumPools() const { return static_cast<int>(pools.size()); }
  const Pool& getPool(int pool) const { return pools.at(static_cast<size_t>(pool)); }
  int getPoolWindowSize(int pool) const { return pool_windows.at(static_cast<size_t>(pool)); }
  WindowMetadata getWindowSizeMetadata(int window) const { return {sliding.at(window)}; }
  int getNumLayers() const { return static_cast<int>(layers.size()); }
  int getLayerPoolIdx(int layer) const { return layers.at(static_cast<size_t>(layer)).first; }
  int getPoolLayerIdx(int layer) const { return layers.at(static_cast<size_t>(layer)).second; }
};

constexpr int kBlocks = 6;
constexpr int kRecurrent = -1;
constexpr int kSliding = 64;
constexpr int kFull = 4096;

std::shared_ptr<Tensor> tensor(std::vector<int64_t> shape, size_t element_bytes) {
  return std::make_shared<Tensor>(std::move(shape), element_bytes);
}

/* Recurrent states; a sliding window with pools for two head counts, each with scales; full
 * attention with an indexer. Layers are in no order. */
Manager<Pool> hybrid() {
  Manager<Pool> it;
  auto add = [&](int window, Pool pool) {
    it.pools.push_back(std::move(pool));
    it.pool_windows.push_back(window);
  };
  add(kRecurrent, {2, tensor({2, kBlocks, 1, 40}, 4), false, false, true});
  add(kSliding, {2, tensor({kBlocks, 2, 2, 32}, 1)});
  add(kSliding, {1, tensor({kBlocks, 1, 2, 48}, 1)});
  add(kSliding, {2, tensor({kBlocks, 2, 2, 4}, 1), true});
  add(kSliding, {1, tensor({kBlocks, 1, 2, 6}, 1), true});
  add(kFull, {3, tensor({kBlocks, 3, 1, 16}, 2)});
  add(kFull, {3, tensor({kBlocks, 3, 1, 9}, 1), false, true});
  it.sliding = {{kRecurrent, false}, {kSliding, true}, {kFull, false}};
  it.layers = {{5, 1}, {1, 0}, {2, 0}, {0, 1}, {5, 0}, {1, 1}, {0, 0}, {5, 2}};
  return it;
}

kvb::KvCacheFormat format() {
  kvb::KvCacheFormat it;
  it.number_format = "bfloat16";
  it.recurrent_number_format = "float32";
  return it;
}

/* ---- a page, read back from a pool ---- */

constexpr uint32_t kTokens = 4;

/* The part of a page that a pool holds, by its shape alone. */
Bytes part(const Tensor& tensor, int64_t page, bool layer_first) {
  auto blocks = tensor.shape[layer_first ? 1 : 0], layers = tensor.shape[layer_first ? 0 : 1];
  auto row = static_cast<int64_t>(tensor.memory.size()) / (blocks * layers);
  Bytes out;
  for (int64_t layer = 0; layer < layers; ++layer) {
    auto at = layer_first ? layer * blocks + page : page * layers + layer;
    auto start = tensor.memory.begin() + at * row;
    out.insert(out.end(), start, start + row);
  }
  return out;
}

/* What a rank saves of page `page` of every group: the objects by group and rank of their key. */
struct Saved {
  explicit Saved(const kvb::Layout& layout, const std::vector<uint32_t>& groups, int32_t page,
                 const std::string& pool)
      : config(kvb::Config::from_json(
            R"({"model_key": "model", "global_segment_size": "1MiB", "staging_buffer_bytes": "64KiB",
                "kvbridge": {"page_format": "raw", "pool": ")" +
            pool + "\"}}")),
        engine(kvb::engine(kTokens)),
        store(kvb::Store::open(config, engine)) {
    auto worker = kvb::Worker::open(config, engine, store);
    auto scheduler = kvb::Scheduler::beside(worker, config, engine);
    worker.register_layout(layout);
    std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
    auto request = kvb::request(1, kvb::tokens(prompt));
    EXPECT_EQ(scheduler.match(request, 0).tokens, 0u);
    const int32_t pages[] = {page, -1};
    std::vector<kvb_group_pages> lists;
    for (auto group : groups) lists.push_back(kvb::group_pages(group, 0, pages, 1));
    scheduler.allocated(1, 0, lists);
    kvb_step step{};
    step.request_id = 1;
    step.new_tokens = kvb::tokens(prompt);
    step.scheduled_tokens = prompt.size();
    worker.bind(scheduler.build({step}));
    worker.start_load(nullptr);
    worker.wait_for_save(nullptr);
    scheduler.finished(1, KVB_FINISH_ENDED);
    worker.shutdown(30000);
    auto hash = kvb::hash_blocks(KVB_SCHEME_KVB1, request, kTokens);
    for (auto group : groups)
      for (int32_t rank : {0, -1}) objects[{group, rank}] = object(layout, group, rank, hash);
  }

  Bytes object(const kvb::Layout& layout, uint32_t group, int32_t rank, const Bytes& hash) {
    std::string key;
    try {
      key = kvb::page_key(config, engine, layout, group, rank, hash.data(), 32);
    } catch (const kvb::Error&) {
      return {}; /* the group has no such page */
    }
    Bytes nothing(1);
    auto asked = store.get_into({kvb::bytes(key)}, {kvb::piece(nothing.data(), 1)});
    Bytes out(asked.sizes[0]);
    auto got = store.get_into({kvb::bytes(key)}, {kvb::piece(out.data(), out.size())});
    EXPECT_EQ(got.outcomes[0], KVB_GET_LANDED) << key;
    return out;
  }

  kvb::Config config;
  kvb_engine engine;
  kvb::Store store;
  std::map<std::pair<uint32_t, int32_t>, Bytes> objects;
};

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

TEST(KvCache, PagesAreThePoolsPartsInTheManagersOrder) {
  auto manager = hybrid();
  auto windows = kvb::kv_cache_windows(manager, format());
  ASSERT_EQ(windows.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(windows[i].group_id, i);
  EXPECT_EQ(windows[0].window, 0u);
  EXPECT_EQ(windows[1].window, 64u);
  EXPECT_EQ(windows[2].window, 0u) << "the longest sequence is no window";
  EXPECT_EQ(windows[0].number_format, "float32");
  EXPECT_EQ(windows[1].number_format, "bfloat16");
  EXPECT_EQ(windows[0].layers, (std::vector<uint32_t>{6, 3}));
  EXPECT_EQ(windows[1].layers, (std::vector<uint32_t>{1, 5, 2}));
  EXPECT_EQ(windows[2].layers, (std::vector<uint32_t>{4, 0, 7}));

  auto layout = kvb::kv_cache_layout(windows);
  for (int32_t page : {0, 3, kBlocks - 1}) {
    SCOPED_TRACE(page);
    Saved saved(layout, {0, 1, 2}, page, "kvcache-" + std::to_string(page));
    auto part_of = [&](size_t pool) {
      auto& it = manager.pools[pool];
      return part(*it.primaryPtr, page, it.layerFirstLayout);
    };
    EXPECT_EQ((saved.objects[{0, 0}]), part_of(0));
    EXPECT_EQ((saved.objects[{1, 0}]), part_of(1) + part_of(2) + part_of(3) + part_of(4));
    EXPECT_EQ((saved.objects[{2, 0}]), part_of(5));
    EXPECT_EQ((saved.objects[{2, -1}]), part_of(6)) << "one object for all ranks";
    EXPECT_TRUE((saved.objects[{1, -1}].empty()));
  }
}

TEST(KvCache, LayersHaveTheModelsNumbers) {
  auto named = format();
  for (uint32_t layer = 0; layer < 8; ++layer) named.layer_ids.push_back(100 + layer);
  auto windows = kvb::kv_cache_windows(hybrid(), named);
  EXPECT_EQ(windows[0].layers, (std::vector<uint32_t>{106, 103}));
  named.layer_ids.pop_back();
  expect_error(KVB_INVALID_ARGUMENT, "7 layer_ids, and the manager has 8 layers",
               [&] { kvb::kv_cache_windows(hybrid(), named); });
}

TEST(KvCache, ManagersWithoutRecurrentStatesAreReadToo) {
  Manager<OldPool> manager;
  manager.pools = {{2, tensor({kBlocks, 2, 2, 32}, 2)}};
  manager.pool_windows = {kFull};
  manager.sliding = {{kFull, false}};
  manager.layers = {{0, 0}, {0, 1}};
  auto windows = kvb::kv_cache_windows(manager, format());
  ASSERT_EQ(windows.size(), 1u);
  EXPECT_EQ(windows[0].pools[0].blocks, static_cast<uint64_t>(kBlocks));
  kvb::kv_cache_layout(windows);
}

TEST(KvCache, ManagersThatContradictThemselvesAreRefused) {
  auto refused = [](const std::string& text, const std::function<void(Manager<Pool>&)>& change) {
    auto manager = hybrid();
    change(manager);
    expect_error(KVB_INVALID_ARGUMENT, text, [&] { kvb::kv_cache_windows(manager, format()); });
  };
  refused("pool 1 has no tensor", [](auto& it) { it.pools[1].primaryPtr = nullptr; });
  refused("pool 2: a tensor of 3 dimensions", [](auto& it) {
    it.pools[2].primaryPtr = tensor({kBlocks, 2, 48}, 1);
  });
  refused("pool 5: its tensor has 2 layers, and it 3", [](auto& it) {
    it.pools[5].primaryPtr = tensor({kBlocks, 2, 1, 16}, 2);
  });
  refused("pool 0: its blocks is 0", [](auto& it) {
    it.pools[0].primaryPtr = tensor({2, 0, 1, 40}, 4);
  });
  refused("pool 1: its layers is -2", [](auto& it) { it.pools[1].numLayers = -2; });
  refused("pool 3: scales with the layers in front",
          [](auto& it) { it.pools[3].layerFirstLayout = true; });
  refused("window 64 holds recurrent states", [](auto& it) {
    it.pools.erase(it.pools.begin() + 1, it.pools.end());
    it.pool_windows = {kSliding};
    it.layers = {{0, 0}, {0, 1}};
  });
  refused("window 0 holds keys and values",
          [](auto& it) { it.pool_windows[5] = it.pool_windows[6] = 0; });
  refused("layer 4 has no place of its own in pool 5", [](auto& it) { it.layers[4].second = 1; });
  refused("layer 4 has no place of its own in pool 6", [](auto& it) { it.layers[4].first = 6; });
  refused("layer 4 has no place of its own in pool 5", [](auto& it) { it.layers[4].second = -1; });
  refused("pool 5 has a layer that is nobody's", [](auto& it) { it.layers.pop_back(); });
  expect_error(KVB_INVALID_ARGUMENT, "there are none",
               [] { kvb::kv_cache_layout(kvb::kv_cache_windows(Manager<Pool>{}, format())); });
}

TEST(KvCache, PoolsThatDoNotGoTogetherAreRefused) {
  auto refused = [](const std::string& text,
                    const std::function<void(std::vector<kvb::KvCacheWindow>&)>& change) {
    auto manager = hybrid();
    auto windows = kvb::kv_cache_windows(manager, format());
    kvb::kv_cache_layout(windows);
    change(windows);
    expect_error(KVB_INVALID_ARGUMENT, text, [&] { kvb::kv_cache_layout(windows); });
  };
  refused("group 1 has no pool", [](auto& it) { it[1].pools.clear(); });
  refused("one pool has 6 blocks and another one 5", [](auto& it) { it[1].pools[1].blocks = 5; });
  refused("group 2, pool 0 (keys and values) has no memory",
          [](auto& it) { it[2].pools[0].address = 0; });
  refused("group 2, pool 1 (an indexer's keys): 161 bytes are not 6 blocks of 3 layers with 1",
          [](auto& it) { it[2].pools[1].bytes -= 1; });
  refused("pool 0 (keys and values): 768 bytes are not 6 blocks of 2 layers with 0 rows each",
          [](auto& it) { it[1].pools[0].kv_factor = it[1].pools[2].kv_factor = 0; });
  refused("kv_factor 4", [](auto& it) { it[2].pools[0].kv_factor = 4; });
  refused("keys and values and recurrent states, which are two groups",
          [](auto& it) { it[1].pools[1].content = KvCacheContent::kRecurrent; });
  refused("neither keys and values nor recurrent states",
          [](auto& it) { it[2].pools.erase(it[2].pools.begin()); });
  refused("group 0: 1 layers are named, and its pools have 2",
          [](auto& it) { it[0].layers.pop_back(); });
  refused("pools of scales: 1, and of keys and values 2", [](auto& it) { it[1].pools.pop_back(); });
  refused("pools of scales: the layers or rows of one",
          [](auto& it) { std::swap(it[1].pools[2], it[1].pools[3]); });
  refused("pools of an indexer's keys: the layers or rows",
          [](auto& it) { it[2].pools[1].layers = 1; });
  refused("scales beside recurrent states", [](auto& it) {
    it[0].pools.push_back(it[0].pools[0]);
    it[0].pools[1].content = KvCacheContent::kScales;
  });
  refused("content 9 is none",
          [](auto& it) { it[2].pools[0].content = static_cast<KvCacheContent>(9); });
  /* What the library itself refuses. */
  refused("group 0 was added before", [](auto& it) { it[1].group_id = 0; });
  refused("layer 6 comes twice", [](auto& it) { it[0].layers[1] = 6; });
  refused("64", [](auto& it) { it[0].pools[0].address = ~uint64_t{0} - 1024; });
}

}  // namespace
