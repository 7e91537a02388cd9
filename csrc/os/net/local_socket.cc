#include "os/net/local_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "os/base/posix_error.h"

namespace elastic::os {
namespace {

constexpr int kBacklog = 64;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status(StatusCode::kInvalidArgument, "the path of a socket has 1 to " +
                                                    std::to_string(sizeof address.sun_path - 1) +
                                                    " bytes: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* to_generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Result<UniqueFd> open_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return posix_error("cannot create a socket", errno);
  return fd;
}

bool is_of_this_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace

Result<LocalListener> LocalListener::open(const std::string& path) {
  const auto address = address_of(path);
  if (!address.ok()) return address.status();
  auto fd = open_socket();
  if (!fd.ok()) return fd.status();
  // The file that bind() creates gets the mode of its socket.
  ::fchmod(fd->get(), S_IRUSR | S_IWUSR);
  int result = ::bind(fd->get(), to_generic(*address), sizeof *address);
  if (result != 0 && errno == EADDRINUSE) {
    auto probe = open_socket();
    if (!probe.ok()) return probe.status();
    // connect(2) is also refused by a file that is no socket.
    struct stat found {};
    const bool is_socket = ::lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
    if (!is_socket || ::connect(probe->get(), to_generic(*address), sizeof *address) == 0 ||
        errno != ECONNREFUSED) {
      return Status(StatusCode::kUnavailable,
                    "cannot listen at " + path + ": it is not a socket, or another process does");
    }
    ::unlink(path.c_str());
    result = ::bind(fd->get(), to_generic(*address), sizeof *address);
  }
  if (result != 0) return posix_error("cannot listen at " + path, errno);
  LocalListener listener(*std::move(fd), path);
  if (::listen(listener.fd(), kBacklog) != 0) {
    return posix_error("cannot listen at " + path, errno);
  }
  return listener;
}

LocalListener::LocalListener(LocalListener&& other) noexcept
    : fd_(std::move(other.fd_)), path_(std::exchange(other.path_, {})) {}

LocalListener::~LocalListener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Listener::AcceptStatus LocalListener::accept(UniqueFd* connection) {
  connection->reset(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection->valid()) {
    if (is_of_this_user(connection->get())) return Listener::AcceptStatus::kAccepted;
    connection->reset();
    return Listener::AcceptStatus::kGone;
  }
  return Listener::failed_accept(errno);
}

Result<UniqueFd> connect_local(const std::string& path) {
  const auto address = address_of(path);
  if (!address.ok()) return address.status();
  auto fd = open_socket();
  if (!fd.ok()) return fd.status();
  if (::connect(fd->get(), to_generic(*address), sizeof *address) == 0) return fd;
  const int error = errno;
  const Status failed = posix_error("cannot connect to " + path, error);
  const bool is_absent = error == ECONNREFUSED || error == ENOENT || error == EAGAIN;
  return is_absent ? Status(StatusCode::kUnavailable, std::string(failed.message())) : failed;
}

}  // namespace elastic::os
