/** @file
 * A client of Mooncake's that a C++ process holds already, as the pool of kvbridge: the table of
 * functions for kvbridge.store = "host", see docs/lending.md.
 *
 * It follows the methods of `mooncake::PyClient` and the fields of `mooncake::ReplicateConfig`
 * (mooncake-store/include/pyclient.h and replica.h of Mooncake 0.3.13), but includes neither: any
 * class of that shape will do.
 */
#ifndef KVBRIDGE_KVBRIDGE_MOONCAKE_HPP
#define KVBRIDGE_KVBRIDGE_MOONCAKE_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvbridge/kvbridge.hpp"

namespace kvb {

/** @cond */
namespace detail {

template <typename Config, typename = void>
struct HasSoftPin : std::false_type {};
template <typename Config>
struct HasSoftPin<Config,
                  std::void_t<decltype(Config::soft_pin_action), decltype(Config::soft_pin_ttl_ms)>>
    : std::true_type {};

template <typename Config, typename = void>
struct HasGroups : std::false_type {};
template <typename Config>
struct HasGroups<Config, std::void_t<decltype(Config::group_ids)>> : std::true_type {};

/** What the functions of the table are called with, and they themselves. */
template <typename Client, typename Replicate>
class LentMooncake {
 public:
  LentMooncake(std::shared_ptr<Client> client, Replicate replicate)
      : client_(std::move(client)), replicate_(std::move(replicate)) {}

  kvb_store_table table(bool tenant, bool device_memory) {
    auto it = store_table(this);
    it.exist = exist;
    it.put = put;
    it.get = get;
    it.remove = remove;
    it.register_memory = register_memory;
    it.unregister_memory = unregister_memory;
    it.health = health;
    it.release = release;
    it.pieces_per_key = kTransfers;
    it.keys_per_call = kTransfers;
    it.soft_pin_ttl = HasSoftPin<Replicate>::value;
    it.groups = HasGroups<Replicate>::value;
    it.tenant = tenant;
    it.device_memory = device_memory;
    return it;
  }

 private:
  /** Transfers at once: above some 2,000 to one peer Mooncake 0.3.13 loses that peer for good. */
  static constexpr uint32_t kTransfers = 1024;

  static LentMooncake& of(void* context) { return *static_cast<LentMooncake*>(context); }

  static std::string text(const kvb_bytes& it) {
    return {reinterpret_cast<const char*>(it.data), it.size};
  }
  static std::vector<std::string> texts(const kvb_bytes* list, size_t first, size_t end) {
    std::vector<std::string> all;
    all.reserve(end - first);
    for (size_t i = first; i < end; ++i) all.push_back(text(list[i]));
    return all;
  }

  /** Calls part(first, end) for keys with no more pieces together than there may be transfers. */
  template <typename Part>
  static int32_t in_parts(const kvb_store_call& call, Part part) {
    for (size_t first = 0, end = 0, pieces = 0; first < call.count; first = end) {
      for (end = first + 1; end < call.count; ++end)
        if (call.piece_ends[end] - pieces > kTransfers) break;
      if (auto code = part(first, end)) return code;
      pieces = call.piece_ends[end - 1];
    }
    return 0;
  }

  /** The pieces of some keys as Mooncake takes them. */
  struct Buffers {
    Buffers(const kvb_store_call& call, size_t first, size_t end)
        : addresses(end - first), sizes(end - first) {
      size_t at = first == 0 ? 0 : call.piece_ends[first - 1];
      for (size_t i = first; i < end; ++i)
        for (; at < call.piece_ends[i]; ++at) {
          const auto& piece = call.pieces[at];
          auto address = reinterpret_cast<void*>(static_cast<uintptr_t>(piece.address));
          addresses[i - first].push_back(address);
          sizes[i - first].push_back(static_cast<size_t>(piece.size));
        }
    }
    uint64_t bytes(size_t key) const {
      uint64_t sum = 0;
      for (auto size : sizes[key]) sum += size;
      return sum;
    }
    std::vector<std::vector<void*>> addresses;
    std::vector<std::vector<size_t>> sizes;
  };

