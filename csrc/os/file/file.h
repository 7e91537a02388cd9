#pragma once

// Reads and replaces whole files, and adds to them.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/status.h"

namespace elastic::os {

// The content of the file; nullopt: it does not exist. kResourceExhausted: it has more than
// `bytes_max`.
Result<std::optional<std::string>> read_file(const std::string& path, std::size_t bytes_max);

// Which crashes a replaced file survives.
enum class Durability : std::uint8_t {
  kProcessCrash,
  kHostCrash,  // blocks on the disk
};

// Replaces the file atomically, or creates it (mode 0600): readers find the old or the new content,
// also after a crash. Uses <path>.new as a temporary file.
Status replace_file(const std::string& path, std::string_view bytes,
                    Durability durability = Durability::kHostCrash);

// Adds the bytes at the end of the file, or creates it (mode 0644, less the umask).
Status append_to_file(const std::string& path, std::string_view bytes);

// A file with secrets: it is used only if other users can neither read nor replace its content, and
// is read again when it has changed. One thread at a time.
class PrivateFile {
 public:
  // `what`: the file in messages, "the token file".
  PrivateFile(std::string what, std::string path)
      : what_(std::move(what)), path_(std::move(path)) {}

  // The content if this is the first call or the file has changed since the last one; else nullopt.
  // A fault is reported again only after another change. kInvalidArgument: the file is missing,
  // unreadable, accessible by others, or has more than `bytes_max`.
  Result<std::optional<std::string>> read_if_changed(std::size_t bytes_max);

 private:
  Status check(const struct stat& found) const;
  Status fault(const std::string& text) const;

  const std::string what_;
  const std::string path_;
  std::optional<struct stat> seen_;  // nullopt: no file was found
  bool was_read_ = false;
};

}  // namespace elastic::os
