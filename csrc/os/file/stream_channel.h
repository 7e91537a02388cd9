#pragma once

// Channels: pipes and pseudo-terminals that replace a standard stream of a child, so that this
// process can read the child's output; and the reader of such channels.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "elastic/status.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/file/log_tail.h"
#include "os/loop/registration.h"

namespace elastic::os {

// A channel for a new child.
struct StreamChannel {
  UniqueFd reader;  // non-blocking
  UniqueFd writer;  // the child's end
  bool is_terminal = false;
};

// Whether children inherit this descriptor: it is open, and not close-on-exec.
bool is_inherited(int fd);
// Whether both descriptors are the same file, terminal, pipe or socket.
bool is_same_file(int one, int other);
bool is_null_device(int fd);

// A pseudo-terminal if `fd` is a terminal, else a pipe. The pseudo-terminal has the settings and
// the window size of `fd`, except that it does not convert line ends, because `fd` does.
Result<StreamChannel> open_channel_like(int fd);
Result<StreamChannel> open_pipe_channel();
// Creates a pipe with a name, which processes open to write. Returns its end for reading, which
// does not block. It never reaches end of file, because a worker whose template process died opens
// it again.
Result<UniqueFd> create_named_pipe(const std::string& path);

// Sets the pseudo-terminal of `reader` to the window size of the terminal `fd`.
void copy_window_size(int fd, int reader);

// Reads what other processes write to channels.
//
// A process that writes many small pieces wakes the loop once in kReadInterval. An idle channel
// costs nothing. A paused reader reads nothing, so the channels fill and their writers wait.
//
// Loop thread only.
class ChannelReader {
 public:
  using ChannelId = LogTail::FileId;
  static constexpr Duration kReadInterval = LogTail::kReadInterval;

  // `loop` and `observer` outlive the object. The ids of channels are negative. on_closed() also
  // follows when the last writer has closed a channel.
  ChannelReader(EventLoop* loop, LogTail::Observer* observer);
  ChannelReader(const ChannelReader&) = delete;
  ChannelReader& operator=(const ChannelReader&) = delete;
  ~ChannelReader();

  // `fd` is non-blocking. `is_pausable` false: it is read also while the reader is paused.
  Result<ChannelId> follow(UniqueFd fd, bool is_pausable = true);
  // Reads what is in the channel now, also while paused.
  void read_now(ChannelId id);
  // All writers have ended: reads what is in the channel, and closes it. Also while paused, because
  // the content does not outlive this process.
  void close(ChannelId id);
  void pause() { is_paused_ = true; }
  void resume();

 private:
  struct Channel;
  enum class ReadOutcome : std::uint8_t { kMore, kSome, kNothing, kEnd };

  void mark_unread(Channel* channel);
  void read_turn();
  ReadOutcome read_lines(Channel* channel);
  ReadOutcome read_some(Channel* channel, std::size_t* count);

  EventLoop* const loop_;
  LogTail::Observer* const observer_;
  std::map<ChannelId, std::unique_ptr<Channel>> channels_;
  ChannelId last_id_ = 0;
  bool is_paused_ = false;
  std::string buffer_;
  Timer turn_;
};

}  // namespace elastic::os
