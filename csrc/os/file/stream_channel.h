#pragma once

// A pipe or pseudo-terminal that replaces one of this process's standard streams in a child, so
// that this process can read the child's output.

#include <string>

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

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
// does not block. It never ends: a worker may be started a second time, when the process that
// should have forked it has died.
Result<UniqueFd> create_named_pipe(const std::string& path);

// Sets the pseudo-terminal of `reader` to the window size of the terminal `fd`.
void copy_window_size(int fd, int reader);

}  // namespace elastic::os
