/* What several test files need. */
#ifndef KVBRIDGE_CPP_TESTS_TESTING_H
#define KVBRIDGE_CPP_TESTS_TESTING_H

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvbridge/kvbridge.hpp"

namespace testing_kvb {

constexpr uint32_t kBlock = 4; /* tokens */
constexpr size_t kPage = 64;   /* bytes */
constexpr size_t kSlots = 8;

/* A configuration on an embedded pool of its own. */
inline std::string json(const std::string& pool, const std::string& more = "") {
  return R"({"model_key": "model", "global_segment_size": "1MiB", )" + more +
         R"("staging_buffer_bytes": "64KiB", "kvbridge": {"pool": ")" + pool + R"("}})";
}

/* A cache of one group with one region in host memory. */
struct Cache {
  std::vector<uint8_t> memory = std::vector<uint8_t>(kPage * kSlots);

  uint8_t* page(int32_t index) { return memory.data() + kPage * static_cast<size_t>(index); }

  kvb_region region() {
    kvb_region it{};
    it.base = kvb::piece(memory.data(), 0).address;
    it.size = it.stride = kPage;
    it.slot_count = kSlots;
    return it;
  }

  kvb::Layout layout() {
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, "float16", "HND", {0, 1}).add_region(0, region());
    return layout;
  }
};

/* Expects that `call` throws kvb::Error with this status and a text that contains `part`. */
template <typename Call>
void expect_error(kvb_status status, const std::string& part, Call call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected status " << status;
  } catch (const kvb::Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "\"" << error.what() << "\" lacks \"" << part << "\"";
  }
}

}  // namespace testing_kvb

#endif
