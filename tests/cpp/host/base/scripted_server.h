#pragma once

// A TCP server for tests of faulty peers: a function handles each connection.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "os/base/fd.h"

namespace elastic::support {

// The server's end of one connection. Blocking; a false or empty result: the connection has ended.
class ScriptedPeer {
 public:
  explicit ScriptedPeer(os::UniqueFd fd) : fd_(std::move(fd)) {}

  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = ::recv(fd_.get(), bytes.data(), size, MSG_WAITALL);
    return got == static_cast<ssize_t>(size) ? bytes : "";
  }
  void write(std::string_view bytes) {
    [[maybe_unused]] const ssize_t put =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Handles VALIDATE and PING as a real server does.
  bool shake_hands() {
    const std::string frames = read(10);
    if (frames.empty()) return false;
    write(std::string_view(frames).substr(6));
    return true;
  }
  // Reads until the client closes.
  void drain() {
    char bytes[4096];
    while (::recv(fd_.get(), bytes, sizeof bytes, 0) > 0) {
    }
  }
  // Closes with RST instead of FIN.
  void reset() {
    const linger abort{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    fd_.reset();
  }

 private:
  os::UniqueFd fd_;
};

// Handles one connection after the other by `script(peer, number)`; a script ends at the latest
// when its client closes the connection.
class ScriptedServer {
 public:
  using Script = std::function<void(ScriptedPeer&, int)>;

  explicit ScriptedServer(Script script) {
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, script = std::move(script)] {
      for (int number = 0;; ++number) {
        os::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd.valid()) return;
        ScriptedPeer peer(std::move(fd));
        script(peer, number);
      }
    });
  }
  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // ends accept()
    thread_.join();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  os::UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace elastic::support
