/* Faults that were reported against systems of this kind, as far as the interface can show them:
   each is an input and its right answer. The numbers are those of the project's list of cases.
   Here: keys, bytes, sizes, configuration. */
#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "rig.h"

using testing_kvb::expect_error;
using namespace testing_rig;

namespace {

void expect_distinct(const std::vector<std::vector<uint8_t>>& lists, size_t hash_bytes) {
  std::set<std::vector<uint8_t>> seen;
  for (const auto& list : lists) {
    ASSERT_FALSE(list.empty());
    for (size_t at = 0; at < list.size(); at += hash_bytes) {
      auto begin = list.begin() + static_cast<ptrdiff_t>(at);
      EXPECT_TRUE(seen.emplace(begin, begin + static_cast<ptrdiff_t>(hash_bytes)).second);
    }
  }
}

/* Memory that costs nothing until it is touched. */
struct Sparse {
  explicit Sparse(size_t bytes)
      : size(bytes),
        data(static_cast<uint8_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~Sparse() { munmap(data, size); }
  bool there() const { return data != MAP_FAILED; }
  size_t size;
  uint8_t* data;
};

constexpr size_t kGiB = size_t{1} << 30;

}  // namespace

TEST(Cases, Case12AdaptersDoNotShare) {
  auto tokens = counted(64);
  auto request = kvb::request(1, kvb::tokens(tokens));
  request.has_cache_salt = 1;
  request.cache_salt = kvb::bytes("tenant");
  auto a = request, b = request;
  a.has_lora_identity = b.has_lora_identity = 1;
  a.lora_identity = kvb::bytes("A");
  b.lora_identity = kvb::bytes("B");
  std::vector<std::vector<uint8_t>> lists;
  for (auto& it : {request, a, b}) lists.push_back(kvb::hash_blocks(KVB_SCHEME_KVB1, it, T));
  expect_distinct(lists, 32);
  a.has_lora_task_id = b.has_lora_task_id = 1;
  a.lora_task_id = 1;
  b.lora_task_id = 2;
  lists.clear();
  for (auto& it : {request, a, b}) lists.push_back(kvb::hash_blocks(KVB_SCHEME_TRTLLM, it, T));
  expect_distinct(lists, 16);
}

TEST(Cases, Case15ScopeFieldsDoNotRunTogether) {
  auto tokens = counted(32);
  const std::string digest(32, 'd');
  std::vector<kvb_request> requests;
  auto add = [&](const char* salt, const char* lora, int64_t task, size_t media) {
    auto it = kvb::request(1, kvb::tokens(tokens));
    if (salt) it.has_cache_salt = 1, it.cache_salt = kvb::bytes(salt);
    if (lora) it.has_lora_identity = 1, it.lora_identity = kvb::bytes(lora);
    if (task) it.has_lora_task_id = 1, it.lora_task_id = task;
    it.has_media = media > 0;
    it.media_count = media;
    it.media_digests = kvb::bytes(digest).data;
    requests.push_back(it);
  };
  auto hashed = [&](int32_t scheme) {
    std::vector<std::vector<uint8_t>> lists;
    for (const auto& it : requests) lists.push_back(kvb::hash_blocks(scheme, it, T));
    return lists;
  };
  add("lora:1", nullptr, 0, 0);
  add(nullptr, nullptr, 1, 0);
  add("a", nullptr, 1, 0);
  add(nullptr, nullptr, 0, 0);
  add("a", nullptr, 0, 0);
  add(nullptr, nullptr, 0, 1);
  add(digest.c_str(), nullptr, 0, 0);
  add("a", nullptr, 1, 1);
  expect_distinct(hashed(KVB_SCHEME_TRTLLM), 16);
  add(nullptr, "1", 0, 0);
  add(nullptr, "lora:1", 0, 0);
  add("a", "bc", 0, 0);
  add("ab", "c", 0, 0);
  add("abc", nullptr, 0, 0);
  add(nullptr, "abc", 0, 0);
  add("abc", "", 0, 0);
  add("", "abc", 0, 0);
  add("", nullptr, 0, 0);
  add(nullptr, "", 0, 0);
  add("", "", 0, 0);
  add(nullptr, digest.c_str(), 0, 0);
  expect_distinct(hashed(KVB_SCHEME_KVB1), 32);
}

TEST(Cases, Case16MediaDigestsDecide) {
  auto tokens = counted(T);
  auto request = kvb::request(1, kvb::tokens(tokens));
  request.has_media = 1;
  std::vector<std::vector<uint8_t>> lists;
  std::vector<uint64_t> digest(4);
  request.media_digests = reinterpret_cast<const uint8_t*>(digest.data());
  request.media_count = 1;
  uint64_t state = 1;
  for (int i = 0; i < 10000; ++i) {
    for (auto& part : digest) part = state = state * 6364136223846793005u + 1442695040888963407u;
    lists.push_back(kvb::hash_blocks(KVB_SCHEME_KVB1, request, T));
  }
  for (int bit = 0; bit < 256; ++bit) {
    digest[bit / 64] ^= uint64_t{1} << bit % 64;
    lists.push_back(kvb::hash_blocks(KVB_SCHEME_KVB1, request, T));
    digest[bit / 64] ^= uint64_t{1} << bit % 64;
  }
  expect_distinct(lists, 32);
}

TEST(Cases, Case18NumberFormatsDoNotCross) {
  const char* formats[] = {"fp8_e4m3", "fp8_e5m2", "int8"};
  Rig keeper(json("case18"));
  auto prompt = counted(65);
  for (const char* format : formats) {
    Rig rig(json("case18"), format);
    EXPECT_EQ(rig.serve(1, prompt), 0u) << format;
    EXPECT_EQ(rig.serve(2, prompt), 64u) << format;
  }
  EXPECT_EQ(keeper.store.stats().objects, 3 * 4u);
}

TEST(Cases, Case19NamesDoNotRunTogether) {
  std::set<std::string> keys;
  const std::pair<const char*, const char*> names[] = {
      {"a/b", "c"},   {"a", "b/c"},   {"n", "orgA/x"}, {"n", "orgB/x"}, {"n", "a/b-c"},
      {"n", "a-b/c"}, {"n/a", "b-c"}, {"a%2Fb", "c"},  {"a", "b%2Fc"},  {"a", "/b/c"},
      {"a/", "b/c"},  {"a.b", "c"},   {"a b", "c"},    {"\\u00e4", "c"}};
  std::vector<uint8_t> hash(32, 7);
  for (const auto& [space, model] : names) {
    Rig rig(json("case19"));
    auto config = kvb::Config::from_json(std::string(R"({"namespace": ")") + space +
                                         R"(", "model_key": ")" + model + "\"}");
    auto key = kvb::page_key(config, rig.engine, rig.layout(), 0, 0, hash.data(), hash.size());
    EXPECT_TRUE(keys.insert(key).second) << key;
    EXPECT_EQ(std::count(key.begin(), key.end(), '/'), 4) << key;
  }
}

TEST(Cases, Case76MetadataBytesThatAreDamaged) {
  Rig rig(json("case76"));
  auto prompt = counted(100);
  rig.serve(1, {prompt.begin(), prompt.begin() + 40});
  auto pages = slots(7, 20);
  auto offered = rig.match(2, prompt);
  rig.allocated(2, offered, pages);
  auto built = rig.build(2, prompt, 0, 100 - offered, pages);
  const auto bytes = built.encode();
  ASSERT_EQ(kvb::Metadata::decode(bytes).encode(), bytes);
  auto refused = [](const std::vector<uint8_t>& wrong) {
    kvb_metadata* out = nullptr;
    auto status = kvb_metadata_decode(wrong.data(), wrong.size(), &out);
    EXPECT_EQ(out, nullptr);
    kvb_metadata_free(out);
    return status == KVB_MALFORMED;
  };
  for (size_t size = 0; size < bytes.size(); ++size) {
    /* In a buffer of its own, so that tools see a read behind its end. */
    std::vector<uint8_t> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    part.shrink_to_fit();
    EXPECT_TRUE(refused(part)) << size << " bytes";
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(refused(flipped)) << "bit " << bit;
  }
  auto longer = bytes;
  longer.push_back(0);
  EXPECT_TRUE(refused(longer));
  EXPECT_TRUE(refused(std::vector<uint8_t>(4096, 0xff)));
  EXPECT_TRUE(refused(std::vector<uint8_t>(4096, 0)));
  rig.run(built);
  rig.finish(2);
}

TEST(Cases, Case80SizesBeyondFourGiB) {
  Sparse memory(5 * kGiB);
  if (!memory.there()) GTEST_SKIP() << "no address space";
  Rig rig(json("case80"));
  auto outcomes =
      rig.store.put({kvb::bytes("three"), kvb::bytes("two"), kvb::bytes("five")},
                    {kvb::piece(memory.data, 3 * kGiB), kvb::piece(memory.data, 2 * kGiB),
                     kvb::piece(memory.data, 5 * kGiB)});
  for (auto outcome : outcomes)
    EXPECT_TRUE(outcome == KVB_PUT_NO_SPACE || outcome == KVB_PUT_FAILED) << outcome;
  EXPECT_EQ(rig.store.stats().objects, 0u);
  /* 3 + 2 GiB are not 1 GiB. */
  std::set<std::string> keys;
  std::vector<uint8_t> hash(32);
  auto add = [&](std::vector<uint64_t> sizes) {
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, "float16", "", {0});
    auto base = kvb::piece(memory.data, 0).address;
    for (auto size : sizes) {
      kvb_region region{};
      region.base = base;
      region.size = region.stride = size;
      region.slot_count = 1;
      layout.add_region(0, region);
      base += size;
    }
    keys.insert(kvb::page_key(rig.config, rig.engine, layout, 0, 0, hash.data(), hash.size()));
  };
  add({3 * kGiB, 2 * kGiB});
  add({kGiB});
  add({3 * kGiB, 1});
  add({5 * kGiB});
  EXPECT_EQ(keys.size(), 4u);
}

