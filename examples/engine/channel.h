// Messages between the processes of an engine: whole ones, in order, over a pair of sockets.
#ifndef KVBRIDGE_EXAMPLES_ENGINE_CHANNEL_H_
#define KVBRIDGE_EXAMPLES_ENGINE_CHANNEL_H_

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace miniature {

// Values one behind the other; who reads knows what was written. Plain types only: both ends are
// the same program.
class Message {
 public:
  Message() = default;
  explicit Message(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  Message& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
    return *this;
  }
  template <typename Container>
  Message& PutAll(const Container& values) {
    Put<uint64_t>(values.size());
    for (const auto& value : values) Put(value);
    return *this;
  }
  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() - at_ < sizeof(T)) throw std::runtime_error("a message ends too early");
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  template <typename Container>
  Container TakeAll() {
    Container values;
    for (uint64_t left = Take<uint64_t>(); left > 0; --left) {
      values.push_back(Take<typename Container::value_type>());
    }
    return values;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
};

// A process made from this one that answers messages. Make it while this process has one thread and
// has opened no pool: a pool's client does not survive being forked.
class Process {
 public:
  // In the new process: called with each message, answers with another. What it throws is thrown by
  // Ask in this process. The new process ends when this one closes its end.
  using Answer = std::function<Message(Message)>;

  // `make` runs in the new process, before its first message.
  explicit Process(const std::function<Answer()>& make);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  Message Ask(const Message& question);

 private:
  int socket_;
  pid_t pid_;
};

}  // namespace miniature

#endif  // KVBRIDGE_EXAMPLES_ENGINE_CHANNEL_H_
