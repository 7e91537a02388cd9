#pragma once

// A file with secrets: it is used only if other users can neither read nor replace its content, and
// is read again when it has changed. One thread at a time.

#include <sys/stat.h>

#include <cstddef>
#include <optional>
#include <string>

#include "elastic/status.h"

namespace elastic::os {

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
