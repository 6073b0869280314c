/** @file
 * kvbridge for C++17: the C interface of kvbridge.h with owners, exceptions and views. Header-only.
 *
 * Each class owns one handle; it can be moved, not copied, and get() is its C handle. Conventions,
 * units, threads and blocking are those of the C functions of the same names.
 *
 * Functions throw kvb::Error, which carries the status and the text. What an engine calls per pass
 * or per request also comes as try_...: noexcept, it returns the status, and kvb::last_error() has
 * the text.
 */
#ifndef KVBRIDGE_KVBRIDGE_HPP
#define KVBRIDGE_KVBRIDGE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvbridge/kvbridge.h"

/** All of the C++ interface. */
namespace kvb {

/** The text of the calling thread's latest failed call. */
inline std::string last_error() {
  std::string text(256, '\0');
  size_t needed = 0;
  while (kvb_last_error(text.data(), text.size(), &needed) == KVB_TOO_SMALL) text.resize(needed);
  text.resize(needed - 1);
  return text;
}

/** A call that failed. */
class Error : public std::runtime_error {
 public:
  /** Of a status that is not KVB_OK, and its text. */
  Error(kvb_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  /** What the call answered; what() has the text. */
  kvb_status status() const noexcept { return status_; }

 private:
  kvb_status status_;
};

/** Throws what a status says, unless it is KVB_OK. */
inline void check(kvb_status status) {
  if (status != KVB_OK) throw Error(status, last_error());
}

/* ---- plain structs, zeroed, with their sizes and the usual values filled in ---- */

/** One rank, one stage, host memory, no drafter; the rest is the caller's to set. */
inline kvb_engine engine(uint32_t tokens_per_block) noexcept {
  kvb_engine it{};
  it.struct_size = sizeof it;
  it.tokens_per_block = tokens_per_block;
  it.tp_size = it.pp_size = it.cp_size = it.ranks_on_node = 1;
  it.max_draft_len = -1;
  it.device_ordinal = -1;
  return it;
}

/** A borrowed text. */
inline kvb_bytes bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/** Borrowed token ids of 32 bits. */
inline kvb_tokens tokens(const int32_t* data, size_t count) noexcept {
  return {data, count, KVB_TOKENS_INT32};
}
/** Borrowed token ids of 64 bits. */
inline kvb_tokens tokens(const int64_t* data, size_t count) noexcept {
  return {data, count, KVB_TOKENS_INT64};
}
/** Anything with data() and size(): std::vector, std::array, a span. */
template <typename Tokens>
kvb_tokens tokens(const Tokens& list) noexcept {
  return tokens(list.data(), list.size());
}

/** A request without salt, adapter and media. The tokens are borrowed. */
inline kvb_request request(uint64_t id, kvb_tokens prompt) noexcept {
  kvb_request it{};
  it.struct_size = sizeof it;
  it.request_id = id;
  it.prompt = prompt;
  return it;
}

/** A pass of these steps, which are borrowed. */
inline kvb_pass pass(const kvb_step* steps, size_t count) noexcept {
  kvb_pass it{};
  it.struct_size = sizeof it;
  it.steps = steps;
  it.step_count = count;
  return it;
}

/** Pages of one layer group from `first_block` on; the indices are borrowed. */
inline kvb_group_pages group_pages(uint32_t group_id, uint32_t first_block, const int32_t* indices,
                                   size_t count) noexcept {
  kvb_group_pages it{};
  it.group_id = group_id;
  it.first_block = first_block;
  it.indices = indices;
  it.count = count;
  return it;
}

/** A piece of host memory. */
inline kvb_piece piece(const void* data, size_t size) noexcept {
  return {static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data)), size};
}

/** What a put asks for; the groups, one per key or none, are borrowed. */
inline kvb_put_options put_options(uint64_t soft_pin_ttl_ms,
                                   const std::vector<kvb_bytes>& groups = {}) noexcept {
  kvb_put_options it{};
  it.struct_size = sizeof it;
  it.soft_pin_ttl_ms = soft_pin_ttl_ms;
  it.groups = groups.data();
  it.group_count = groups.size();
  return it;
}

