#include <iomanip>
#include <numeric>
#include <sstream>

#include "testing.h"

using testing_kvb::expect_error;

namespace {

std::string hex(const std::vector<uint8_t>& bytes) {
  std::ostringstream text;
  for (auto byte : bytes) text << std::hex << std::setw(2) << std::setfill('0') << int(byte);
  return text.str();
}

template <typename T>
std::vector<T> counted(size_t count) {
  std::vector<T> tokens(count);
  std::iota(tokens.begin(), tokens.end(), T{1});
  return tokens;
}

}  // namespace

TEST(Keys, BlockHashesAreThoseOfTheGoldenVectors) {
  auto narrow = counted<int32_t>(12);
  auto request = kvb::request(1, kvb::tokens(narrow));
  EXPECT_EQ(hex(kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4)),
            "3e81e1d958fb384cf51ad2295739e310a3d9ca890e3159f28d9b4da65e3ec75b"
            "bbde17f0ad3b6afdc5676b98e5fc959653628dddffb91c4ff05bf800e9b23632"
            "a6cea9c732bc7fd12c20daea621fc44312de0f264c5c5726c95446a0babb6453");
  EXPECT_EQ(hex(kvb::hash_blocks(KVB_SCHEME_TRTLLM, request, 4)),
            "cfea82ad6ceeac82fcb2569ef53ab0f3"
            "797935fa4962d48629261570bc0a5276"
            "2b2e116d8c407c75eeac1b16ab3b5c8b");
}

TEST(Keys, WidthOfTokensDoesNotMatterButScopeAndLookaheadDo) {
  auto narrow = counted<int32_t>(12);
  auto wide = counted<int64_t>(12);
  auto request = kvb::request(1, kvb::tokens(narrow));
  auto plain = kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4);
  EXPECT_EQ(plain, kvb::hash_blocks(KVB_SCHEME_KVB1, kvb::request(2, kvb::tokens(wide)), 4));
  EXPECT_EQ(kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4, 1).size(), 2 * 32u);
  EXPECT_EQ(kvb::hash_blocks(KVB_SCHEME_KVB1, request, 5).size(), 2 * 32u);
  EXPECT_TRUE(kvb::hash_blocks(KVB_SCHEME_KVB1, request, 13).empty());

  request.has_cache_salt = 1;
  auto salted = kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4);
  EXPECT_NE(salted, plain) << "an empty salt is a salt";
  request.cache_salt = kvb::bytes("tenant");
  EXPECT_NE(kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4), salted);
  request.has_cache_salt = 0;
  EXPECT_EQ(kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4), plain) << "the flag decides";
}

TEST(Keys, WrongRequestsAreRefusedByName) {
  auto tokens = counted<int64_t>(4);
  auto request = kvb::request(1, kvb::tokens(tokens));
  auto refused = [&](kvb_status status, const std::string& part, kvb_request wrong) {
    expect_error(status, part, [&] { kvb::hash_blocks(KVB_SCHEME_KVB1, wrong, 4); });
  };
  auto wrong = request;
  wrong.struct_size = 0;
  refused(KVB_INVALID_ARGUMENT, "request->struct_size is 0", wrong);
  wrong = request;
  wrong.prompt.element_type = 2;
  refused(KVB_INVALID_ARGUMENT, "request->prompt.element_type is 2", wrong);
  wrong = request;
  wrong.prompt.data = nullptr;
  refused(KVB_NULL_POINTER, "request->prompt.data is NULL", wrong);
  wrong = request;
  wrong.prompt.data = reinterpret_cast<const char*>(tokens.data()) + 4;
  wrong.prompt.count = 3;
  refused(KVB_INVALID_ARGUMENT, "not aligned to 8", wrong);
  wrong = request;
  wrong.has_media = 2;
  refused(KVB_INVALID_ARGUMENT, "request->has_media is 2", wrong);
  wrong = request;
  wrong.media_count = 1;
  refused(KVB_NULL_POINTER, "request->media_digests is NULL", wrong);
  expect_error(KVB_INVALID_ARGUMENT, "scheme is 7", [&] { kvb::hash_blocks(7, request, 4); });
  tokens[2] = int64_t{1} << 40;
  refused(KVB_INVALID_ARGUMENT, "", request);

  /* A struct of an older host ends before the flags: they count as 0. */
  tokens[2] = 3;
  auto older = request;
  older.struct_size = offsetof(kvb_request, has_cache_salt);
  older.has_cache_salt = 77;
  EXPECT_EQ(kvb::hash_blocks(KVB_SCHEME_KVB1, older, 4),
            kvb::hash_blocks(KVB_SCHEME_KVB1, request, 4));
}

TEST(Keys, PageKeysAreThoseOfTheGoldenVectors) {
  auto config = kvb::Config::from_json(
      R"({"namespace": "prod", "model_key": "orgA/model-7b",
          "kvbridge": {"weights_digest": "sha256:abc"}})");
  auto engine = kvb::engine(32);
  engine.tp_size = 4;
  auto layout = kvb::Layout::with_mapping();
  layout.add_group(0, 0, "fp8_e4m3", "HND", {0, 1, 2, 3});
  kvb_region region{};
  region.base = 1 << 20;
  region.size = region.stride = 65536;
  region.slot_count = 4;
  layout.add_region(0, region);
  region.base = 1 << 24;
  layout.add_region(0, region);
  std::vector<uint8_t> hash;
  for (int i = 0; i < 32; ++i) hash.push_back(static_cast<uint8_t>(0x11 * (i % 16)));

  EXPECT_EQ(kvb::page_key(config, engine, layout, 0, 0, hash.data(), hash.size()),
            "kvb1/prod/orgA%2Fmodel-7b/1b04865afdf8366a844330b9f93edb07/" + hex(hash));
  EXPECT_NE(kvb::page_key(config, engine, layout, 0, 1, hash.data(), hash.size()),
            kvb::page_key(config, engine, layout, 0, 0, hash.data(), hash.size()));

  auto refused = [&](kvb_status status, uint32_t group, int32_t rank, size_t size) {
    expect_error(status, "",
                 [&] { kvb::page_key(config, engine, layout, group, rank, hash.data(), size); });
  };
  refused(KVB_OUT_OF_RANGE, 1, 0, 32);
  refused(KVB_OUT_OF_RANGE, 0, 4, 32);
  refused(KVB_OUT_OF_RANGE, 0, -2, 32);
  refused(KVB_INVALID_ARGUMENT, 0, KVB_SHARD_REPLICATED, 32);
  refused(KVB_INVALID_ARGUMENT, 0, 0, 16);
}