TEST(Cases, Case81AddressesHave64Bits) {
  constexpr uint64_t stride = 1002240, count = 2144;
  static_assert(stride * (count - 1) > (uint64_t{1} << 31), "needs more than 31 bits");
  Sparse memory(stride * count);
  if (!memory.there()) GTEST_SKIP() << "no address space";
  Rig rig(json("case81", kRaw));
  rig.worker.unregister_layout();
  auto region = rig.region();
  region.base = kvb::piece(memory.data, 0).address;
  region.stride = stride;
  region.slot_count = count;
  auto layout = kvb::Layout::with_mapping();
  layout.add_group(0, 0, rig.format, "", {0}).add_region(0, region);
  rig.worker.register_layout(layout);

  auto prompt = counted(17);
  auto* last = memory.data + stride * 2143;
  std::memset(last, 99, kPage);
  ASSERT_EQ(rig.match(1, prompt), 0u);
  rig.allocated(1, 0, {2143, 0});
  rig.run(rig.build(1, prompt, 0, 17, {2143, 0}));
  rig.finish(1);
  EXPECT_EQ(rig.byte_of(prompt, 0), 99);
  std::memset(last, 0, kPage);
  ASSERT_EQ(rig.match(2, prompt), 16u);
  rig.allocated(2, 16, {2143, 0});
  rig.run(rig.build(2, prompt, 0, 1, {2143, 0}));
  EXPECT_EQ(last[0], 99);
  EXPECT_EQ(last[kPage - 1], 99);
  EXPECT_EQ(last[kPage], 0);
  rig.finish(2);

  for (int32_t index : {2144, 2147483647}) {
    rig.match(3, prompt);
    expect_error(KVB_OUT_OF_RANGE, std::to_string(index), [&] { rig.allocated(3, 0, {index, 0}); });
    rig.finish(3);
  }
  /* A region whose last slot lies beyond 64 bits. */
  region.base = ~uint64_t{0} - stride;
  auto beyond = kvb::Layout::with_mapping();
  beyond.add_group(0, 0, rig.format, "", {0});
  expect_error(KVB_INVALID_ARGUMENT, "", [&] { beyond.add_region(0, region); });
}