/** A table without functions, for a pool of the caller's. */
inline kvb_store_table store_table(void* context) noexcept {
  kvb_store_table it{};
  it.struct_size = sizeof it;
  it.context = context;
  return it;
}

/** Ids that a worker reports: a view, valid until the next exclusive call on the worker. */
class Ids {
 public:
  /** None. */
  Ids() noexcept : ids_{nullptr, 0} {}
  /** What a C function answered. */
  explicit Ids(kvb_ids ids) noexcept : ids_(ids) {}
  /** The first id. */
  const uint64_t* begin() const noexcept { return ids_.data; }
  /** Behind the last id. */
  const uint64_t* end() const noexcept { return ids_.data + ids_.count; }
  /** How many there are. */
  size_t size() const noexcept { return ids_.count; }
  /** Whether there are none. */
  bool empty() const noexcept { return ids_.count == 0; }
  /** The id at `index`, which is below size(). */
  uint64_t operator[](size_t index) const noexcept { return ids_.data[index]; }

 private:
  kvb_ids ids_;
};

namespace detail {

/** Owns one handle. */
template <typename T, void (*Free)(T*)>
class Owner {
 public:
  /** Owns nothing. */
  Owner() noexcept = default;
  /** Takes a C handle over. */
  explicit Owner(T* handle) noexcept : handle_(handle) {}
  /** Takes the handle of `other`, which is empty afterwards. */
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Frees its own handle and takes the one of `other`, which is empty afterwards. */
  Owner& operator=(Owner&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  /** A handle has one owner. */
  Owner(const Owner&) = delete;
  /** A handle has one owner. */
  Owner& operator=(const Owner&) = delete;
  /** Frees the handle. */
  ~Owner() { reset(); }

  /** The C handle, which stays owned; NULL after a move. */
  T* get() const noexcept { return handle_; }
  /** Gives the handle up: the caller frees it. */
  T* release() noexcept { return std::exchange(handle_, nullptr); }
  /** Frees the handle; the object is empty afterwards. */
  void reset() noexcept { Free(std::exchange(handle_, nullptr)); }
  /** Whether it owns a handle. */
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  T* handle_ = nullptr;
};

/** Calls `fill(data, capacity, needed)` with a buffer that is large enough; answers its content. */
template <typename Buffer, typename Fill>
Buffer filled(Fill fill) {
  Buffer buffer;
  size_t needed = 0;
  for (;;) {
    kvb_status status = fill(buffer.data(), buffer.size(), &needed);
    if (status != KVB_TOO_SMALL) {
      check(status);
      buffer.resize(needed);
      return buffer;
    }
    buffer.resize(needed);
  }
}

/** As filled(), for a text; the terminator is cut off. */
template <typename Fill>
std::string text(Fill fill) {
  auto buffer = filled<std::string>(fill);
  buffer.pop_back(); /* the terminator */
  return buffer;
}

/** A zeroed struct that knows its size. */
template <typename T>
T sized() noexcept {
  T it{};
  it.struct_size = sizeof it;
  return it;
}

}  // namespace detail

/** A validated configuration, see kvb_config. */
class Config : public detail::Owner<kvb_config, kvb_config_free> {
 public:
  using Owner::Owner;
  /** The file that the environment names. */
  static Config from_environment() {
    kvb_config* out = nullptr;
    check(kvb_config_from_file(nullptr, 0, &out));
    return Config(out);
  }
  /** The file at `path`. */
  static Config from_file(std::string_view path) {
    kvb_config* out = nullptr;
    check(kvb_config_from_file(path.data() ? path.data() : "", path.size(), &out));
    return Config(out);
  }
  /** The configuration in a JSON text. */
  static Config from_json(std::string_view json) {
    kvb_config* out = nullptr;
    check(kvb_config_from_json(bytes(json).data, json.size(), &out));
    return Config(out);
  }
  /** The effective configuration as JSON text. */
  std::string render() const {
    return detail::text([&](char* data, size_t capacity, size_t* needed) {
      return kvb_config_render(get(), data, capacity, needed);
    });
  }
};

/** A cache layout under construction, see kvb_layout. Its functions can be chained. */
class Layout : public detail::Owner<kvb_layout, kvb_layout_free> {
 public:
  using Owner::Owner;
  /** `mapping_bytes`: see kvb_layout_new; 0 if it does not matter. */
  static Layout with_mapping(uint64_t mapping_bytes = 0) {
    kvb_layout* out = nullptr;
    check(kvb_layout_new(mapping_bytes, &out));
    return Layout(out);
  }
  /** Adds a layer group. */
  Layout& add_group(const kvb_group& group) {
    check(kvb_layout_add_group(get(), &group));
    return *this;
  }
  /** Adds a layer group; `window` is 0 for full attention. */
  Layout& add_group(uint32_t id, uint32_t window, std::string_view number_format,
                    std::string_view layout_tag, const std::vector<uint32_t>& layer_ids) {
    kvb_group group{};
    group.id = id;
    group.window = window;
    group.number_format = bytes(number_format);
    group.layout_tag = bytes(layout_tag);
    group.layer_ids = layer_ids.data();
    group.layer_count = layer_ids.size();
    return add_group(group);
  }
  /** Appends a region to the group's page of this rank. */
  Layout& add_region(uint32_t group_id, const kvb_region& region) {
    check(kvb_layout_add_region(get(), group_id, &region));
    return *this;
  }
  /** Appends a region to the group's page that is the same on every rank. */
  Layout& add_replicated_region(uint32_t group_id, const kvb_region& region) {
    check(kvb_layout_add_replicated_region(get(), group_id, &region));
    return *this;
  }
  /** Appends the regions of a block pool. */
  Layout& add_pool(uint32_t group_id, const kvb_pool& pool) {
    check(kvb_layout_add_pool(get(), group_id, &pool));
    return *this;
  }
};

/** An open pool, see kvb_store. Workers open their own; this is for tools and tests. */
class Store : public detail::Owner<kvb_store, kvb_store_free> {
 public:
  using Owner::Owner;
  /** Opens the pool that the configuration names, or with a table the host's own. */
  static Store open(const Config& config, const kvb_engine& engine,
                    const kvb_store_table* table = nullptr) {
    kvb_store* out = nullptr;
    check(kvb_store_open(config.get(), &engine, table, &out));
    return Store(out);
  }
  /** Asks for keys: one KVB_PRESENT, KVB_ABSENT or KVB_UNKNOWN per key. */
  std::vector<int32_t> exist(const std::vector<kvb_bytes>& keys) const {
    std::vector<int32_t> out(keys.size());
    check(kvb_store_exist(get(), keys.data(), keys.size(), out.data()));
    return out;
  }
  /** Stores objects: one KVB_PUT_* per key; as many values as keys. */
  std::vector<int32_t> put(const std::vector<kvb_bytes>& keys,
                           const std::vector<kvb_piece>& values) const {
    same_length(keys.size(), values.size());
    std::vector<int32_t> out(keys.size());
    check(kvb_store_put(get(), keys.data(), values.data(), keys.size(), out.data()));
    return out;
  }
  /** Stores objects with options, see kvb_store_put_with_options. */
  std::vector<int32_t> put(const std::vector<kvb_bytes>& keys, const std::vector<kvb_piece>& values,
                           const kvb_put_options& options) const {
    same_length(keys.size(), values.size());
    std::vector<int32_t> out(keys.size());
    check(kvb_store_put_with_options(get(), keys.data(), values.data(), keys.size(), &options,
                                     out.data()));
    return out;
  }
  /** What get_into() answers, one element per key. */
  struct Got {
    std::vector<int32_t> outcomes; /**< KVB_GET_* */
    std::vector<uint64_t> sizes;   /**< The object's bytes where they are known, else 0. */
  };
  /** Reads objects into host memory; as many buffers as keys. */
  Got get_into(const std::vector<kvb_bytes>& keys, const std::vector<kvb_piece>& buffers) const {
    same_length(keys.size(), buffers.size());
    Got out{std::vector<int32_t>(keys.size()), std::vector<uint64_t>(keys.size())};
    check(kvb_store_get(get(), keys.data(), buffers.data(), keys.size(), out.outcomes.data(),
                        out.sizes.data()));
    return out;
  }
  /** Removes objects: one KVB_REMOVE_* per key. */
  std::vector<int32_t> remove(const std::vector<kvb_bytes>& keys) const {
    std::vector<int32_t> out(keys.size());
    check(kvb_store_remove(get(), keys.data(), keys.size(), out.data()));
    return out;
  }
  /** A store that breaks this one by script; see docs/faults.md. */
  Store wrap_faulty(std::string_view script) const {
    kvb_store* out = nullptr;
    check(kvb_store_wrap_faulty(get(), reinterpret_cast<const uint8_t*>(script.data()),
                                script.size(), &out));
    return Store(out);
  }
  /** The embedded pool's numbers now. */
  kvb_pool_stats stats() const {
    auto out = detail::sized<kvb_pool_stats>();
    check(kvb_store_stats(get(), &out));
    return out;
  }

