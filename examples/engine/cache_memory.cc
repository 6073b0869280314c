#include "cache_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace miniature {

Mapping::Mapping(size_t bytes, std::shared_ptr<Device> device)
    : device_(std::move(device)), data_(nullptr), address_(0), size_(bytes) {
  if (device_) {
    const Device::Memory memory = device_->Allocate(bytes);
    data_ = memory.bytes;
    address_ = memory.address;
    return;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "memory for a block pool");
  }
  data_ = static_cast<uint8_t*>(memory);
  address_ = reinterpret_cast<uintptr_t>(memory);
}

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  if (device_) {
    device_->Free(address_);
  } else {
    munmap(data_, size_);
  }
}

Mapping::Mapping(Mapping&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      address_(other.address_),
      size_(other.size_) {}

CacheMemory::CacheMemory(const std::vector<GroupSpec>& groups, uint32_t blocks,
                         uint32_t tokens_per_block, const std::shared_ptr<Device>& device) {
  for (const GroupSpec& group : groups) {
    std::vector<Pool>& pools = groups_.emplace_back();
    for (const PoolSpec& spec : group.pools) {
      const size_t row = size_t{tokens_per_block} * spec.element_bits / 8;
      const size_t layer = row * spec.kv_factor;
      const size_t bytes = layer * spec.layers * blocks;
      const size_t block_stride = spec.layer_first ? layer : layer * spec.layers;
      const size_t layer_stride = spec.layer_first ? layer * blocks : layer;
      pools.push_back(Pool{Mapping(bytes, device), block_stride, layer_stride, row, spec});
    }
  }
}

uint64_t CacheMemory::PoolBase(size_t group, size_t pool) const {
  return groups_[group][pool].memory.address();
}

uint64_t CacheMemory::PoolBytes(size_t group, size_t pool) const {
  return groups_[group][pool].memory.size();
}

namespace {

constexpr uint8_t kGarbage = 0xA5;

}  // namespace

void CacheMemory::FillGarbage(size_t group, int32_t page) const {
  for (size_t pool = 0; pool < groups_[group].size(); ++pool) {
    const Pool& p = groups_[group][pool];
    for (uint32_t layer = 0; layer < p.spec.layers; ++layer) {
      std::memset(Row(group, pool, page, layer, 0), kGarbage, p.row_bytes * p.spec.kv_factor);
    }
  }
}

bool CacheMemory::HoldsGarbage(size_t group, int32_t page) const {
  for (size_t pool = 0; pool < groups_[group].size(); ++pool) {
    const Pool& p = groups_[group][pool];
    for (uint32_t layer = 0; layer < p.spec.layers; ++layer) {
      const uint8_t* rows = Row(group, pool, page, layer, 0);
      // The first byte is right, and every other is like the one before it.
      if (rows[0] != kGarbage ||
          std::memcmp(rows, rows + 1, p.row_bytes * p.spec.kv_factor - 1) != 0) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace miniature
