#include <cstdio>

#include "notebook.h"

int main() {
  if (keep("a note") != "a note") return std::puts("the note is lost"), 1;
  if (refusal("{}").find("model_key") == std::string::npos) return std::puts("no refusal"), 1;
  std::puts("kept");
}