 private:
  static void same_length(size_t keys, size_t others) {
    if (keys != others) throw Error(KVB_INVALID_ARGUMENT, "as many pieces as keys are needed");
  }
};

/** One pass's transfers, see kvb_metadata. */
class Metadata : public detail::Owner<kvb_metadata, kvb_metadata_free> {
 public:
  using Owner::Owner;
  /** Reads what encode() wrote on another rank. */
  static Metadata decode(const uint8_t* data, size_t size) {
    kvb_metadata* out = nullptr;
    check(kvb_metadata_decode(data, size, &out));
    return Metadata(out);
  }
  /** Reads what encode() wrote on another rank. */
  static Metadata decode(const std::vector<uint8_t>& encoded) {
    return decode(encoded.data(), encoded.size());
  }
  /** The bytes to broadcast. */
  std::vector<uint8_t> encode() const {
    return detail::filled<std::vector<uint8_t>>(
        [&](uint8_t* data, size_t capacity, size_t* needed) {
          return kvb_metadata_encode(get(), data, capacity, needed);
        });
  }
  /** Counts what it holds. */
  kvb_summary summary() const {
    auto out = detail::sized<kvb_summary>();
    check(kvb_metadata_summary(get(), &out));
    return out;
  }
};

/** One rank's mover, see kvb_worker. */
class Worker : public detail::Owner<kvb_worker, kvb_worker_free> {
 public:
  using Owner::Owner;
  /** Opens the pool that the configuration names. */
  static Worker open(const Config& config, const kvb_engine& engine) {
    return open(config, engine, nullptr);
  }
  /** Shares an open pool. */
  static Worker open(const Config& config, const kvb_engine& engine, const Store& store) {
    return open(config, engine, store.get());
  }
  /** What the engine has to arrange. */
  kvb_declarations declarations() const {
    auto out = detail::sized<kvb_declarations>();
    check(kvb_worker_declarations(get(), &out));
    return out;
  }
  /** Takes the cache memory into use, see kvb_worker_register_layout. */
  void register_layout(const Layout& layout) {
    check(kvb_worker_register_layout(get(), layout.get()));
  }
  /** Gives the cache memory back, see kvb_worker_unregister_layout. */
  void unregister_layout() { check(kvb_worker_unregister_layout(get())); }
  /** How many leading blocks are stored; the hashes are side by side. */
  size_t lookup(const std::vector<uint8_t>& hashes) const {
    size_t blocks = 0;
    check(kvb_worker_lookup(get(), hashes.data(), hashes.size(), &blocks));
    return blocks;
  }

