#include <cstdio>
#include <kvbridge/kvbridge.hpp>

int main() {
  auto config = kvb::Config::from_json(R"({"model_key": "m"})");
  std::puts(kvb_version());
  return config.render().empty() || kvb_abi_version() != KVB_ABI_VERSION;
}