  /** A code that is no outcome. After a transfer or a call to the master was lost, buffers of the
   * call were seen to be written to later. */
  static int32_t failure(int64_t code) {
    switch (code) {
      case -800: /* TRANSFER_FAIL */
      case -900: /* RPC_FAIL */
      case -901: /* RPC_TIMEOUT */
        return KVB_STORE_UNREACHABLE;
      default:
        /* Where 3 is no outcome it counts as a failure as well. */
        return code < 0 && code >= -19999 ? static_cast<int32_t>(code) : 3;
    }
  }

  /** Writes an outcome per answer, from key `first` on. A list of another length is what a client
   * that is not set up has. */
  template <typename Answers, typename Outcome>
  static int32_t answer(const kvb_store_call& call, size_t first, size_t end,
                        const Answers& answers, Outcome outcome) {
    if (answers.size() != end - first) return -600; /* INVALID_PARAMS */
    for (size_t i = first; i < end; ++i) call.outcomes[i] = outcome(i, answers[i - first]);
    return 0;
  }

  static int32_t exist(void* context, const kvb_store_call* call) {
    auto answers = of(context).client_->batchIsExist(texts(call->keys, 0, call->count));
    return answer(*call, 0, call->count, answers, [](size_t, int64_t it) {
      return it == 0 || it == 1 ? static_cast<int32_t>(it) : failure(it);
    });
  }

  static int32_t put_outcome(int64_t code) {
    switch (code) {
      case 0:
        return KVB_PUT_STORED;
      case -200: /* NO_AVAILABLE_HANDLE */
        return KVB_PUT_NO_SPACE;
      case -705: /* OBJECT_ALREADY_EXISTS */
        return KVB_PUT_ALREADY_THERE;
      default:
        return failure(code);
    }
  }

  /** A put is answered 0 also while another client writes the key, and for half a minute if that
   * one died over it. Asks for those keys, and makes REPLICA_IS_NOT_READY of the 0 of what is not
   * there. */
  template <typename Codes>
  static void confirm(Client& client, const std::vector<std::string>& keys, Codes& codes) {
    std::vector<std::string> asked;
    int64_t silence = 0;
    for (size_t i = 0; i < keys.size() && i < codes.size(); ++i) {
      if (codes[i] == 0) asked.push_back(keys[i]);
      /* The master does not answer: another call would wait as long. */
      if (codes[i] == -900 || codes[i] == -901) silence = codes[i];
    }
    if (asked.empty()) return;
    std::vector<int64_t> there(asked.size(), silence);
    if (silence == 0) {
      auto answers = client.batchIsExist(asked);
      there.assign(answers.begin(), answers.end());
    }
    size_t at = 0;
    for (auto& code : codes) {
      if (code != 0) continue;
      int64_t answer = at < there.size() ? there[at] : -600; /* INVALID_PARAMS */
      ++at;
      if (answer == 0) code = -703; /* REPLICA_IS_NOT_READY */
      if (answer < 0) code = static_cast<int>(answer);
    }
  }

  static int32_t put(void* context, const kvb_store_call* call) {
    return in_parts(*call, [&](size_t first, size_t end) {
      auto& self = of(context);
      auto replicate = self.replicate_;
      if constexpr (HasSoftPin<Replicate>::value) {
        if (call->soft_pin_ttl_ms > 0) {
          using Action = decltype(replicate.soft_pin_action);
          replicate.soft_pin_action = Action::ENABLE;
          replicate.soft_pin_ttl_ms = call->soft_pin_ttl_ms;
        }
      }
      if constexpr (HasGroups<Replicate>::value) {
        if (call->groups != nullptr) replicate.group_ids = texts(call->groups, first, end);
      }
      Buffers buffers(*call, first, end);
      auto keys = texts(call->keys, first, end);
      auto codes = self.client_->batch_put_from_multi_buffers(keys, buffers.addresses,
                                                              buffers.sizes, replicate);
      confirm(*self.client_, keys, codes);
      return answer(*call, first, end, codes, [](size_t, int64_t it) { return put_outcome(it); });
    });
  }