  /** Why a prompt gets the offer that it gets: numbers, and text for people. */
  struct Explanation : kvb_explanation {
    std::string text; /**< Some lines. */
  };
  /** Explains what a match would be answered with, see kvb_worker_explain. */
  Explanation explain(const kvb_request& request, uint64_t local_tokens) const {
    Explanation out{};
    out.struct_size = sizeof(kvb_explanation);
    size_t needed = 0;
    kvb_status status =
        kvb_worker_explain(get(), &request, local_tokens, &out, nullptr, 0, &needed);
    while (status == KVB_TOO_SMALL) {
      // The pool may change between two calls, and with it the text.
      std::vector<char> buffer(needed + 64);
      status = kvb_worker_explain(get(), &request, local_tokens, &out, buffer.data(), buffer.size(),
                                  &needed);
      if (status == KVB_OK) out.text = buffer.data();
    }
    check(status);
    return out;
  }

  /** Binds the metadata of the next pass, see kvb_worker_bind. */
  void bind(const Metadata& metadata, const kvb_fence* fence = nullptr) {
    check(try_bind(metadata, fence));
  }
  /** Loads what the metadata restores, see kvb_worker_start_load. */
  void start_load(void* stream) { check(try_start_load(stream)); }
  /** Queues the saves of the pass that ran, see kvb_worker_wait_for_save. */
  void wait_for_save(void* stream) { check(try_wait_for_save(stream)); }
  /** The requests that lost a page, see kvb_worker_take_failed_loads. */
  Ids take_failed_loads() {
    Ids ids;
    check(try_take_failed_loads(&ids));
    return ids;
  }
  /** What get_finished() answers. */
  struct Finished {
    Ids saved;  /**< Requests whose pages are the engine's again on this rank. */
    Ids loaded; /**< Requests whose asynchronous load ended. */
  };
  /** Announces requests that ended, reports those whose saves are done. */
  Finished get_finished(const std::vector<uint64_t>& finished,
                        const std::vector<uint64_t>& loading = {}) {
    Finished out;
    check(try_get_finished(finished.data(), finished.size(), loading.data(), loading.size(), &out));
    return out;
  }
  /** The requests whose asynchronous load failed. */
  Ids take_failed_async_loads() {
    Ids ids;
    check(try_take_failed_async_loads(&ids));
    return ids;
  }

