// One rank's block pools, laid out as a native KVCacheManager does.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_CACHE_MEMORY_H_
#define KVBRIDGE_EXAMPLES_ENGINE_CACHE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "types.h"

namespace miniature {

// Memory that costs nothing until it is touched, and that processes made from this one share; or
// memory of a device.
class Mapping {
 public:
  Mapping(size_t bytes, std::shared_ptr<Device> device);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  uint8_t* data() const { return data_; }
  uint64_t address() const { return address_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<Device> device_;
  uint8_t* data_;
  uint64_t address_;
  size_t size_;
};

class CacheMemory {
 public:
  CacheMemory(const std::vector<GroupSpec>& groups, uint32_t blocks, uint32_t tokens_per_block,
              const std::shared_ptr<Device>& device = nullptr);

  // The tokens_per_block elements of one layer and factor in one page.
  uint8_t* Row(size_t group, size_t pool, int32_t page, uint32_t layer, uint32_t factor) const {
    const Pool& p = groups_[group][pool];
    return p.memory.data() + static_cast<size_t>(page) * p.block_stride +
           size_t{layer} * p.layer_stride + size_t{factor} * p.row_bytes;
  }
  uint64_t PoolBase(size_t group, size_t pool) const;
  uint64_t PoolBytes(size_t group, size_t pool) const;
  // What an unwritten page looks like: if it is ever published, its loader sees a wrong page.
  void FillGarbage(size_t group, int32_t page) const;
  bool HoldsGarbage(size_t group, int32_t page) const;

 private:
  struct Pool {
    Mapping memory;
    size_t block_stride, layer_stride, row_bytes;
    PoolSpec spec;
  };
  std::vector<std::vector<Pool>> groups_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_CACHE_MEMORY_H_
