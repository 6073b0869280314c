/* A pool that reads and writes device memory where it lies, as an adapter of a network does: only
 * inside of ranges that it was told of. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_DIRECT_RIG_H
#define KVBRIDGE_CPP_TESTS_CUDA_DIRECT_RIG_H

#include <algorithm>
#include <set>

#include "cuda_rig.h"
#include "lent_pool.h"

namespace testing_cuda {

using testing_lent::LentPool;

/* Direct mode on a pool of the host's own; `more` goes before the other fields, `ours` into the
 * "kvbridge" object. */
inline std::string direct_json(const std::string& more = "", const std::string& ours = "") {
  return R"({"model_key": "model", "stage_through_host": false, )" + more +
         R"("kvbridge": {"store": "host", "page_format": "raw")" + (ours.empty() ? "" : ", ") +
         ours + "}}";
}

struct DirectPool : LentPool {
  DirectPool() {
    /* Called with the lock of the pool held. */
    reach = [this](const kvb_piece& piece) {
      pieces.push_back(piece);
      auto holds = [&](const std::pair<uint64_t, uint64_t>& range) {
        return range.first <= piece.address &&
               piece.address + piece.size <= range.first + range.second;
      };
      if (std::none_of(ranges.begin(), ranges.end(), holds)) ++strangers;
      return static_cast<char*>(stand_in_bytes(piece.address, piece.size));
    };
  }
  /* With so many pieces per key. */
  kvb_store_table table(uint32_t most = 128) {
    auto it = LentPool::table();
    it.device_memory = 1;
    it.pieces_per_key = most;
    return it;
  }
  std::vector<std::pair<uint64_t, uint64_t>> sorted_ranges() {
    std::lock_guard<std::mutex> lock(mutex);
    auto sorted = ranges;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  /* The value of all bytes of the object, of which there is one alone. */
  int stored_value() {
    std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(objects.size(), 1u);
    auto& bytes = objects.begin()->second;
    for (auto byte : bytes) EXPECT_EQ(byte, bytes[0]);
    return static_cast<unsigned char>(bytes[0]);
  }

  std::vector<kvb_piece> pieces;
  int strangers = 0;
};

}  // namespace testing_cuda

#endif
