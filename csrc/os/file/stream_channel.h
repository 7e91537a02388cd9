#pragma once

// A pipe or pseudo-terminal that takes the place of one of this process's standard streams in a
// child, so that its output can be read on the way.

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

struct StreamChannel {
  UniqueFd reader;  // non-blocking
  UniqueFd writer;  // the child's end
  bool is_terminal = false;
};

// Whether children inherit this descriptor: it is open, and not closed on exec.
bool is_inherited(int fd);
// Whether both descriptors are the same file, terminal, pipe or socket.
bool is_same_file(int one, int other);
bool is_null_device(int fd);

// A pseudo-terminal if `fd` is a terminal, else a pipe. The terminal has the settings and the
// window size of `fd`, except that it passes output on as it is: `fd` itself treats line ends.
Result<StreamChannel> open_channel_like(int fd);

// Gives the pseudo-terminal behind `reader` the window size of the terminal `fd`.
void copy_window_size(int fd, int reader);

}  // namespace elastic::os
