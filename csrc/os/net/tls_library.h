#pragma once

// OpenSSL, loaded when the first secure connection is made.
//
// libssl is opened at run time, so that a process without secure connections neither loads nor
// initialises it, and a wheel starts on a host without it.
// Included by os/net/tls*.cc only.

#include "elastic/status.h"
#include "os/net/openssl.h"

namespace elastic::os {

struct TlsLibrary {
#define ELASTIC_TLS_MEMBER(result, name, parameters) result(*name) parameters;
  ELASTIC_TLS_FUNCTIONS(ELASTIC_TLS_MEMBER)
#undef ELASTIC_TLS_MEMBER
};

// Loads the library on the first call. Any thread.
Result<const TlsLibrary*> load_tls_library();

}  // namespace elastic::os
