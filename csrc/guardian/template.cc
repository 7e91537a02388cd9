#include "guardian/template.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "guardian/channel.h"

namespace elastic::guardian {
namespace {

constexpr std::size_t kTextBytesMax = 4096;
constexpr std::size_t kDescriptorsMax = 16;

struct Header {
  std::uint8_t kind;
  std::uint8_t unused[3];
  std::uint32_t id;
  std::int32_t pid;
};

// The memory file with a request; invalid, with errno set, if the kernel refuses it.
os::UniqueFd make_file(const std::string& request) {
  os::UniqueFd file(::memfd_create("elastic-request", MFD_CLOEXEC));
  for (std::size_t written = 0; file.valid() && written < request.size();) {
    const ssize_t put = ::pwrite(file.get(), request.data() + written, request.size() - written,
                                 static_cast<off_t>(written));
    if (put < 0) return os::UniqueFd();
    written += static_cast<std::size_t>(put);
  }
  return file;
}

}  // namespace

os::UniqueFd Template::open() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return os::UniqueFd();
  socket_.reset(ends[0]);
  return os::UniqueFd(ends[1]);
}

int Template::send(const std::string& request, const std::vector<int>& descriptors) {
  const os::UniqueFd file = make_file(request);
  if (!file.valid()) return errno;
  std::vector<int> passed = {file.get()};
  passed.insert(passed.end(), descriptors.begin(), descriptors.end());
  if (passed.size() > kDescriptorsMax) return EINVAL;
  char byte = 0;
  iovec data{&byte, sizeof byte};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)] = {};
  const std::size_t bytes = sizeof(int) * passed.size();
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), passed.data(), bytes);
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

std::optional<TemplateMessage> Template::receive() {
  if (!socket_.valid()) return std::nullopt;
  char bytes[sizeof(Header) + kTextBytesMax];
  const auto receive_next = [&] {
    return receive_message<int>(socket_.get(), bytes, sizeof bytes, SCM_RIGHTS, MSG_DONTWAIT);
  };
  auto message = receive_next();
  // It ended before it read all requests. The kernel reports that once, and before its messages.
  if (message.bytes < 0 && errno == ECONNRESET) message = receive_next();
  const ssize_t got = message.bytes;
  os::UniqueFd release(message.ancillary.value_or(-1));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  Header header{};
  const bool is_complete = got >= static_cast<ssize_t>(sizeof header);
  if (is_complete) std::memcpy(&header, bytes, sizeof header);
  const bool is_known =
      header.kind >= static_cast<std::uint8_t>(TemplateMessage::Kind::kImporting) &&
      header.kind <= static_cast<std::uint8_t>(TemplateMessage::Kind::kLeftOut);
  if (!is_known) {
    close();
    return std::nullopt;
  }
  std::string text(bytes + sizeof header, static_cast<std::size_t>(got) - sizeof header);
  text.erase(std::min(text.find('\0'), text.size()));
  return TemplateMessage{static_cast<TemplateMessage::Kind>(header.kind), header.id, header.pid,
                         std::move(text), std::move(release)};
}

}  // namespace elastic::guardian
