#include "os/file/private_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "os/base/fd.h"
#include "os/base/posix_error.h"

namespace elastic::os {
namespace {

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mode == b.st_mode && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

std::string octal(mode_t mode) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode) & 07777U);
  return text.data();
}

}  // namespace

Status PrivateFile::fault(const std::string& text) const {
  return {StatusCode::kInvalidArgument, what_ + " " + path_ + " " + text};
}

// Kubernetes mounts a secret with root as its owner, readable by the group of the container.
Status PrivateFile::check(const struct stat& found) const {
  if (!S_ISREG(found.st_mode)) return fault("is not a regular file");
  const uid_t self = ::geteuid();
  if (found.st_uid != self && found.st_uid != 0 && self != 0) {
    return fault("belongs to user " + std::to_string(found.st_uid) +
                 ", and this process runs as user " + std::to_string(self) +
                 ": use a file of your own");
  }
  const mode_t forbidden = found.st_uid == 0 ? 0027 : 0077;
  if ((found.st_mode & forbidden) != 0) {
    return fault("is accessible by other users (mode " + octal(found.st_mode) +
                 "): run chmod 600 " + path_);
  }
  return {};
}

Result<std::optional<std::string>> PrivateFile::read_if_changed(std::size_t bytes_max) {
  struct stat found {};
  const int missing = ::stat(path_.c_str(), &found) == 0 ? 0 : errno;
  if (was_read_ && (missing != 0 ? !seen_ : seen_ && is_same(*seen_, found))) {
    return std::optional<std::string>();
  }
  was_read_ = true;
  seen_.reset();
  if (missing != 0) return fault("cannot be read: " + error_text(missing));
  // Not blocking: the path may be a pipe that has no writer.
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const int error = fd.valid() ? 0 : errno;
  seen_ = found;
  if (error != 0) return fault("cannot be read: " + error_text(error));
  if (::fstat(fd.get(), &found) != 0) return fault("cannot be read: " + error_text(errno));
  seen_ = found;
  if (Status bad = check(found); !bad.ok()) return bad;
  std::string content;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fault("cannot be read: " + error_text(errno));
    if (got == 0) return std::optional<std::string>(std::move(content));
    content.append(part.data(), static_cast<std::size_t>(got));
    if (content.size() > bytes_max) {
      return fault("is longer than " + std::to_string(bytes_max) + " bytes");
    }
  }
}

}  // namespace elastic::os