  /** bind() without exceptions. */
  [[nodiscard]] kvb_status try_bind(const Metadata& metadata,
                                    const kvb_fence* fence = nullptr) noexcept {
    return kvb_worker_bind(get(), metadata.get(), fence);
  }
  /** start_load() without exceptions. */
  [[nodiscard]] kvb_status try_start_load(void* stream) noexcept {
    return kvb_worker_start_load(get(), stream);
  }
  /** wait_for_save() without exceptions. */
  [[nodiscard]] kvb_status try_wait_for_save(void* stream) noexcept {
    return kvb_worker_wait_for_save(get(), stream);
  }
  /** take_failed_loads() without exceptions; `out` is written on success. */
  [[nodiscard]] kvb_status try_take_failed_loads(Ids* out) noexcept {
    kvb_ids ids{};
    kvb_status status = kvb_worker_take_failed_loads(get(), &ids);
    if (status == KVB_OK) *out = Ids(ids);
    return status;
  }
  /** take_failed_async_loads() without exceptions; `out` is written on success. */
  [[nodiscard]] kvb_status try_take_failed_async_loads(Ids* out) noexcept {
    kvb_ids ids{};
    kvb_status status = kvb_worker_take_failed_async_loads(get(), &ids);
    if (status == KVB_OK) *out = Ids(ids);
    return status;
  }
  /** get_finished() without exceptions; `out` is written on success. */
  [[nodiscard]] kvb_status try_get_finished(const uint64_t* finished, size_t finished_count,
                                            const uint64_t* loading, size_t loading_count,
                                            Finished* out) noexcept {
    kvb_ids saved{}, loaded{};
    kvb_status status = kvb_worker_get_finished(get(), finished, finished_count, loading,
                                                loading_count, &saved, &loaded);
    if (status == KVB_OK) *out = {Ids(saved), Ids(loaded)};
    return status;
  }

