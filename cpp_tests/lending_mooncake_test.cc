/* A client of Mooncake's shape as the store: names, types and codes as in its headers. */
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "kvbridge/kvbridge_mooncake.hpp"
#include "rig.h"

namespace {

using namespace testing_rig;

enum class SoftPinAction : uint8_t { PRESERVE = 0, ENABLE = 1, DISABLE = 2 };

struct ReplicateConfig {
  size_t replica_num{1};
  SoftPinAction soft_pin_action{SoftPinAction::PRESERVE};
  std::optional<uint64_t> soft_pin_ttl_ms{};
  std::optional<std::vector<std::string>> group_ids{};
};

/* As it was before soft pins had a TTL. */
struct OldReplicateConfig {
  size_t replica_num{1};
  bool with_soft_pin{false};
};

using Keys = std::vector<std::string>;
using Buffers = std::vector<std::vector<void*>>;
using Sizes = std::vector<std::vector<size_t>>;

template <typename Replicate>
struct Client {
  std::mutex mutex;
  std::map<std::string, std::string> objects;
  std::vector<Replicate> puts;
  std::map<void*, size_t> registered;
  int health = 0;
  /* Instead of the answer for a key; 0 is none. */
  std::map<std::string, int> codes;
  /* Instead of the answer about a key's existence. */
  std::map<std::string, int> presence;
  /* Keys that others are writing. */
  std::set<std::string> being_written;
  size_t questions = 0;
  bool is_set_up = true;

  virtual ~Client() = default;

  int code(const std::string& key) { return codes.count(key) != 0 ? codes[key] : 0; }

  virtual std::vector<int> batchIsExist(const Keys& keys) {
    std::vector<int> out;
    ++questions;
    for (auto& key : keys)
      out.push_back(presence.count(key) != 0 ? presence[key]
                    : code(key) != 0         ? code(key)
                                             : static_cast<int>(objects.count(key)));
    if (!is_set_up) out.clear();
    return out;
  }
  virtual std::vector<int> batch_put_from_multi_buffers(const Keys& keys, const Buffers& buffers,
                                                        const Sizes& sizes,
                                                        const Replicate& config = {}) {
    std::lock_guard<std::mutex> lock(mutex);
    puts.push_back(config);
    std::vector<int> out;
    for (size_t i = 0; i < keys.size(); ++i) {
      out.push_back(code(keys[i]));
      if (out.back() != 0 || objects.count(keys[i]) != 0) continue;
      if (being_written.count(keys[i]) != 0) continue;
      for (size_t p = 0; p < buffers[i].size(); ++p)
        objects[keys[i]].append(static_cast<char*>(buffers[i][p]), sizes[i][p]);
    }
    return out;
  }
  virtual std::vector<int> batch_get_into_multi_buffers(const Keys& keys, const Buffers& buffers,
                                                        const Sizes& sizes, bool) {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<int> out;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (code(keys[i]) != 0) {
        out.push_back(code(keys[i]));
      } else if (objects.count(keys[i]) == 0) {
        out.push_back(-704);
      } else {
        auto& object = objects[keys[i]];
        size_t room = 0, done = 0;
        for (auto size : sizes[i]) room += size;
        for (size_t p = 0; room >= object.size() && p < sizes[i].size(); ++p)
          if (done < object.size())
            done += object.copy(static_cast<char*>(buffers[i][p]), sizes[i][p], done);
        out.push_back(room < object.size() ? -600 : static_cast<int>(object.size()));
      }
    }
    return out;
  }
  virtual int register_buffer(void* buffer, size_t size) {
    return registered.emplace(buffer, size).second ? 0 : -600;
  }
  virtual int unregister_buffer(void* buffer) { return registered.erase(buffer) == 1 ? 0 : -600; }
  virtual int remove(const std::string& key, bool force = false) {
    if (code(key) != 0 && !force) return code(key);
    return objects.erase(key) == 1 ? 0 : -704;
  }
  virtual int health_check() { return health; }
};

std::string lent(const std::string& more = "") {
  return R"({"model_key": "model", "staging_buffer_bytes": "64KiB", )" + more +
         R"("kvbridge": {"store": "host"}})";
}

template <typename Replicate>
kvb::Store lend(const std::shared_ptr<Client<Replicate>>& client, Replicate replicate = {}) {
  return kvb::lend_mooncake<Replicate>(kvb::Config::from_json(lent()), kvb::engine(T), client,
                                       replicate);
}