TEST(Cases, Case84SizesAreReadExactly) {
  auto with = [](const std::string& size) {
    return kvb::Config::from_json(R"({"model_key": "m", "global_segment_size": )" + size + "}")
        .render();
  };
  auto expect_size = [&](const std::string& text, const std::string& bytes) {
    auto rendered = with(text);
    EXPECT_NE(rendered.find("\"global_segment_size\": " + bytes + ","), std::string::npos)
        << text << "\n"
        << rendered;
  };
  expect_size(R"("4GiB")", "4294967296");
  expect_size(R"(" 4 GiB ")", "4294967296");
  expect_size(R"("4gib")", "4294967296");
  expect_size(R"("1.5GiB")", "1610612736");
  expect_size(R"("4096")", "4096");
  expect_size("4096", "4096");
  auto expect_refused = [&](const std::string& text, const std::string& part) {
    expect_error(KVB_CONFIG_INVALID, "global_segment_size", [&] { with(text); });
    EXPECT_NE(kvb::last_error().find(part), std::string::npos) << kvb::last_error();
  };
  expect_refused(R"("4GB")", "4GB");
  expect_refused(R"("4GB")", "GiB");
  for (const char* value : {"1.5", "-5", "50%", "1e9", "18446744073709551616"})
    expect_refused("\"" + std::string(value) + "\"", value);
  expect_refused(R"("")", "\"\"");
  expect_refused("true", "true");
  expect_refused("1.5", "1.5");
  expect_refused("-5", "-5");
}

TEST(Cases, Case85EveryProblemIsSaid) {
  expect_error(KVB_CONFIG_INVALID, "stage_through_host", [] {
    kvb::Config::from_json(R"({"model_key": "m", "stage_through_host": "false"})");
  });
  expect_error(KVB_CONFIG_INVALID, "page_format", [] {
    kvb::Config::from_json(R"({"model_key": "m", "kvbridge": {"page_fromat": "raw"}})");
  });
  EXPECT_NE(kvb::last_error().find("page_fromat"), std::string::npos) << kvb::last_error();
  expect_error(KVB_CONFIG_INVALID, "async_load", [] {
    kvb::Config::from_json(
        R"({"model_key": "m", "async_load": "false", "kvbridge": {"storr": "embedded"}})");
  });
  EXPECT_NE(kvb::last_error().find("storr"), std::string::npos) << kvb::last_error();
}