  /** The counters now; may be called beside any other call. */
  kvb_stats stats() const {
    auto out = detail::sized<kvb_stats>();
    check(kvb_worker_stats(get(), &out));
    return out;
  }
  /** The counters in Prometheus' text format. */
  std::string prometheus() const {
    return detail::text([&](char* data, size_t capacity, size_t* needed) {
      return kvb_worker_prometheus(get(), data, capacity, needed);
    });
  }
  /** Ends the worker, see kvb_worker_shutdown. */
  void shutdown(uint64_t deadline_ms) { check(kvb_worker_shutdown(get(), deadline_ms)); }

 private:
  static Worker open(const Config& config, const kvb_engine& engine, kvb_store* store) {
    kvb_worker* out = nullptr;
    check(kvb_worker_new(config.get(), &engine, store, &out));
    return Worker(out);
  }
};

/** One leader's or owner's decisions, see kvb_scheduler. */
class Scheduler : public detail::Owner<kvb_scheduler, kvb_scheduler_free> {
 public:
  using Owner::Owner;
  /** Made from the worker's own configuration and engine. */
  static Scheduler beside(const Worker& worker, const Config& config, const kvb_engine& engine) {
    kvb_scheduler* out = nullptr;
    check(kvb_scheduler_new(config.get(), &engine, worker.get(), &out));
    return Scheduler(out);
  }

  /** What the pool can supply. */
  struct Offer {
    uint64_t tokens = 0;   /**< Tokens behind the local match, in whole blocks. */
    bool is_async = false; /**< The request will wait outside the batch for its load. */
  };
  /** What the pool can supply beyond `local_tokens`, see kvb_scheduler_match. */
  Offer match(const kvb_request& request, uint64_t local_tokens) {
    Offer offer;
    check(try_match(request, local_tokens, &offer));
    return offer;
  }
  /** Reports pages and how much of the offer is taken, see kvb_scheduler_allocated. */
  void allocated(uint64_t request_id, uint64_t honoured_tokens,
                 const std::vector<kvb_group_pages>& pages) {
    check(try_allocated(request_id, honoured_tokens, pages.data(), pages.size()));
  }
  /** Gives a part of an offer back, see kvb_scheduler_cancel_load. */
  void cancel_load(uint64_t request_id, uint64_t from_token, uint64_t to_token) {
    check(try_cancel_load(request_id, from_token, to_token));
  }
  /** match() for engines that reserve, see kvb_scheduler_reserve. */
  Offer reserve(const kvb_request& request, uint64_t local_tokens, uint64_t reservation_id) {
    Offer offer;
    check(try_reserve(request, local_tokens, reservation_id, &offer));
    return offer;
  }
  /** Gives back a part of what a reservation holds, see kvb_scheduler_release_reservation. */
  void release_reservation(uint64_t reservation_id, uint64_t from_token, uint64_t to_token) {
    check(try_release_reservation(reservation_id, from_token, to_token));
  }
  /** The metadata of the next pass, see kvb_scheduler_build. */
  Metadata build(const std::vector<kvb_step>& steps,
                 const std::vector<kvb_accepted>& accepted = {}) {
    kvb_pass described = pass(steps.data(), steps.size());
    described.accepted = accepted.data();
    described.accepted_count = accepted.size();
    Metadata metadata;
    check(try_build(described, &metadata));
    return metadata;
  }
  /** Reports that a request left; `reason` is KVB_FINISH_*. Whether its pages must stay pinned. */
  bool finished(uint64_t request_id, int32_t reason) {
    bool pinned = false;
    check(try_finished(request_id, reason, &pinned));
    return pinned;
  }
  /** Forgets all that is tied to the request's allocation, see kvb_scheduler_reset. */
  void reset_request(uint64_t request_id) { check(try_reset_request(request_id)); }

