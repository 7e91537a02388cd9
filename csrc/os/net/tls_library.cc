#include "os/net/tls_library.h"

#include <dlfcn.h>

#include <string>

namespace elastic::os {
namespace {

using openssl::kMajor;

Status load_error() {
  const char* const detail = ::dlerror();
  return {StatusCode::kFailedPrecondition,
          "a token needs OpenSSL " + std::to_string(kMajor) + " at run time: install libssl (" +
              (detail == nullptr ? "it cannot be loaded" : detail) + ")"};
}

Result<TlsLibrary> load() {
  // The dependency libcrypto is found through the same handle. Never closed: OpenSSL may not be
  // unloaded.
  //
  // Weak point: it is found by its name. In an interpreter that has a newer OpenSSL of its own and
  // has not imported `ssl` yet, the system's library is loaded, and later imports get it as well.
  const std::string name = "libssl.so." + std::to_string(kMajor);
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return load_error();
  TlsLibrary library{};
#define ELASTIC_TLS_LOAD(result, name, parameters)                                 \
  library.name = reinterpret_cast<decltype(library.name)>(::dlsym(handle, #name)); \
  if (library.name == nullptr) return load_error();
  ELASTIC_TLS_FUNCTIONS(ELASTIC_TLS_LOAD)
#undef ELASTIC_TLS_LOAD
  // Without its exit handler: loops of this process may still use the library then.
  if (library.OPENSSL_init_ssl(openssl::kInitNoAtexit, nullptr) != 1) {
    return Status(StatusCode::kFailedPrecondition, "OpenSSL cannot be initialised");
  }
  return library;
}

}  // namespace

Result<const TlsLibrary*> load_tls_library() {
  static const Result<TlsLibrary> library = load();
  if (!library.ok()) return library.status();
  return &*library;
}

}  // namespace elastic::os
