/** @file
 * The block pools of a native KVCacheManager as a layout: from what the manager says of its pools
 * to the groups and regions that a worker registers, see docs/integration.md.
 *
 * It follows the methods of `BlockManager` and the fields of `KVCacheBlockPool`
 * (tensorrt_llm/batch_manager/kvCacheManager.h, TensorRT-LLM's main branch of 2026, with
 * layer-first pools for recurrent states) and of `ITensor` (tensorrt_llm/runtime/iTensor.h), but
 * includes neither: any classes of that shape will do. An engine whose manager has another shape
 * fills a list of kvb::KvCacheWindow itself.
 */
#ifndef KVBRIDGE_KVBRIDGE_KVCACHE_HPP
#define KVBRIDGE_KVBRIDGE_KVCACHE_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "kvbridge/kvbridge.hpp"

namespace kvb {

/** What the rows of a block pool are. */
enum class KvCacheContent {
  kKeysAndValues, /**< Keys and values of this rank's heads, or the latent rows of MLA. */
  kScales,        /**< Scale factors of a quantised pool of keys and values (NVFP4). */
  kIndexer,       /**< Keys of a sparse-attention indexer, which are the same on every rank. */
  kRecurrent,     /**< States of recurrent layers; the only pools with the layers in front. */
};

/**
 * One block pool: a tensor of one row per block, layer and factor. Its shape is
 * [blocks, layers, kv_factor, row], with recurrent states [layers, blocks, kv_factor, row]. Memory
 * is the engine's, and stays as kvb::Worker::register_layout needs it.
 */
struct KvCachePool {
  KvCacheContent content = KvCacheContent::kKeysAndValues; /**< What the rows are. */
  uint64_t address = 0;   /**< Of the tensor: device memory, or memory of the host. */
  uint64_t bytes = 0;     /**< Of the whole tensor. */
  uint64_t blocks = 0;    /**< Blocks, which a page index counts. */
  uint32_t layers = 0;    /**< Layers that lie in this pool. */
  uint32_t kv_factor = 2; /**< 2 for keys and values, 1 where there is no value. */
  /** The bytes are the same on every rank of the tensor-parallel group; indexer pools always are.
   */
  bool replicated = false;
  /** Start of the virtual reservation that the tensor lies in; 0 without one. */
  uint64_t reservation_base = 0;
};

/**
 * The pools of one attention window, or of the recurrent layers: one index space of blocks, so one
 * layer group. A page is its pools' parts in this order; indexer pools and other replicated ones
 * make a page of their own. Every server has to have the same order.
 */
struct KvCacheWindow {
  uint32_t group_id = 0;          /**< As in kvb_group. */
  uint32_t window = 0;            /**< In tokens; 0 for full attention and for recurrent layers. */
  std::string number_format;      /**< As in kvb_group. */
  std::string layout_tag;         /**< As in kvb_group. */
  std::vector<uint32_t> layers;   /**< Of its pools but scales and indexers, in their order. */
  std::vector<KvCachePool> pools; /**< In the manager's order. */
};

/** What a manager does not say of itself. */
struct KvCacheFormat {
  std::string number_format;           /**< Of keys and values, as in kvb_group. */
  std::string recurrent_number_format; /**< Of recurrent states; empty: the same. */
  std::string layout_tag = "HND";      /**< Order inside a row: heads, tokens, head dimension. */
  /** The model's number of each layer that the manager counts; empty: they are the same. */
  std::vector<uint32_t> layer_ids;
};

/** @cond */
namespace detail {

[[noreturn]] inline void refuse_kv_cache(const std::string& what) {
  throw Error(KVB_INVALID_ARGUMENT, "block pools: " + what);
}

inline const char* name_of(KvCacheContent content) {
  switch (content) {
    case KvCacheContent::kKeysAndValues:
      return "keys and values";
    case KvCacheContent::kScales:
      return "scales";
    case KvCacheContent::kIndexer:
      return "an indexer's keys";
    case KvCacheContent::kRecurrent:
      return "recurrent states";
  }
  refuse_kv_cache("content " + std::to_string(static_cast<int>(content)) + " is none");
}

/** Bytes of one row; the rows fill the tensor. `where` names the pool. */
inline uint64_t row_bytes(const KvCachePool& pool, const std::string& where) {
  if (pool.address == 0 || pool.bytes == 0) refuse_kv_cache(where + " has no memory");
  auto left = pool.bytes;
  for (uint64_t count : {pool.blocks, uint64_t{pool.layers}, uint64_t{pool.kv_factor}}) {
    if (count == 0 || left % count != 0)
      refuse_kv_cache(where + ": " + std::to_string(pool.bytes) + " bytes are not " +
                      std::to_string(pool.blocks) + " blocks of " + std::to_string(pool.layers) +
                      " layers with " + std::to_string(pool.kv_factor) + " rows each");
    left /= count;
  }
  return left;
}

/** Refuses pools of one window that do not go together. */
inline void check_window(const KvCacheWindow& window, const std::string& where) {
  if (window.pools.empty()) refuse_kv_cache(where + " has no pool");
  std::vector<const KvCachePool*> main, scales, indexers;
  uint64_t layers = 0;
  for (const auto& pool : window.pools) {
    if (pool.blocks != window.pools[0].blocks)
      refuse_kv_cache(where + ": one pool has " + std::to_string(window.pools[0].blocks) +
                      " blocks and another one " + std::to_string(pool.blocks) +
                      ", and they share their indices");
    switch (pool.content) {
      case KvCacheContent::kScales:
        scales.push_back(&pool);
        break;
      case KvCacheContent::kIndexer:
        indexers.push_back(&pool);
        break;
      default:
        main.push_back(&pool);
        layers += pool.layers;
    }
  }
  if (main.empty()) refuse_kv_cache(where + " has neither keys and values nor recurrent states");
  for (auto pool : main)
    if (pool->content != main[0]->content)
      refuse_kv_cache(where + " has keys and values and recurrent states, which are two groups");
  if (layers != window.layers.size())
    refuse_kv_cache(where + ": " + std::to_string(window.layers.size()) +
                    " layers are named, and its pools have " + std::to_string(layers));
  /* The manager makes them one per pool of keys and values, in the same order. */
  for (const auto& beside : {scales, indexers}) {
    if (beside.empty()) continue;
    auto what = where + ": pools of " + name_of(beside[0]->content);
    if (main[0]->content == KvCacheContent::kRecurrent)
      refuse_kv_cache(what + " beside recurrent states");
    if (beside.size() != main.size())
      refuse_kv_cache(what + ": " + std::to_string(beside.size()) + ", and of " +
                      name_of(main[0]->content) + " " + std::to_string(main.size()));
    for (size_t i = 0; i < beside.size(); ++i)
      if (beside[i]->layers != main[i]->layers || (beside[i]->content == KvCacheContent::kScales &&
                                                   beside[i]->kv_factor != main[i]->kv_factor))
        refuse_kv_cache(what +
                        ": the layers or rows of one are not those of the pool it belongs to");
  }
}

}  // namespace detail
/** @endcond */

/**
 * A layout of these windows, one layer group each, in their order. `mapping_bytes` as in
 * kvb::Layout::with_mapping. No memory is touched.
 *
 * Throws kvb::Error: KVB_INVALID_ARGUMENT, a pool without memory, or whose bytes are not its rows;
 * pools of one window with different numbers of blocks; keys and values and recurrent states in one
 * window; scales or indexers that do not match the pools they belong to; layers that are not
 * as many as the pools have; and what kvb_layout_add_group and kvb_layout_add_pool refuse.
 */
inline Layout kv_cache_layout(const std::vector<KvCacheWindow>& windows,
                              uint64_t mapping_bytes = 0) {
  if (windows.empty()) detail::refuse_kv_cache("there are none");
  auto layout = Layout::with_mapping(mapping_bytes);
  for (const auto& window : windows) {
    auto where = "group " + std::to_string(window.group_id);
    detail::check_window(window, where);
    layout.add_group(window.group_id, window.window, window.number_format, window.layout_tag,
                     window.layers);
    for (size_t i = 0; i < window.pools.size(); ++i) {
      const auto& from = window.pools[i];
      kvb_pool pool{};
      pool.base = from.address;
      pool.num_blocks = from.blocks;
      pool.num_layers = from.layers;
      pool.kv_factor = from.kv_factor;
      /* In bytes, so that packed formats need no unit of their own. */
      pool.block_size = detail::row_bytes(
          from, where + ", pool " + std::to_string(i) + " (" + detail::name_of(from.content) + ")");
      pool.element_bits = 8;
      pool.layer_first = from.content == KvCacheContent::kRecurrent ? 1 : 0;
      pool.replicated = from.replicated || from.content == KvCacheContent::kIndexer ? 1 : 0;
      pool.reservation_base = from.reservation_base;
      layout.add_pool(window.group_id, pool);
    }
  }
  return layout;
}

/** @cond */
namespace detail {

template <typename Pool, typename = void>
struct HasLayerFirst : std::false_type {};
template <typename Pool>
struct HasLayerFirst<Pool, std::void_t<decltype(Pool::layerFirstLayout)>> : std::true_type {};

/** Whether the pool's tensor has the layers in front; managers without recurrent states have none.
 */
template <typename Pool>
bool is_layer_first(const Pool& pool) {
  if constexpr (HasLayerFirst<Pool>::value) {
    return pool.layerFirstLayout;
  } else {
    (void)pool;
    return false;
  }
}

/** A number of the manager's, which counts in signed integers. */
template <typename Unsigned>
Unsigned kv_cache_count(int64_t value, const std::string& what) {
  if (value < 1 || static_cast<uint64_t>(value) > std::numeric_limits<Unsigned>::max())
    refuse_kv_cache(what + " is " + std::to_string(value));
  return static_cast<Unsigned>(value);
}

/** One pool as its manager describes it. */
template <typename Pool>
KvCachePool read_pool(const Pool& pool, const std::string& where) {
  if (!pool.primaryPtr) refuse_kv_cache(where + " has no tensor: it is not allocated, or released");
  KvCachePool it;
  it.content = pool.containsBlockScales     ? KvCacheContent::kScales
               : pool.containsIndexerKCache ? KvCacheContent::kIndexer
               : is_layer_first(pool)       ? KvCacheContent::kRecurrent
                                            : KvCacheContent::kKeysAndValues;
  auto layer_first = it.content == KvCacheContent::kRecurrent;
  if (is_layer_first(pool) != layer_first)
    refuse_kv_cache(where + ": " + name_of(it.content) + " with the layers in front");
  auto shape = pool.primaryPtr->getShape();
  if (shape.nbDims != 4)
    refuse_kv_cache(where + ": a tensor of " + std::to_string(shape.nbDims) + " dimensions, not 4");
  it.blocks = kv_cache_count<uint64_t>(shape.d[layer_first ? 1 : 0], where + ": its blocks");
  it.layers = kv_cache_count<uint32_t>(shape.d[layer_first ? 0 : 1], where + ": its layers");
  it.kv_factor = kv_cache_count<uint32_t>(shape.d[2], where + ": its rows per layer");
  if (it.layers != kv_cache_count<uint32_t>(pool.numLayers, where + ": its layers"))
    refuse_kv_cache(where + ": its tensor has " + std::to_string(it.layers) + " layers, and it " +
                    std::to_string(pool.numLayers));
  const void* data = pool.primaryPtr->data();
  it.address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data));
  it.bytes = pool.primaryPtr->getSizeInBytes();
  return it;
}

}  // namespace detail
/** @endcond */