struct Stored {
  Keys names;
  std::vector<kvb_bytes> keys;
  std::vector<std::string> values;
  std::vector<kvb_piece> pieces;

  explicit Stored(Keys given) : names(std::move(given)), values(names.size(), std::string(8, 'v')) {
    for (size_t i = 0; i < names.size(); ++i) {
      keys.push_back(kvb::bytes(names[i]));
      pieces.push_back(kvb::piece(values[i].data(), values[i].size()));
    }
  }
};

static_assert(kvb::mooncake_can_soft_pin<ReplicateConfig>);
static_assert(kvb::mooncake_can_group<ReplicateConfig>);
static_assert(!kvb::mooncake_can_soft_pin<OldReplicateConfig>);
static_assert(!kvb::mooncake_can_group<OldReplicateConfig>);

TEST(LendingMooncake, AWorkerSavesToItAndLoadsFromIt) {
  auto client = std::make_shared<Client<ReplicateConfig>>();
  std::weak_ptr<Client<ReplicateConfig>> held = client;
  {
    auto config = kvb::Config::from_json(
        lent(R"("soft_pin_ttl_ms": 60000, "group_blocks": true, "tenant_id": "t", )"));
    auto engine = kvb::engine(T);
    auto store = kvb::lend_mooncake<ReplicateConfig>(config, engine, client, {}, true);
    std::vector<uint8_t> memory(kPage * 8);
    auto worker = kvb::Worker::open(config, engine, store);
    auto scheduler = kvb::Scheduler::beside(worker, config, engine);
    kvb_region region{};
    region.base = kvb::piece(memory.data(), 0).address;
    region.size = region.stride = kPage;
    region.slot_count = 8;
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, "float16", "", {0}).add_region(0, region);
    worker.register_layout(layout);
    EXPECT_FALSE(client->registered.empty());

    auto prompt = counted(3 * T);
    auto pages = slots(3);
    auto list = kvb::group_pages(0, 0, pages.data(), pages.size());
    for (uint64_t id : {1u, 2u}) {
      auto offered = scheduler.match(kvb::request(id, kvb::tokens(prompt)), 0).tokens;
      EXPECT_EQ(offered, id == 1 ? 0 : 2u * T);
      scheduler.allocated(id, offered, {list});
      kvb_step step{};
      step.request_id = id;
      step.new_tokens = kvb::tokens(prompt);
      step.pages = &list;
      step.page_lists = 1;
      step.scheduled_tokens = prompt.size() - offered;
      auto metadata = scheduler.build({step});
      worker.bind(metadata);
      worker.start_load(nullptr);
      if (id == 1) std::memset(memory.data(), 7, memory.size());
      EXPECT_EQ(memory[0], 7);
      worker.wait_for_save(nullptr);
      if (scheduler.finished(id, KVB_FINISH_ENDED)) {
        auto saved = worker.get_finished({id}).saved;
        while (saved.empty()) {
          std::this_thread::yield();
          saved = worker.get_finished({}).saved;
        }
      }
      std::memset(memory.data(), 0, memory.size());
    }
    EXPECT_EQ(worker.stats().saved_pages, 3u);
    EXPECT_EQ(worker.stats().loaded_pages, 2u);
    EXPECT_EQ(client->objects.size(), 3u);
    worker.unregister_layout();
    EXPECT_TRUE(client->registered.empty());
    client.reset();
    EXPECT_FALSE(held.expired());
  }
  while (!held.expired()) std::this_thread::yield();
}

TEST(LendingMooncake, SoftPinsAndGroupsBecomeFieldsOfItsOptions) {
  auto client = std::make_shared<Client<ReplicateConfig>>();
  ReplicateConfig replicate;
  replicate.replica_num = 3;
  auto store = lend(client, replicate);
  Stored it({"a", "b"});
  std::vector<kvb_bytes> groups = {kvb::bytes("g"), kvb::bytes("")};
  store.put(it.keys, it.pieces, kvb::put_options(1234, groups));
  store.put(it.keys, it.pieces);
  ASSERT_EQ(client->puts.size(), 2u);
  EXPECT_EQ(client->puts[0].replica_num, 3u);
  EXPECT_EQ(client->puts[0].soft_pin_action, SoftPinAction::ENABLE);
  EXPECT_EQ(client->puts[0].soft_pin_ttl_ms, 1234u);
  EXPECT_EQ(client->puts[0].group_ids, (Keys{"g", ""}));
  EXPECT_EQ(client->puts[1].soft_pin_action, SoftPinAction::PRESERVE);
  EXPECT_FALSE(client->puts[1].soft_pin_ttl_ms.has_value());
  EXPECT_FALSE(client->puts[1].group_ids.has_value());
}

