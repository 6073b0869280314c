/* The C++ headers stand alone and may come twice, and the C header is C++ too. */
#include "kvbridge/kvbridge.hpp"
#include "kvbridge/kvbridge_kvcache.hpp"
#include "kvbridge/kvbridge_mooncake.hpp"
/* After it, since it must not need what comes before. */
#include "kvbridge/kvbridge.h"

int main() { return kvb::engine(16).tokens_per_block == 16 ? KVB_OK : 1; }
