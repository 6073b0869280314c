// Where the caches of a miniature engine lie if not in memory of the host: a GPU, as far as this
// engine needs one. All its ranks are on the same one and share a stream.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_DEVICE_H_
#define KVBRIDGE_EXAMPLES_ENGINE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace miniature {

class Device {
 public:
  // A forward pass is code for the CPU here, so it has another way to the same bytes.
  struct Memory {
    uint64_t address;  // for the layout
    uint8_t* bytes;    // for the forward pass, and for checks
  };

  virtual ~Device() = default;
  // The pools of a rank are allocated, and registered, on a thread that has the context.
  virtual void MakeCurrent() = 0;
  virtual Memory Allocate(size_t bytes) = 0;
  virtual void Free(uint64_t address) = 0;
  // A CUstream.
  virtual void* stream() = 0;
  // Puts work on the stream, behind what it has, and returns.
  virtual void Launch(std::function<void()> work) = 0;
  // Waits for the stream.
  virtual void Synchronize() = 0;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_DEVICE_H_
