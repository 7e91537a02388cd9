#include "os/base/posix_error.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace elastic::os {
namespace {

StatusCode code_of(int error) {
  switch (error) {
    case EINVAL:
    case ENAMETOOLONG:
    case E2BIG:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EACCES:
    case EPERM: return StatusCode::kInvalidArgument;
    case ENOENT:
    case ENOTDIR:
    case ESRCH: return StatusCode::kNotFound;
    case ETIMEDOUT: return StatusCode::kDeadlineExceeded;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC: return StatusCode::kResourceExhausted;
    case EAGAIN:
    case EADDRINUSE:
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ENOTCONN: return StatusCode::kUnavailable;
    default: return StatusCode::kInternal;
  }
}

}  // namespace

std::string error_text(int error) { return std::system_category().message(error); }

Status posix_error(std::string_view context, int error) {
  std::string message = std::string(context) + ": " + error_text(error);
  rlimit files{};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    message += " (the limit of open files is " + std::to_string(files.rlim_cur) +
               "; raise it with ulimit -n)";
  }
  return {code_of(error), message};
}

}  // namespace elastic::os
