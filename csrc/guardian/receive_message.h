#pragma once

// Messages of a Unix socket with ancillary data (unix(7)).

#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <optional>

namespace elastic::guardian {

template <typename Ancillary>
struct ReceivedMessage {
  ssize_t bytes = -1;                  // as from recv(2)
  std::optional<Ancillary> ancillary;  // of the wanted type
  bool is_truncated = false;  // ancillary data was lost, such as a descriptor without a free number
};

// As recv(2). `type`: SCM_RIGHTS with an int, a descriptor that the caller owns and that is
// close-on-exec; SCM_CREDENTIALS with a ucred.
template <typename Ancillary>
ReceivedMessage<Ancillary> receive_message(int socket, void* bytes, std::size_t size, int type,
                                           int flags = 0) {
  iovec data{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Ancillary))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ReceivedMessage<Ancillary> received;
  received.bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  if (received.bytes <= 0) return received;
  received.is_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == type &&
      header->cmsg_len == CMSG_LEN(sizeof(Ancillary))) {
    std::memcpy(&received.ancillary.emplace(), CMSG_DATA(header), sizeof(Ancillary));
  }
  return received;
}

}  // namespace elastic::guardian
