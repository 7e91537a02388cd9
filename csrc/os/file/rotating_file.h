#pragma once

// A log file of limited size. When it is full it becomes FILE.1, the earlier FILE.1 becomes FILE.2,
// and so on; the oldest file is removed.
//
// A file ends at the end of a line, and exceeds its limit by one line at most. Readers find a file
// of each name at any time. If a file cannot be written (a full disk), what cannot be written is
// lost, and the place is marked when writing succeeds again.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

// The name of the file that was replaced `age` rotations ago.
std::string rotated_path(const std::string& path, int age);

class RotatingFile {
 public:
  // Opens an existing file. `files_max` counts all files, at least one.
  static Result<RotatingFile> open(std::string path, std::uint64_t bytes_max, int files_max);

  // Appends bytes, which need not end with a line. May block. An error is reported once, until a
  // write has succeeded again.
  [[nodiscard]] Status write(std::string_view bytes);

 private:
  RotatingFile(std::string path, std::uint64_t bytes_max, int files_max, UniqueFd file)
      : path_(std::move(path)),
        bytes_max_(bytes_max),
        files_max_(files_max),
        file_(std::move(file)) {}
  std::size_t next_piece(std::string_view bytes) const;
  int put(std::string_view bytes);
  int put_mark();
  int rotate();

  std::string path_;
  std::uint64_t bytes_max_;
  int files_max_;
  UniqueFd file_;
  std::uint64_t size_ = 0;        // bytes
  bool is_in_line_ = false;       // the last byte did not end a line
  std::uint64_t lost_bytes_ = 0;  // since the last successful write
};

}  // namespace elastic::os