  static int32_t get(void* context, const kvb_store_call* call) {
    return in_parts(*call, [&](size_t first, size_t end) {
      Buffers buffers(*call, first, end);
      auto landed = of(context).client_->batch_get_into_multi_buffers(
          texts(call->keys, first, end), buffers.addresses, buffers.sizes, false);
      return answer(*call, first, end, landed, [&](size_t key, int64_t it) -> int32_t {
        /* REPLICA_IS_NOT_READY, OBJECT_NOT_FOUND */
        if (it == -703 || it == -704) return KVB_GET_MISSING;
        if (it < 0) return failure(it);
        /* A smaller object was read into a part of the buffers. */
        if (static_cast<uint64_t>(it) != buffers.bytes(key - first)) return KVB_GET_FAILED;
        call->sizes[key] = static_cast<uint64_t>(it);
        return KVB_GET_LANDED;
      });
    });
  }

  static int32_t remove(void* context, const kvb_store_call* call) {
    for (size_t i = 0; i < call->count; ++i) {
      auto code = of(context).client_->remove(text(call->keys[i]), call->force == 1);
      switch (code) {
        case 0:
          call->outcomes[i] = KVB_REMOVE_REMOVED;
          break;
        case -704:
          call->outcomes[i] = KVB_REMOVE_MISSING;
          break;
        case -706:
          call->outcomes[i] = KVB_REMOVE_LEASED;
          break; /* OBJECT_HAS_LEASE */
        default:
          call->outcomes[i] = failure(code);
      }
      /* One call per key: those behind it would wait as long. */
      if (call->outcomes[i] == KVB_STORE_UNREACHABLE) return KVB_STORE_UNREACHABLE;
    }
    return 0;
  }

  static int32_t register_memory(void* context, uint64_t address, uint64_t size) {
    auto start = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    return of(context).client_->register_buffer(start, static_cast<size_t>(size));
  }
  static int32_t unregister_memory(void* context, uint64_t address, uint64_t) {
    auto start = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    return of(context).client_->unregister_buffer(start);
  }
  static int32_t health(void* context) {
    switch (of(context).client_->health_check()) {
      case 0:
        return 0;
      case 2:
        return KVB_STORE_UNREACHABLE;
      default:
        return -1;
    }
  }
  static void release(void* context) { delete &of(context); }

  std::shared_ptr<Client> client_;
  Replicate replicate_;
};

}  // namespace detail
/** @endcond */

/** Whether soft_pin_ttl_ms can be honoured with this ReplicateConfig. Look before memory is
 * mounted, if the configuration asks for it. */
template <typename ReplicateConfig>
constexpr bool mooncake_can_soft_pin = detail::HasSoftPin<ReplicateConfig>::value;
/** Whether group_blocks can be honoured with this ReplicateConfig. */
template <typename ReplicateConfig>
constexpr bool mooncake_can_group = detail::HasGroups<ReplicateConfig>::value;

/**
 * Opens a store on a client that is set up, for a configuration with kvbridge.store = "host". The
 * client is held until the last store or worker on it is gone.
 *
 * `replicate` is what every put has beside what is asked of it. `is_tenants`: the client was set up
 * for the configuration's tenant_id. `reaches_device`: its transport reads and writes memory of a
 * device, as RDMA with GPUDirect does; stage_through_host = false needs that for a cache on one.
 */
template <typename ReplicateConfig, typename Client>
Store lend_mooncake(const Config& config, const kvb_engine& engine, std::shared_ptr<Client> client,
                    ReplicateConfig replicate = {}, bool is_tenants = false,
                    bool reaches_device = false) {
  using Lent = detail::LentMooncake<Client, ReplicateConfig>;
  auto lent = std::make_unique<Lent>(std::move(client), std::move(replicate));
  auto table = lent->table(is_tenants, reaches_device);
  auto store = Store::open(config, engine, &table);
  /* From here on it is the table's release that deletes it. */
  (void)lent.release();
  return store;
}

}  // namespace kvb

#endif
