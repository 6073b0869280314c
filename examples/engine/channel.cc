#include "channel.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

namespace miniature {
namespace {

std::system_error Failure(const char* what) {
  return std::system_error(errno, std::generic_category(), what);
}

// The ends that this process keeps. A process that is made later must not have them: the other one
// would not hear that they are closed.
std::vector<int>& OwnEnds() {
  static std::vector<int> ends;
  return ends;
}

// False: the other end was closed before the first byte.
bool ReadAll(int socket, void* into, size_t size) {
  auto* to = static_cast<uint8_t*>(into);
  for (size_t done = 0; done < size;) {
    const ssize_t got = read(socket, to + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Failure("a message");
    if (got == 0 && done == 0) return false;
    if (got == 0) throw std::runtime_error("the other process ended within a message");
    done += static_cast<size_t>(got);
  }
  return true;
}

void WriteAll(int socket, const void* from, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  for (size_t done = 0; done < size;) {
    const ssize_t put = send(socket, bytes + done, size - done, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw Failure("a message");
    done += static_cast<size_t>(put);
  }
}

void Send(int socket, const Message& message) {
  const uint64_t size = message.bytes().size();
  WriteAll(socket, &size, sizeof size);
  WriteAll(socket, message.bytes().data(), message.bytes().size());
}

bool Receive(int socket, Message* message) {
  uint64_t size = 0;
  if (!ReadAll(socket, &size, sizeof size)) return false;
  std::vector<uint8_t> bytes(size);
  if (size > 0 && !ReadAll(socket, bytes.data(), size)) {
    throw std::runtime_error("the other process ended within a message");
  }
  *message = Message(std::move(bytes));
  return true;
}

// An answer begins with whether it is one, or else the text of an error.
void Serve(int socket, const std::function<Process::Answer()>& make) {
  Process::Answer answer;
  std::string failed_to_begin;
  try {
    answer = make();
  } catch (const std::exception& error) {
    failed_to_begin = error.what();
  }
  for (Message question; Receive(socket, &question);) {
    Message reply;
    try {
      if (!answer) throw std::runtime_error(failed_to_begin);
      const Message said = answer(std::move(question));
      reply.Put(true).PutAll(said.bytes());
    } catch (const std::exception& error) {
      reply = Message().Put(false).PutAll(std::string(error.what()));
    }
    Send(socket, reply);
  }
}

}  // namespace

Process::Process(const std::function<Answer()>& make) : socket_(-1), pid_(-1) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw Failure("a socket");
  // What is in the buffers would be printed twice.
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ < 0) {
    close(ends[0]);
    close(ends[1]);
    throw Failure("a process");
  }
  if (pid_ == 0) {
    close(ends[0]);
    for (const int end : OwnEnds()) close(end);
    OwnEnds().clear();
    int status = 0;
    try {
      Serve(ends[1], make);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", static_cast<int>(getpid()), error.what());
      status = 1;
    }
    std::fflush(nullptr);
    // Nothing of the process that it was made from is to be ended here.
    _exit(status);
  }
  close(ends[1]);
  socket_ = ends[0];
  OwnEnds().push_back(socket_);
}

Process::Process(Process&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), pid_(std::exchange(other.pid_, -1)) {}

Process::~Process() {
  if (socket_ < 0) return;
  auto& own = OwnEnds();
  own.erase(std::remove(own.begin(), own.end(), socket_), own.end());
  close(socket_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

Message Process::Ask(const Message& question) {
  Send(socket_, question);
  Message reply;
  if (!Receive(socket_, &reply)) throw std::runtime_error("a process of an engine ended");
  const bool answered = reply.Take<bool>();
  if (!answered) throw std::runtime_error(reply.TakeAll<std::string>());
  return Message(reply.TakeAll<std::vector<uint8_t>>());
}

}  // namespace miniature