/* The functions of the table, called as the library does. */
struct Direct {
  std::shared_ptr<Client<ReplicateConfig>> client = std::make_shared<Client<ReplicateConfig>>();
  kvb::detail::LentMooncake<Client<ReplicateConfig>, ReplicateConfig> lent{client, {}};
  kvb_store_table table = lent.table(false, false);
  Stored names{{"a", "b", "c", "d"}};
  std::vector<kvb_bytes> groups = {kvb::bytes("g"), kvb::bytes("h"), kvb::bytes("i"),
                                   kvb::bytes("j")};
  std::vector<size_t> ends = {1, 2, 3, 4};
  std::vector<uint64_t> sizes;

  /* A piece per byte of `memory`. */
  std::vector<int32_t> call(kvb_store_batch_function function, const std::string& memory,
                            int32_t returned = 0) {
    std::vector<kvb_piece> pieces;
    for (auto& byte : memory) pieces.push_back(kvb::piece(&byte, 1));
    std::vector<int32_t> outcomes(4, KVB_STORE_NO_ANSWER);
    sizes.assign(4, 0);
    kvb_store_call it{};
    it.struct_size = sizeof it;
    it.count = 4;
    it.keys = names.keys.data();
    it.pieces = pieces.data();
    it.piece_ends = ends.data();
    it.outcomes = outcomes.data();
    it.sizes = sizes.data();
    it.groups = groups.data();
    EXPECT_EQ(function(table.context, &it), returned);
    return outcomes;
  }
};

using List = std::vector<int32_t>;

