/* Defects on purpose: a checker that says nothing about them is not at work. */
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

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

}  // namespace

int main(int argc, char** argv) {
  std::string which = argc == 2 ? argv[1] : "";
  if (which == "overflow") return overflow();
  if (which == "undefined") return undefined();
  if (which == "leak") return leak();
  if (which == "none") return 0;
  std::fputs("planted overflow|undefined|leak|none\n", stderr);
  return 2;
}
