/* A pool of a host's own, behind a table of functions: a map, and what the functions shall do
 * wrong. */
#ifndef KVBRIDGE_CPP_TESTS_LENT_POOL_H
#define KVBRIDGE_CPP_TESTS_LENT_POOL_H

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvbridge/kvbridge.hpp"

namespace testing_lent {

struct LentPool {
  std::mutex mutex;
  std::map<std::string, std::string> objects;
  std::map<std::string, std::pair<std::string, uint64_t>> options; /* group and soft pin by key */
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  std::atomic<int> calls{0}, releases{0};
  std::string tenant;
  /* Before a function's work, on the thread that it is called on. */
  std::function<void(const std::string& name)> before;
  /* Where the bytes of a piece are, if not at its address. */
  std::function<char*(const kvb_piece&)> reach;
  /* Instead of a function's work; `name` is exist, put, get or remove. */
  std::function<int32_t(const std::string& name, const kvb_store_call& call)> instead;

  static LentPool& of(void* context) { return *static_cast<LentPool*>(context); }

  static std::string text(const kvb_bytes& it) {
    std::string text(reinterpret_cast<const char*>(it.data), it.size);
    /* What clients of C strings read. */
    if (text != reinterpret_cast<const char*>(it.data)) throw std::logic_error("no NUL");
    return text;
  }

  template <typename Each>
  static int32_t batch(const char* name, void* context, const kvb_store_call* call, Each each) {
    auto& pool = of(context);
    ++pool.calls;
    if (call->struct_size < sizeof *call) return -1;
    if (pool.before) pool.before(name);
    if (pool.instead) return pool.instead(name, *call);
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.tenant = text(call->tenant);
    for (size_t i = 0; i < call->count; ++i) call->outcomes[i] = each(pool, text(call->keys[i]), i);
    return 0;
  }

  static int32_t exist(void* context, const kvb_store_call* call) {
    return batch("exist", context, call, [](LentPool& pool, const std::string& key, size_t) {
      return pool.objects.count(key) != 0 ? KVB_PRESENT : KVB_ABSENT;
    });
  }
  static int32_t put(void* context, const kvb_store_call* call) {
    return batch("put", context, call, [=](LentPool& pool, const std::string& key, size_t i) {
      if (pool.objects.count(key) != 0) return KVB_PUT_ALREADY_THERE;
      auto& object = pool.objects[key];
      for (auto at = i == 0 ? 0 : call->piece_ends[i - 1]; at < call->piece_ends[i]; ++at)
        object.append(pool.pointer(call->pieces[at]), call->pieces[at].size);
      pool.options[key] = {call->groups != nullptr ? text(call->groups[i]) : "-",
                           call->soft_pin_ttl_ms};
      return KVB_PUT_STORED;
    });
  }
  static int32_t get(void* context, const kvb_store_call* call) {
    return batch("get", context, call, [=](LentPool& pool, const std::string& key, size_t i) {
      auto found = pool.objects.find(key);
      if (found == pool.objects.end()) return KVB_GET_MISSING;
      uint64_t room = 0;
      auto first = i == 0 ? 0 : call->piece_ends[i - 1];
      for (auto at = first; at < call->piece_ends[i]; ++at) room += call->pieces[at].size;
      call->sizes[i] = found->second.size();
      if (room != call->sizes[i]) return KVB_GET_WRONG_SIZE;
      size_t done = 0;
      for (auto at = first; at < call->piece_ends[i]; ++at)
        done += found->second.copy(pool.pointer(call->pieces[at]), call->pieces[at].size, done);
      return KVB_GET_LANDED;
    });
  }
  static int32_t remove(void* context, const kvb_store_call* call) {
    return batch("remove", context, call, [](LentPool& pool, const std::string& key, size_t) {
      return pool.objects.erase(key) != 0 ? KVB_REMOVE_REMOVED : KVB_REMOVE_MISSING;
    });
  }
  static int32_t register_memory(void* context, uint64_t address, uint64_t size) {
    std::lock_guard<std::mutex> lock(of(context).mutex);
    of(context).ranges.emplace_back(address, size);
    return 0;
  }
  static int32_t unregister_memory(void* context, uint64_t address, uint64_t size) {
    std::lock_guard<std::mutex> lock(of(context).mutex);
    auto& ranges = of(context).ranges;
    for (auto it = ranges.begin(); it != ranges.end(); ++it)
      if (*it == std::make_pair(address, size)) return ranges.erase(it), 0;
    return -1;
  }
  static int32_t health(void*) { return 0; }
  static void release(void* context) { ++of(context).releases; }

  char* pointer(const kvb_piece& piece) const {
    if (reach) return reach(piece);
    return reinterpret_cast<char*>(static_cast<uintptr_t>(piece.address));
  }

  kvb_store_table table() {
    auto it = kvb::store_table(this);
    it.exist = exist;
    it.put = put;
    it.get = get;
    it.remove = remove;
    it.register_memory = register_memory;
    it.unregister_memory = unregister_memory;
    it.health = health;
    it.release = release;
    it.soft_pin_ttl = it.groups = it.tenant = 1;
    return it;
  }

  /* The last handle may be dropped by a thread of the library. */
  void await_release() {
    while (releases == 0) std::this_thread::yield();
  }
  size_t size() {
    std::lock_guard<std::mutex> lock(mutex);
    return objects.size();
  }
};

}  // namespace testing_lent

#endif
