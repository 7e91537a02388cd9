#pragma once

// The guardian's connection to a template: a helper process that has imported Python modules and
// forks workers on request (python/elastic/_warm/template.py is its program).
//
// The messages are the packets of a socket that the template has as descriptor kTemplateSocket
// (guardian/worker.h). A fork request is one byte, with these descriptors: a memory file that
// contains the request, the write end of the exec pipe, and the descriptors of the worker. The file
// is a sequence of strings, each followed by a NUL: the pid of the guardian, the id of the worker,
// the number of arguments and the arguments, the number of variables and the variables, the
// directory, the files for stdout and stderr, and the numbers of the descriptors in the worker.
//
// A message that a worker was forked comes with the write end of a pipe, which releases the worker.
// The worker writes a StartFailure (guardian/worker.h) to the exec pipe before each step that can
// block, with the error 0, and one with the error if it cannot start. It closes the pipe before it
// runs its program.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/base/fd.h"

namespace elastic::guardian {

struct TemplateMessage {
  enum class Kind : std::uint8_t {
    kImporting = 1,  // text: the module
    kReady,
    kUnfit,    // it exits; text: the reason
    kStale,    // it exits; text: the file that was changed
    kForked,   // the worker `id` is `pid`, a child of the guardian, and waits for its release
    kRefused,  // it does not fork the worker `id`; text: the reason
    kLeftOut,  // it starts again without a module of the script; text: the reason
  };
  Kind kind = Kind::kImporting;
  std::uint32_t id = 0;
  pid_t pid = -1;
  std::string text;
  // kForked: the worker runs after a byte was written here, and ends at end of file. If the
  // template dies before it has sent this message, no worker runs that the guardian does not know.
  os::UniqueFd release;
};

class Template {
 public:
  // Makes the socket pair; returns the end of the new process. Invalid, with errno set, if the
  // kernel refuses it.
  os::UniqueFd open();
  bool is_running() const { return socket_.valid(); }
  int socket() const { return socket_.get(); }
  // Sends a fork request. Returns errno; 0: sent.
  int send(const std::string& request, const std::vector<int>& descriptors);
  // The next message; nullopt if there is none, or an invalid one, which closes the connection.
  std::optional<TemplateMessage> receive();
  void close() { socket_.reset(); }

 private:
  os::UniqueFd socket_;
};

}  // namespace elastic::guardian
