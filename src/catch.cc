// Contains what a function of the host throws. Rust cannot catch foreign exceptions: one that
// reaches a Rust frame that catches ends the process.

#include <cxxabi.h>

#include <cstddef>
#include <cstring>
#include <exception>

namespace {

void keep(const char* what, char* text, std::size_t room) {
  if (room == 0) return;
  std::strncpy(text, what, room - 1);
  text[room - 1] = '\0';
}

}  // namespace

// Calls `call(argument)`. False when it threw, with what it said in `text`. A panic of Rust goes on
// up to whom it belongs; `is_panicking` tells it apart from exceptions of another C++ runtime.
extern "C" bool kvbridge_call_host(void (*call)(void*), void* argument, bool (*is_panicking)(),
                                   char* text, std::size_t room) {
  try {
    call(argument);
    return true;
  } catch (const abi::__forced_unwind&) {
    // A thread that is being cancelled; its end must not be held up.
    throw;
  } catch (const std::exception& error) {
    keep(error.what(), text, room);
  } catch (...) {
    // Null for what this C++ runtime did not throw. Its type must not be asked for: that reads
    // where such an exception has nothing.
    if (std::current_exception() == nullptr && is_panicking()) throw;
    keep("something that is no std::exception", text, room);
  }
  return false;
}
