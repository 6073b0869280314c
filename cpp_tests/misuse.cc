/* Misuse of handles that must not compile. Not built: scripts/test compiles it as it is, which
 * shows that nothing but the misuse is wrong, then once per case with the case's macro defined. The
 * comment behind each #ifdef is a regular expression for the error that gcc or clang must report
 * then. */
#include <kvbridge/kvbridge.hpp>

void copying(kvb::Worker& worker) {
#ifdef COPIED /* deleted */
  kvb::Worker other = worker;
#else
  kvb::Worker other = std::move(worker);
#endif
}

void assigning(kvb::Scheduler& mine, kvb::Scheduler& yours) {
#ifdef ASSIGNED /* deleted */
  mine = yours;
#else
  mine = std::move(yours);
#endif
}

void passing(void (*take)(kvb::Store), kvb::Store& store) {
#ifdef PASSED_BY_VALUE /* deleted */
  take(store);
#else
  take(std::move(store));
#endif
}

void collecting(std::vector<kvb::Metadata>& all, kvb::Metadata& metadata) {
#ifdef COLLECTED /* deleted */
  all.push_back(metadata);
#else
  all.push_back(std::move(metadata));
#endif
}

/* An owner that appears by itself would free what somebody else owns. */
void adopting(kvb_worker* raw) {
#ifdef ADOPTED_SILENTLY /* conversion from 'kvb_worker ?\*' */
  kvb::Worker worker = raw;
#else
  kvb::Worker worker(raw);
#endif
  worker.release();
}

void adopting_another(kvb_layout* raw) {
#ifdef ADOPTED_BY_ANOTHER_NOUN /* no matching (function|constructor) */
  kvb::Config owner(raw);
#else
  kvb::Layout owner(raw);
#endif
  owner.release();
}

void registering(kvb::Worker& worker, const kvb::Config& config, const kvb::Layout& layout) {
#ifdef OWNER_OF_ANOTHER_NOUN /* (cannot convert|no viable conversion from) 'const kvb::Config' */
  worker.register_layout(config);
#else
  worker.register_layout(layout);
#endif
  (void)config;
  (void)layout;
}

void moving_across(kvb::Config& config) {
#ifdef MOVED_TO_ANOTHER_NOUN /* conversion from .* 'kvb::Config'.* 'kvb::Store' */
  kvb::Store owner = std::move(config);
#else
  kvb::Config owner = std::move(config);
#endif
}

void freeing(kvb_worker* worker, kvb_scheduler* scheduler) {
#ifdef FREED_AS_ANOTHER_NOUN /* cannot convert 'kvb_scheduler|no matching function */
  kvb_worker_free(scheduler);
#else
  kvb_worker_free(worker);
#endif
  kvb_scheduler_free(scheduler);
  (void)worker;
}

/* A const handle is borrowed. */
void freeing_borrowed(kvb_config* owned, const kvb_config* borrowed) {
#ifdef FREED_THOUGH_BORROWED /* invalid conversion from 'const|no matching function */
  kvb_config_free(borrowed);
#else
  kvb_config_free(owned);
#endif
  (void)owned;
  (void)borrowed;
}

void naming(const char* name, kvb_store* store) {
#ifdef TEXT_AS_HANDLE /* cannot (convert|initialize) */
  kvb_store* handle = name;
#else
  kvb_store* handle = store;
#endif
  (void)handle;
  (void)name;
  (void)store;
}

void deleting(kvb_metadata* metadata) {
#ifdef DELETED /* incomplete type */
  delete metadata;
#else
  kvb_metadata_free(metadata);
#endif
}

void looking_inside(const kvb_layout* layout) {
#ifdef LOOKED_INSIDE /* incomplete type */
  auto inside = *layout;
#else
  auto inside = layout;
#endif
  (void)inside;
}

/* A handle is no number: only a question whether there is one. */
int counting(const kvb::Config& config) {
#ifdef TAKEN_FOR_A_NUMBER /* (cannot convert|no viable conversion) .*'const kvb::Config' */
  return config;
#else
  return config ? 1 : 0;
#endif
}

/* A status that nobody looks at. */
void unheard(kvb::Worker& worker) {
#ifdef NOT_LISTENED_TO /* (ignoring return value|nodiscard) */
  worker.try_start_load(nullptr);
#else
  if (worker.try_start_load(nullptr) != KVB_OK) return;
#endif
}
