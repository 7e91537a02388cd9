#pragma once

// The guardian's end of a worker's channel: shared memory and a socket (elastic/worker.h); and
// messages with ancillary data, which the guardian receives from workers, templates and the agent.

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elastic/time.h"
#include "elastic/worker.h"
#include "os/base/fd.h"
#include "worker/channel_name.h"

namespace elastic::guardian {

// What a worker has last written to its page, checked: a worker may have written anything, and may
// have died between two words.
struct WorkerProgress {
  std::int64_t step = ELASTIC_WORKER_NO_STEP;
  std::uint32_t sections = 0;  // changes at the begin and the end of a section
  bool in_section = false;
  Duration section_limit{};  // zero: none
  std::string section;       // printable ASCII; "" while the worker changes it
};

class Channel {
 public:
  Channel() = default;
  // Invalid if the kernel refuses memory or descriptors; the worker then runs without a channel.
  static Channel create();

  bool valid() const { return page_ != nullptr; }
  // The variable that names the channel in the worker's environment, with a final NUL.
  const char* variable() const { return variable_.data(); }
  // The descriptors that the worker inherits, by the numbers in variable().
  std::array<int, 2> inherited() const { return {memory_.get(), worker_socket_.get()}; }
  // After the start: only the worker keeps its end.
  void release_worker_end() { worker_socket_.reset(); }

  // Has messages of the worker; negative: none will come.
  int socket() const { return socket_.get(); }
  // Reads the messages that have arrived, at most a few. The process that opened the channel is the
  // one that the kernel names as the sender.
  void read_messages();
  // A socket that the worker has passed since the last call; invalid: none.
  os::UniqueFd take_passed() { return std::move(passed_); }
  // By this pid namespace; 0: no process has opened the channel.
  pid_t owner() const { return owner_; }
  // Whether it has reported a step.
  bool is_reporting() const { return is_reporting_; }
  // Whether waits_since() may ever have a value.
  bool is_watching() const { return is_watching_; }
  // Whether its main thread has ended with an exception since the last call.
  bool take_raised() { return std::exchange(has_raised_, false); }
  // Since when it waits in collective operations; nullopt: in none.
  std::optional<Instant> waits_since() const;
  WorkerProgress progress() const;

  // Steps; ELASTIC_WORKER_NO_STEP, which is -1: none.
  std::int64_t step() const;        // the last that the worker has reported
  std::int64_t own_step() const;    // as step(); none if a hook counts the steps of the script
  std::int64_t first_step() const;  // the first that it has reported
  std::int64_t stopped_at() const;  // the one at which should_stop() has returned true
  std::int64_t waits_at()
      const;  // the last at which it waited for the decision, and may still wait
  // From now on should_stop() waits at this step; negative: it does not wait. After this call the
  // worker either reads the new word, or has reported its step before.
  void set_tentative_stop(std::int64_t step);
  // should_stop() returns true at the tentative step.
  void commit_stop();
  // Why the worker is stopped; "": it is not.
  void set_stop_reason(std::string_view text);

  // Whether the process that has the channel can take part in another round.
  bool is_member() const { return is_member_; }
  // Whether it has left this round.
  bool has_left(std::uint64_t round) const;
  // Whether it waits for its first round.
  bool waits_for_first_round() const;
  // Notifies the worker that the round is over. False: it cannot be notified.
  bool send_cut(std::uint64_t round);
  // Resets what belongs to a round, and gives the worker a new one. False, and the worker finds
  // the channel closed: it could not be sent.
  bool send_round(std::uint64_t round, const std::vector<std::string_view>& env);

  // Requests the stacks of the threads of the process that has the channel, which is a member of
  // this session. False: it cannot write them. Never sends a signal for which the kernel shows no
  // handler.
  bool request_stacks(pid_t session);
  // Whether the text of the last request is complete.
  bool has_stacks() const;
  // The text of the last request: what has been written of it so far.
  std::string stacks() const;

  // Lines about the collective operations that the worker waits in, and about the members of its
  // process groups (elastic_worker_watch_collectives); "": none, or the worker changes them.
  std::string collectives() const;
  std::string groups() const;
  // Lines about operations that are over (worker/collective_blocks.h); "": as above. The number
  // changes with them.
  std::string signatures() const;
  std::uint32_t signatures_sequence() const;

 private:
  struct Unmap {
    void operator()(elastic_worker_page* page) const;
  };

  char* stacks_area() const;
  std::string text_at(std::size_t offset, std::size_t size) const;
  // "" while the worker changes the text.
  std::string unchanged_text_at(std::size_t offset, std::size_t size,
                                const std::uint32_t* sequence) const;
  void wake_stopping_worker();
  bool send(const std::string& packet);

  os::UniqueFd memory_;
  os::UniqueFd worker_socket_;
  os::UniqueFd socket_;
  os::UniqueFd passed_;
  std::unique_ptr<elastic_worker_page, Unmap> page_;
  std::array<char, worker::kNameBytesMax> variable_{};
  pid_t owner_ = 0;
  bool is_reporting_ = false;
  bool is_watching_ = false;
  bool has_raised_ = false;
  bool is_member_ = false;
  std::uint32_t stacks_before_ = 0;  // stacks_written at the last request
  int messages_left_ = 0;
};

// A message of a Unix socket with ancillary data (unix(7)).
template <typename Ancillary>
struct ReceivedMessage {
  ssize_t bytes = -1;                  // as from recv(2)
  std::optional<Ancillary> ancillary;  // of the wanted type
  os::UniqueFd file;                   // a descriptor, if another type was wanted
  bool is_truncated = false;  // ancillary data was lost, such as a descriptor without a free number
};

// As recv(2). `type`: SCM_RIGHTS with an int, a descriptor that the caller owns and that is
// close-on-exec; SCM_CREDENTIALS with a ucred.
template <typename Ancillary>
ReceivedMessage<Ancillary> receive_message(int socket, void* bytes, std::size_t size, int type,
                                           int flags = 0) {
  iovec data{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Ancillary)) + CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ReceivedMessage<Ancillary> received;
  received.bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  if (received.bytes <= 0) return received;
  received.is_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == type && header->cmsg_len == CMSG_LEN(sizeof(Ancillary))) {
      std::memcpy(&received.ancillary.emplace(), CMSG_DATA(header), sizeof(Ancillary));
    } else if (header->cmsg_type == SCM_RIGHTS) {
      // Of another number of descriptors than one, none is wanted, and each is owned by now.
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
        os::UniqueFd owned(descriptor);
        if (count == 1) received.file = std::move(owned);
      }
    }
  }
  return received;
}

// As send(2), with these descriptors.
inline constexpr std::size_t kFilesSentMax = 8;
inline ssize_t send_message(int socket, const void* bytes, std::size_t size,
                            const std::vector<int>& files, int flags = 0) {
  iovec data{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kFilesSentMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!files.empty() && files.size() <= kFilesSentMax) {
    const std::size_t count = files.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count);
    std::memcpy(CMSG_DATA(header), files.data(), count);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | flags);
}

}  // namespace elastic::guardian