TEST(LendingMooncake, NoCallHasMoreTransfersThanAPeerTakes) {
  Direct it;
  /* 4 keys with 500, 500, 100 and 1,024 pieces of one byte. */
  std::string bytes(2124, '-'), landed(2124, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>('a' + i % 23);
  it.ends = {500, 1000, 1100, 2124};
  EXPECT_EQ(it.call(it.table.put, bytes), List(4, KVB_PUT_STORED));
  auto& puts = it.client->puts;
  ASSERT_EQ(puts.size(), 3u);
  EXPECT_EQ(puts[0].group_ids, (Keys{"g", "h"}));
  EXPECT_EQ(puts[1].group_ids, (Keys{"i"}));
  EXPECT_EQ(puts[2].group_ids, (Keys{"j"}));
  EXPECT_EQ(it.call(it.table.get, landed), List(4, KVB_GET_LANDED));
  EXPECT_EQ(it.sizes, (std::vector<uint64_t>{500, 500, 100, 1024}));
  EXPECT_EQ(landed, bytes);
}

TEST(LendingMooncake, CodesBecomeOutcomes) {
  Direct it;
  auto& codes = it.client->codes;
  codes = {{"a", -200}, {"b", -705}, {"c", -600}, {"d", -800}};
  EXPECT_EQ(it.call(it.table.put, "1234"),
            (List{KVB_PUT_NO_SPACE, KVB_PUT_ALREADY_THERE, -600, KVB_STORE_UNREACHABLE}));
  codes = {{"a", -704}, {"b", -703}, {"c", -707}, {"d", -900}};
  EXPECT_EQ(it.call(it.table.get, "1234"),
            (List{KVB_GET_MISSING, KVB_GET_MISSING, -707, KVB_STORE_UNREACHABLE}));
  codes = {{"a", -704}, {"b", -706}, {"c", -1}};
  EXPECT_EQ(it.call(it.table.remove, ""),
            (List{KVB_REMOVE_MISSING, KVB_REMOVE_LEASED, -1, KVB_REMOVE_MISSING}));
  codes = {{"a", -704}, {"b", -901}};
  it.call(it.table.remove, "", KVB_STORE_UNREACHABLE);
  codes = {{"a", -900}, {"b", -1}, {"c", 7}};
  EXPECT_EQ(it.call(it.table.exist, ""), (List{KVB_STORE_UNREACHABLE, -1, 3, KVB_ABSENT}));
  for (auto [health, code] : {std::pair{0, 0}, {1, -1}, {2, KVB_STORE_UNREACHABLE}}) {
    it.client->health = health;
    EXPECT_EQ(it.table.health(it.table.context), code);
  }
}

TEST(LendingMooncake, APutCountsWhenTheKeyIsThere) {
  Direct it;
  it.client->being_written = {"b", "d"};
  List wanted{KVB_PUT_STORED, -703, KVB_PUT_STORED, -703};
  EXPECT_EQ(it.call(it.table.put, "1234"), wanted);
  EXPECT_EQ(it.client->questions, 1u);
  /* Others are asked for, whatever became of one. */
  it.client->codes = {{"a", -800}};
  wanted[0] = KVB_STORE_UNREACHABLE;
  EXPECT_EQ(it.call(it.table.put, "1234"), wanted);
  EXPECT_EQ(it.client->questions, 2u);
  /* What cannot be asked for is not known to be stored. */
  it.client->codes = {{"a", -900}};
  EXPECT_EQ(it.call(it.table.put, "1234"), List(4, KVB_STORE_UNREACHABLE));
  it.client->codes = {{"a", -1}, {"b", -1}, {"c", -1}, {"d", -200}};
  EXPECT_EQ(it.call(it.table.put, "1234"), (List{-1, -1, -1, KVB_PUT_NO_SPACE}));
  EXPECT_EQ(it.client->questions, 2u);
  it.client->codes.clear();
  it.client->presence = {{"a", -901}, {"c", -5}};
  EXPECT_EQ(it.call(it.table.put, "1234"), (List{KVB_STORE_UNREACHABLE, -703, -5, -703}));
}

TEST(LendingMooncake, AnOlderClientIsRefusedWhatItCannotDo) {
  auto client = std::make_shared<Client<OldReplicateConfig>>();
  auto store = lend(client);
  Stored it({"a"});
  EXPECT_EQ(store.put(it.keys, it.pieces)[0], KVB_PUT_STORED);
  Stored other({"b"});
  EXPECT_EQ(store.put(other.keys, other.pieces, kvb::put_options(5))[0], KVB_PUT_FAILED);
  EXPECT_EQ(client->puts.size(), 1u);
}

TEST(LendingMooncake, ObjectsOfAnotherSizeDoNotLand) {
  auto client = std::make_shared<Client<ReplicateConfig>>();
  auto store = lend(client);
  Stored it({"a", "b", "c"});
  client->objects = {{"a", "1234567"}, {"b", "12345678"}, {"c", "123456789"}};
  auto got = store.get_into(it.keys, it.pieces);
  EXPECT_EQ(got.outcomes, (std::vector<int32_t>{KVB_GET_FAILED, KVB_GET_LANDED, KVB_GET_FAILED}));
  EXPECT_EQ(got.sizes[1], 8u);
  EXPECT_EQ(it.values[1], "12345678");
}

TEST(LendingMooncake, AClientThatIsNotSetUpFails) {
  auto client = std::make_shared<Client<ReplicateConfig>>();
  auto store = lend(client);
  client->is_set_up = false;
  Stored it({"a"});
  EXPECT_EQ(store.exist(it.keys)[0], KVB_UNKNOWN);
}

TEST(LendingMooncake, AClientIsNotLostWhereNothingIsOpened) {
  auto client = std::make_shared<Client<ReplicateConfig>>();
  auto config = kvb::Config::from_json(json("lending-mooncake"));
  EXPECT_THROW(kvb::lend_mooncake<ReplicateConfig>(config, kvb::engine(T), client), kvb::Error);
  EXPECT_EQ(client.use_count(), 1);
}

TEST(LendingMooncake, ItMayUseTheCacheItself) {
  using Lent = kvb::detail::LentMooncake<Client<ReplicateConfig>, ReplicateConfig>;
  auto client = std::make_shared<Client<ReplicateConfig>>();
  /* Its release deletes it. */
  auto lent = new Lent(client, {});
  EXPECT_EQ(lent->table(false, false).device_memory, 0);
  auto table = lent->table(false, true);
  EXPECT_EQ(table.device_memory, 1);
  {
    Rig rig(R"({"model_key": "model", "stage_through_host": false,
                "kvbridge": {"store": "host", "page_format": "raw"}})",
            "float16", "", &table);
    EXPECT_EQ(client->registered.size(), 1u);
    EXPECT_EQ(client->registered[rig.page(0)], kPage * kSlots);
    EXPECT_EQ(rig.serve(1, counted(3 * T)), 0u);
    std::memset(rig.page(0), 99, 3 * kPage);
    EXPECT_EQ(rig.serve(2, counted(3 * T + 1)), 3 * T);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(rig.page(i)[kPage - 1], 10 + i);
    rig.worker.shutdown(10000);
    EXPECT_TRUE(client->registered.empty());
  }
}

}  // namespace
