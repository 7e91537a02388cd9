#include "os/process/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "os/base/fd.h"

namespace elastic::os {
namespace {

constexpr std::size_t kRecordBytes = 8192;  // the limit of the kernel
constexpr int kRecordsMax = 100000;

// "6,339,5140900,-;text": priority, number, microseconds since boot.
Instant time_of(std::string_view header) {
  header.remove_prefix(std::min(header.find(','), header.size() - 1) + 1);
  header.remove_prefix(std::min(header.find(','), header.size() - 1) + 1);
  return Instant(std::chrono::microseconds(std::atoll(std::string(header).c_str())));
}

}  // namespace

void read_kernel_log(Instant since, const std::function<void(std::string_view)>& sink) {
  const UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.valid()) return;
  std::array<char, kRecordBytes> buffer;
  for (int i = 0; i < kRecordsMax; ++i) {
    const ssize_t got = ::read(log.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EPIPE) continue;  // records were overwritten: the next one follows
    if (got <= 0) return;
    const std::string_view record(buffer.data(), static_cast<std::size_t>(got));
    const std::size_t text = record.find(';');
    if (text == std::string_view::npos || text == 0) continue;
    if (time_of(record.substr(0, text)) < since) continue;
    const std::string_view line = record.substr(text + 1);
    sink(line.substr(0, line.find('\n')));
  }
}

}  // namespace elastic::os
