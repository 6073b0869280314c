/* Defects on purpose: a checker that says nothing about them is not at work. */
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "kvbridge/kvbridge.h"

namespace {

/* Volatile, so that no compiler sees through it. */
volatile int one = 1;

int overflow() {
  /* The pointer too, else the undefined-behaviour sanitizer knows its size and speaks first. */
  char* volatile bytes = static_cast<char*>(std::malloc(8));
  volatile char read = bytes[7 + one];
  std::free(bytes);
  return read == 'x' ? 4 : 0;
}

int undefined() {
  int most = std::numeric_limits<int>::max();
  volatile int sum = most + one;
  return sum == 0 ? 4 : 0;
}

int leak() {
  void* volatile lost = std::malloc(123);
  lost = nullptr;
  return lost == nullptr ? 0 : 4;
}

/* A handle of the library, which Rust allocated. */
int handle(bool is_freed) {
  const std::string json = R"({"model_key": "m"})";
  kvb_config* made = nullptr;
  if (kvb_config_from_json(reinterpret_cast<const uint8_t*>(json.data()), json.size(), &made)) {
    return 3;
  }
  if (is_freed) kvb_config_free(made);
  /* A leak checker must not see it here. */
  const_cast<kvb_config* volatile&>(made) = nullptr;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string which = argc == 2 ? argv[1] : "";
  if (which == "overflow") return overflow();
  if (which == "undefined") return undefined();
  if (which == "leak") return leak();
  if (which == "handle") return handle(false);
  if (which == "none") return handle(true);
  std::fputs("planted overflow|undefined|leak|handle|none\n", stderr);
  return 2;
}
