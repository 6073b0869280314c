/* The C header stands alone, may come twice, and is C11. */
#include "kvbridge/kvbridge.h"

int main(void) {
  kvb_engine engine = {0};
  engine.struct_size = sizeof engine;
  return kvb_abi_version() == KVB_ABI_VERSION && engine.struct_size > 0 ? KVB_OK : 1;
}
