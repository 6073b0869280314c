/* The engine's tests with caches in memory of the host. */
#include "engine_testing.h"

namespace testing_engine {

std::shared_ptr<miniature::Device> device() { return nullptr; }

void expect_in_place(const miniature::Engine& engine) {
  EXPECT_EQ(engine.options().device, nullptr);
}

/* The embedded pool copies such memory as it copies its own. */
EngineOptions direct(const std::string& pool, const std::string& more) {
  auto json = pool_json(pool, R"("page_format": "raw")");
  return shape(json.insert(1, R"("stage_through_host": false, )" + more));
}

}  // namespace testing_engine