/**
 * What a manager's primary pools are: one entry per window, smallest window first, recurrent layers
 * before all (their window is negative). Group ids count from 0 in this order. Secondary pools, to
 * which a manager offloads, hold other blocks and are none of the pool's business.
 *
 * `Manager` has the methods `getNumPools()`, `getPool(pool)`, `getPoolWindowSize(pool)`,
 * `getWindowSizeMetadata(window).isSWA`, `getNumLayers()`, `getLayerPoolIdx(layer)` and
 * `getPoolLayerIdx(layer)` of `BlockManager`; the pools are allocated. Call it again when they were
 * released and allocated anew.
 *
 * Throws kvb::Error: KVB_INVALID_ARGUMENT, a pool is not allocated, its tensor is none of four
 * dimensions, or contradicts what the manager says of it; a window is 0; a layer has no place of
 * its own in a pool; `format.layer_ids` is not as long as the manager has layers.
 */
template <typename Manager>
std::vector<KvCacheWindow> kv_cache_windows(const Manager& manager, const KvCacheFormat& format) {
  auto place = [](int64_t pool) { return "pool " + std::to_string(pool); };
  using Number = decltype(manager.getNumPools());
  const auto pools = manager.getNumPools();
  const auto layers = manager.getNumLayers();
  if (!format.layer_ids.empty() && format.layer_ids.size() != static_cast<size_t>(layers))
    detail::refuse_kv_cache(std::to_string(format.layer_ids.size()) +
                            " layer_ids, and the manager has " + std::to_string(layers) +
                            " layers");
  /* Which layers each pool has, in its own order. */
  constexpr int64_t kNobody = -1;
  std::map<int64_t, std::vector<int64_t>> in_pool;
  std::map<int64_t, KvCacheWindow> windows;
  for (Number p = 0; p < pools; ++p) {
    auto pool = detail::read_pool(manager.getPool(p), place(p));
    auto& window = windows[manager.getPoolWindowSize(p)];
    if (pool.content == KvCacheContent::kKeysAndValues ||
        pool.content == KvCacheContent::kRecurrent)
      in_pool[p].assign(pool.layers, kNobody);
    window.pools.push_back(pool);
  }
  for (Number layer = 0; layer < layers; ++layer) {
    auto pool = in_pool.find(manager.getLayerPoolIdx(layer));
    auto at = static_cast<size_t>(manager.getPoolLayerIdx(layer));
    if (pool == in_pool.end() || at >= pool->second.size() || pool->second[at] != kNobody)
      detail::refuse_kv_cache("layer " + std::to_string(layer) + " has no place of its own in " +
                              place(manager.getLayerPoolIdx(layer)));
    pool->second[at] = layer;
  }
  for (const auto& [pool, its_layers] : in_pool) {
    auto& window = windows[manager.getPoolWindowSize(static_cast<Number>(pool))];
    for (auto layer : its_layers) {
      if (layer == kNobody) detail::refuse_kv_cache(place(pool) + " has a layer that is nobody's");
      window.layers.push_back(format.layer_ids.empty()
                                  ? static_cast<uint32_t>(layer)
                                  : format.layer_ids[static_cast<size_t>(layer)]);
    }
  }
  std::vector<KvCacheWindow> out;
  for (auto& [size, window] : windows) {
    auto recurrent = window.pools[0].content == KvCacheContent::kRecurrent;
    if (size == 0 || recurrent != (size < 0))
      detail::refuse_kv_cache("window " + std::to_string(size) + " holds " +
                              detail::name_of(window.pools[0].content));
    window.group_id = static_cast<uint32_t>(out.size());
    if (!recurrent && manager.getWindowSizeMetadata(static_cast<Number>(size)).isSWA)
      window.window = static_cast<uint32_t>(size);
    window.number_format = recurrent && !format.recurrent_number_format.empty()
                               ? format.recurrent_number_format
                               : format.number_format;
    window.layout_tag = format.layout_tag;
    out.push_back(std::move(window));
  }
  return out;
}

}  // namespace kvb

#endif