  /** match() without exceptions; `out` is written on success. */
  [[nodiscard]] kvb_status try_match(const kvb_request& request, uint64_t local_tokens,
                                     Offer* out) noexcept {
    return kvb_scheduler_match(get(), &request, local_tokens, &out->tokens, &out->is_async);
  }
  /** allocated() without exceptions. */
  [[nodiscard]] kvb_status try_allocated(uint64_t request_id, uint64_t honoured_tokens,
                                         const kvb_group_pages* pages, size_t page_lists) noexcept {
    return kvb_scheduler_allocated(get(), request_id, honoured_tokens, pages, page_lists);
  }
  /** cancel_load() without exceptions. */
  [[nodiscard]] kvb_status try_cancel_load(uint64_t request_id, uint64_t from_token,
                                           uint64_t to_token) noexcept {
    return kvb_scheduler_cancel_load(get(), request_id, from_token, to_token);
  }
  /** reserve() without exceptions; `out` is written on success. */
  [[nodiscard]] kvb_status try_reserve(const kvb_request& request, uint64_t local_tokens,
                                       uint64_t reservation_id, Offer* out) noexcept {
    return kvb_scheduler_reserve(get(), &request, local_tokens, reservation_id, &out->tokens,
                                 &out->is_async);
  }
  /** release_reservation() without exceptions. */
  [[nodiscard]] kvb_status try_release_reservation(uint64_t reservation_id, uint64_t from_token,
                                                   uint64_t to_token) noexcept {
    return kvb_scheduler_release_reservation(get(), reservation_id, from_token, to_token);
  }
  /** reset_request() without exceptions. */
  [[nodiscard]] kvb_status try_reset_request(uint64_t request_id) noexcept {
    return kvb_scheduler_reset(get(), request_id);
  }
  /** build() without exceptions; `out` is written on success. */
  [[nodiscard]] kvb_status try_build(const kvb_pass& pass, Metadata* out) noexcept {
    kvb_metadata* built = nullptr;
    kvb_status status = kvb_scheduler_build(get(), &pass, &built);
    if (status == KVB_OK) *out = Metadata(built);
    return status;
  }
  /** finished() without exceptions; `out_pinned` is written on success. */
  [[nodiscard]] kvb_status try_finished(uint64_t request_id, int32_t reason,
                                        bool* out_pinned) noexcept {
    return kvb_scheduler_finished(get(), request_id, reason, out_pinned);
  }
};

/** Hashes of the whole blocks of the request's prompt, side by side. */
inline std::vector<uint8_t> hash_blocks(int32_t scheme, const kvb_request& request,
                                        uint32_t tokens_per_block, uint32_t lookahead = 0) {
  return detail::filled<std::vector<uint8_t>>([&](uint8_t* data, size_t capacity, size_t* needed) {
    return kvb_keys_hash_blocks(scheme, &request, tokens_per_block, lookahead, data, capacity,
                                needed);
  });
}

/** The pool's key of one page. */
inline std::string page_key(const Config& config, const kvb_engine& engine, const Layout& layout,
                            uint32_t group_id, int32_t rank, const uint8_t* hash,
                            size_t hash_size) {
  return detail::text([&](char* data, size_t capacity, size_t* needed) {
    return kvb_keys_page_key(config.get(), &engine, layout.get(), group_id, rank, hash, hash_size,
                             data, capacity, needed);
  });
}

/** Level (KVB_LOG_*), target, message. Called on any thread, by several at once. */
using LogSink = std::function<void(int32_t, std::string_view, std::string_view)>;

namespace detail {
/** The C callback in front of a LogSink. */
inline void log_thunk(void* context, int32_t level, const char* target, size_t target_size,
                      const char* message, size_t message_size) {
  (*static_cast<LogSink*>(context))(level, {target, target_size}, {message, message_size});
}
}  // namespace detail

/** Sets the process's log sink; an empty one removes it. What it throws ends in the
 * library: a line is lost, and a warning behind a later one says so. */
inline void set_log(LogSink sink, int32_t max_level = KVB_LOG_INFO) {
  static std::mutex mutex;
  /* Never destroyed: threads of the library may outlive static destructors. */
  static LogSink* current = nullptr;
  auto fresh = sink ? std::make_unique<LogSink>(std::move(sink)) : nullptr;
  /* Waiting here could wait for a callback that itself came to set the log. */
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock) throw Error(KVB_BUSY, "kvb::set_log: another call is setting the log");
  check(kvb_set_log(fresh ? detail::log_thunk : nullptr, fresh.get(), max_level));
  delete std::exchange(current, fresh.release());
}

}  // namespace kvb

#endif
