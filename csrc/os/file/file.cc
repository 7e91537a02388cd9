#include "os/file/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "os/base/fd.h"
#include "os/base/posix_error.h"

namespace elastic::os {
namespace {

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) return errno;
    if (put > 0) bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return 0;
}

// Flushes the rename, which is a change of the directory.
int sync_parent(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno;
  // Some file systems cannot sync a directory and return EINVAL.
  return ::fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace

Result<std::optional<std::string>> read_file(const std::string& path, std::size_t bytes_max) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::optional<std::string>();
    return posix_error("cannot read " + path, errno);
  }
  std::string bytes;
  char piece[64 << 10];
  while (true) {
    const ssize_t got = ::read(fd.get(), piece, sizeof piece);
    if (got == 0) return std::optional(std::move(bytes));
    if (got < 0 && errno != EINTR) return posix_error("cannot read " + path, errno);
    if (got > 0) bytes.append(piece, static_cast<std::size_t>(got));
    if (bytes.size() > bytes_max) {
      return Status(StatusCode::kResourceExhausted, "cannot read " + path + ": it has more than " +
                                                        std::to_string(bytes_max) + " bytes");
    }
  }
}

Status replace_file(const std::string& path, std::string_view bytes, Durability durability) {
  const bool must_last = durability == Durability::kHostCrash;
  const std::string fresh = path + ".new";
  // A new file: in a shared directory another user could own one of this name, or link it.
  ::unlink(fresh.c_str());
  UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return posix_error("cannot write " + fresh, errno);
  if (const int error = write_all(fd.get(), bytes); error != 0) {
    return posix_error("cannot write " + fresh, error);
  }
  if (must_last && ::fsync(fd.get()) != 0) return posix_error("cannot write " + fresh, errno);
  fd.reset();
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    return posix_error("cannot replace " + path, errno);
  }
  const int error = must_last ? sync_parent(path) : 0;
  return error == 0 ? Status() : posix_error("cannot replace " + path, error);
}

Status append_to_file(const std::string& path, std::string_view bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const int error = fd.valid() ? write_all(fd.get(), bytes) : errno;
  return error == 0 ? Status() : posix_error("cannot write " + path, error);
}

}  // namespace elastic::os
