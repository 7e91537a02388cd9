// The build without OpenSSL: the interface of os/net/tls.h, which cannot be used.

#include <utility>

#include "os/net/tls.h"

namespace elastic::os {

class TlsSession::Impl {
 public:
  std::string text;
};

Status check_tls() {
  return {StatusCode::kFailedPrecondition,
          "a token needs OpenSSL, and this build of elastic has none: install OpenSSL's headers "
          "(Debian: libssl-dev, Fedora: openssl-devel) and build elastic again"};
}

Result<TlsKey> derive_key(std::string_view, std::string_view, std::string_view) {
  return check_tls();
}

TlsSession::TlsSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsSession::~TlsSession() = default;
Result<std::unique_ptr<TlsSession>> TlsSession::connect(std::string, const TlsKey&) {
  return check_tls();
}
Result<std::unique_ptr<TlsSession>> TlsSession::accept(FindKey) { return check_tls(); }

// No session exists, so none of these is called.
bool TlsSession::is_established() const { return false; }
const std::string& TlsSession::identity() const { return impl_->text; }
bool TlsSession::receive(std::string_view, std::string*) { return false; }
bool TlsSession::send(std::string_view) { return false; }
std::string& TlsSession::output() { return impl_->text; }
TlsSession::Error TlsSession::error() const { return Error::kOther; }
const std::string& TlsSession::error_text() const { return impl_->text; }

}  // namespace elastic::os
