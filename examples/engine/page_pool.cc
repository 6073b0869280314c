#include "page_pool.h"

#include <stdexcept>

namespace miniature {

PagePool::PagePool(uint32_t pages) : pages_(pages) {
  for (uint32_t i = pages; i > 0; --i) empty_.push_back(static_cast<int32_t>(i - 1));
}

int32_t PagePool::Allocate() {
  int32_t page;
  if (!empty_.empty()) {
    page = empty_.back();
    empty_.pop_back();
  } else if (oldest_ >= 0) {
    page = oldest_;
    UnlinkCached(page);
    by_content_.erase(at(page).content);
    at(page).has_content = false;
  } else {
    return -1;
  }
  at(page).references = 1;
  return page;
}

void PagePool::Hold(int32_t page) {
  if (at(page).references++ == 0) {
    if (!at(page).has_content) throw std::logic_error("an empty page cannot be reused");
    UnlinkCached(page);
  }
}

bool PagePool::Release(int32_t page) {
  if (at(page).references == 0) throw std::logic_error("a page was released twice");
  if (--at(page).references > 0) return false;
  if (at(page).has_content) {
    PushCached(page);
    return false;
  }
  empty_.push_back(page);
  return true;
}

int32_t PagePool::Find(uint64_t content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? -1 : found->second;
}

void PagePool::SetContent(int32_t page, uint64_t content) {
  Page& p = at(page);
  if (p.references == 0) throw std::logic_error("only a held page is filled");
  if (p.has_content) return;
  if (by_content_.emplace(content, page).second) {
    p.has_content = true;
    p.content = content;
  }
}

void PagePool::PushCached(int32_t page) {
  at(page).older = newest_;
  at(page).newer = -1;
  (newest_ >= 0 ? at(newest_).newer : oldest_) = page;
  newest_ = page;
  ++cached_count_;
}

void PagePool::UnlinkCached(int32_t page) {
  const Page& p = at(page);
  (p.older >= 0 ? at(p.older).newer : oldest_) = p.newer;
  (p.newer >= 0 ? at(p.newer).older : newest_) = p.older;
  --cached_count_;
}

}  // namespace miniature
