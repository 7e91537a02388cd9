#pragma once

// Unix-domain sockets between processes of one user on one host.
//
// One thread at a time. All sockets are non-blocking.

#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/net/listener.h"

namespace elastic::os {

// A listening socket at a path, which is removed with the object. Only processes of the same user
// (the effective one) and of root can connect: the file's mode says so, and accept() checks it.
class LocalListener {
 public:
  // A socket at this path without a listener is replaced. Errors: kUnavailable (in use),
  // kInvalidArgument (the path is too long, or cannot be bound), kResourceExhausted.
  static Result<LocalListener> open(const std::string& path);
  LocalListener(LocalListener&& other) noexcept;
  LocalListener& operator=(LocalListener&&) = delete;
  ~LocalListener();

  Listener::AcceptStatus accept(UniqueFd* connection);
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  LocalListener(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;  // "": moved away
};

// Errors: kUnavailable (no process listens there, or its queue is full), kInvalidArgument.
Result<UniqueFd> connect_local(const std::string& path);

}  // namespace elastic::os
