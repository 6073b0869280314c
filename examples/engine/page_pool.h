// The pages of one layer group: who holds them, and what freed ones still contain.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_PAGE_POOL_H_
#define KVBRIDGE_EXAMPLES_ENGINE_PAGE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace miniature {

// A page is held (references > 0), cached (free, but its content may be reused) or empty. A new
// page is an empty one, or the cached one that was left longest ago.
class PagePool {
 public:
  explicit PagePool(uint32_t pages);

  size_t available() const { return empty_.size() + cached_count_; }
  int32_t Allocate();  // -1: every page is held
  void Hold(int32_t page);
  bool Release(int32_t page);  // true: it is empty now

  // The local prefix cache: the page with this content, held or cached; -1 if there is none.
  int32_t Find(uint64_t content) const;
  // Two pages may hold the same block (computed twice at the same time): the first one is named.
  void SetContent(int32_t page, uint64_t content);

 private:
  struct Page {
    uint32_t references = 0;
    bool has_content = false;
    uint64_t content = 0;
    int32_t older = -1, newer = -1;  // neighbours among the cached pages
  };
  void PushCached(int32_t page);
  void UnlinkCached(int32_t page);
  Page& at(int32_t page) { return pages_.at(static_cast<size_t>(page)); }

  std::vector<Page> pages_;
  std::vector<int32_t> empty_;
  int32_t oldest_ = -1, newest_ = -1;
  size_t cached_count_ = 0;
  std::unordered_map<uint64_t, int32_t> by_content_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_PAGE_POOL_H_
