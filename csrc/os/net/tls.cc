#include "os/net/tls.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "os/net/tls_library.h"

// Theory of operation. OpenSSL sees a BIO that reads from the received bytes of the current call
// and writes to a string, so it makes no system call. The only cipher suite is AES-128-GCM with
// SHA-256, the hash to which an external key belongs (RFC 8446, 4.2.11), and every handshake adds a
// Diffie-Hellman exchange: a key that becomes known later does not reveal recorded traffic. Neither
// end has a certificate, so a handshake without a common key fails. There are no tickets and no
// early data, so nothing of a recorded connection can be replayed.

namespace elastic::os {
namespace {

constexpr unsigned char kCipherSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr const char* kCipherSuiteName = "TLS_AES_128_GCM_SHA256";
// A provider that has only approved algorithms (FIPS) rejects a list with X25519.
constexpr const char* kGroups[] = {"X25519:P-256", "P-256"};
// One record is decrypted at a time.
constexpr std::size_t kRecordBytesMax = 16 << 10;

}  // namespace

class TlsSession::Impl {
 public:
  // OpenSSL's configuration, shared by all sessions of the process; never freed. An error: the
  // library lacks something.
  struct Shared {
    SSL_CTX* context = nullptr;
    BIO_METHOD* method = nullptr;
  };
  Impl(const TlsLibrary* library, std::string identity, const TlsKey& key)
      : library_(*library), is_server_(false), identity_(std::move(identity)), key_(key) {}
  Impl(const TlsLibrary* library, FindKey find_key)
      : library_(*library), is_server_(true), find_key_(std::move(find_key)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (ssl_ != nullptr) library_.SSL_free(ssl_);  // frees the BIO
    library_.OPENSSL_cleanse(key_.data(), key_.size());
  }

  static const Result<Shared>& shared(const TlsLibrary& library);
  Status start();
  bool receive(std::string_view bytes, std::string* plain);
  bool send(std::string_view plain);

  bool is_established() const { return is_established_; }
  const std::string& identity() const { return identity_; }
  std::string& output() { return output_; }
  Error error() const { return error_; }
  const std::string& error_text() const { return error_text_; }

 private:
  static Result<Shared> make_shared(const TlsLibrary& library);
  static const TlsLibrary& loaded() { return **load_tls_library(); }

  static int read(BIO* bio, char* into, std::size_t size, std::size_t* got);
  static int write(BIO* bio, const char* bytes, std::size_t size, std::size_t* written);
  static long control(BIO* bio, int command, long, void*);
  static int use_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                     std::size_t* size, SSL_SESSION** session);
  static int find_key(SSL* ssl, const unsigned char* identity, std::size_t size,
                      SSL_SESSION** session);
  static Impl* self_of(SSL* ssl) { return static_cast<Impl*>(loaded().SSL_get_ex_data(ssl, 0)); }

  SSL_SESSION* session_of_key() const;
  bool shake_hands();
  bool fail(int result);

  const TlsLibrary& library_;
  const bool is_server_;
  const FindKey find_key_;
  std::string identity_;
  TlsKey key_{};
  SSL* ssl_ = nullptr;
  bool is_established_ = false;
  std::string_view input_;  // the rest of the bytes of receive()
  std::string output_;
  Error error_ = Error::kNone;
  std::string error_text_;
};

const Result<TlsSession::Impl::Shared>& TlsSession::Impl::shared(const TlsLibrary& library) {
  static const Result<Shared> shared = make_shared(library);
  return shared;
}

Result<TlsSession::Impl::Shared> TlsSession::Impl::make_shared(const TlsLibrary& library) {
  Shared shared;
  library.ERR_clear_error();
  const auto fault = [&] {
    const unsigned long code = library.ERR_get_error();
    const char* const text = code == 0 ? nullptr : library.ERR_reason_error_string(code);
    library.ERR_clear_error();
    return Status(StatusCode::kFailedPrecondition,
                  std::string("OpenSSL here cannot use TLS 1.3 with the job's token (") +
                      kCipherSuiteName +
                      ", X25519 or P-256): " + (text == nullptr ? "it gives no reason" : text));
  };
  shared.method = library.BIO_meth_new(openssl::kBioSourceSink, "elastic");
  SSL_CTX* const context = library.SSL_CTX_new(library.TLS_method());
  if (shared.method == nullptr || context == nullptr) return fault();
  library.BIO_meth_set_read_ex(shared.method, &read);
  library.BIO_meth_set_write_ex(shared.method, &write);
  library.BIO_meth_set_ctrl(shared.method, &control);
  const auto control_context = [&](int command, long value, const char* text = nullptr) {
    return library.SSL_CTX_ctrl(context, command, value, const_cast<char*>(text)) > 0;
  };
  const bool is_configured =
      control_context(openssl::kSetMinVersion, openssl::kTls13) &&
      control_context(openssl::kSetMaxVersion, openssl::kTls13) &&
      std::any_of(std::begin(kGroups), std::end(kGroups),
                  [&](const char* groups) {
                    return control_context(openssl::kSetGroupsList, 0, groups);
                  }) &&
      library.SSL_CTX_set_ciphersuites(context, kCipherSuiteName) == 1 &&
      library.SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!is_configured) {
    const Status why = fault();
    library.SSL_CTX_free(context);
    return why;
  }
  library.ERR_clear_error();
  control_context(openssl::kSetMode, openssl::kReleaseBuffers);
  control_context(openssl::kSetSessionCache, openssl::kSessionCacheOff);
  library.SSL_CTX_set_options(context, openssl::kNoTicket);
  library.SSL_CTX_set_psk_use_session_callback(context, &use_key);
  library.SSL_CTX_set_psk_find_session_callback(context, &find_key);
  shared.context = context;
  return shared;
}

Status TlsSession::Impl::start() {
  const Result<Shared>& configured = shared(library_);
  if (!configured.ok()) return configured.status();
  ssl_ = library_.SSL_new(configured->context);
  BIO* const bio = ssl_ == nullptr ? nullptr : library_.BIO_new(configured->method);
  if (bio == nullptr) {
    library_.ERR_clear_error();
    return {StatusCode::kResourceExhausted, "OpenSSL cannot create a TLS session"};
  }
  library_.BIO_set_data(bio, this);
  library_.BIO_set_init(bio, 1);
  library_.SSL_set_bio(ssl_, bio, bio);
  library_.SSL_set_ex_data(ssl_, 0, this);
  if (is_server_) {
    library_.SSL_set_accept_state(ssl_);
  } else {
    library_.SSL_set_connect_state(ssl_);
    // A server with a certificate is not accepted instead of one with the key: none is trusted.
    library_.SSL_set_verify(ssl_, openssl::kVerifyPeer, nullptr);
    shake_hands();  // writes the first message
  }
  return {};
}

int TlsSession::Impl::read(BIO* bio, char* into, std::size_t size, std::size_t* got) {
  auto* const self = static_cast<Impl*>(loaded().BIO_get_data(bio));
  loaded().BIO_clear_flags(bio, openssl::kBioReadWriteSpecial | openssl::kBioShouldRetry);
  *got = self->input_.copy(into, size);
  self->input_.remove_prefix(*got);
  if (*got > 0) return 1;
  loaded().BIO_set_flags(bio, openssl::kBioRead | openssl::kBioShouldRetry);
  return 0;
}

int TlsSession::Impl::write(BIO* bio, const char* bytes, std::size_t size, std::size_t* written) {
  static_cast<Impl*>(loaded().BIO_get_data(bio))->output_.append(bytes, size);
  *written = size;
  return 1;
}

long TlsSession::Impl::control(BIO*, int command, long, void*) {
  return command == openssl::kBioFlush ? 1 : 0;
}

// The key in the form in which OpenSSL takes it; null: no memory.
SSL_SESSION* TlsSession::Impl::session_of_key() const {
  const SSL_CIPHER* const cipher = library_.SSL_CIPHER_find(ssl_, kCipherSuite);
  SSL_SESSION* const session = library_.SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (cipher != nullptr &&
      library_.SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) == 1 &&
      library_.SSL_SESSION_set_cipher(session, cipher) == 1 &&
      library_.SSL_SESSION_set_protocol_version(session, openssl::kTls13) == 1) {
    return session;
  }
  library_.SSL_SESSION_free(session);
  return nullptr;
}

int TlsSession::Impl::use_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                              std::size_t* size, SSL_SESSION** session) {
  const Impl& self = *self_of(ssl);
  *session = nullptr;
  const SSL_CIPHER* const cipher = loaded().SSL_CIPHER_find(ssl, kCipherSuite);
  // After a HelloRetryRequest the server has chosen the hash.
  if (digest != nullptr && loaded().SSL_CIPHER_get_handshake_digest(cipher) != digest) return 1;
  *session = self.session_of_key();
  *identity = reinterpret_cast<const unsigned char*>(self.identity_.data());
  *size = self.identity_.size();
  return *session != nullptr ? 1 : 0;
}

// Without a session the handshake continues without a key, and fails because there is no
// certificate.
int TlsSession::Impl::find_key(SSL* ssl, const unsigned char* identity, std::size_t size,
                               SSL_SESSION** session) {
  Impl& self = *self_of(ssl);
  *session = nullptr;
  const std::string_view offered(reinterpret_cast<const char*>(identity), size);
  if (!self.identity_.empty() && offered != self.identity_) return 1;  // our clients offer one
  self.identity_ = offered;
  const std::optional<TlsKey> key = self.find_key_(self.identity_);
  if (!key) {
    self.error_ = Error::kUnknownIdentity;
    return 1;
  }
  self.key_ = *key;
  *session = self.session_of_key();
  return *session != nullptr ? 1 : 0;
}

bool TlsSession::Impl::shake_hands() {
  library_.ERR_clear_error();
  const int result = library_.SSL_do_handshake(ssl_);
  if (result != 1) return fail(result);
  if (library_.SSL_session_reused(ssl_) != 1) {  // not with the key
    error_ = Error::kOther;
    error_text_ = "the peer did not use the key";
    return false;
  }
  is_established_ = true;
  return true;
}

// Whether the call only waits for more bytes; otherwise keeps the reason.
bool TlsSession::Impl::fail(int result) {
  const int kind = library_.SSL_get_error(ssl_, result);
  if (kind == openssl::kWantRead) return true;
  const unsigned long code = library_.ERR_get_error();
  const char* const text = code == 0 ? nullptr : library_.ERR_reason_error_string(code);
  error_text_ = text == nullptr ? "the connection ended inside a message" : text;
  if (error_ == Error::kNone) {
    const bool is_alert =
        kind == openssl::kZeroReturn || openssl::reason_of(code) > openssl::kAlertsBegin;
    error_ = is_alert ? Error::kRejectedByPeer : Error::kOther;
  }
  library_.ERR_clear_error();
  return false;
}

bool TlsSession::Impl::receive(std::string_view bytes, std::string* plain) {
  if (!error_text_.empty()) return false;
  input_ = bytes;
  if (!is_established_ && !shake_hands()) return false;
  char record[kRecordBytesMax];
  while (is_established_ && !input_.empty()) {
    std::size_t got = 0;
    library_.ERR_clear_error();
    const int result = library_.SSL_read_ex(ssl_, record, sizeof record, &got);
    if (result != 1 && !fail(result)) return false;
    plain->append(record, got);
  }
  return true;
}

bool TlsSession::Impl::send(std::string_view plain) {
  if (!is_established_ || !error_text_.empty()) return false;
  if (plain.empty()) return true;
  std::size_t written = 0;
  library_.ERR_clear_error();
  const int result = library_.SSL_write_ex(ssl_, plain.data(), plain.size(), &written);
  return result == 1 || fail(result);
}

Status check_tls() {
  const auto library = load_tls_library();
  return library.ok() ? TlsSession::Impl::shared(**library).status() : library.status();
}

Result<TlsKey> derive_key(std::string_view secret, std::string_view salt, std::string_view info) {
  const auto loaded = load_tls_library();
  if (!loaded.ok()) return loaded.status();
  const TlsLibrary& library = **loaded;
  const auto bytes_of = [](std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  };
  const auto size_of = [](std::string_view text) {
    return static_cast<int>(std::min<std::size_t>(text.size(), std::numeric_limits<int>::max()));
  };
  TlsKey key{};
  std::size_t size = key.size();
  EVP_PKEY_CTX* const context = library.EVP_PKEY_CTX_new_id(openssl::kHkdf, nullptr);
  const bool is_derived =
      context != nullptr && library.EVP_PKEY_derive_init(context) == 1 &&
      library.EVP_PKEY_CTX_set_hkdf_md(context, library.EVP_sha256()) == 1 &&
      library.EVP_PKEY_CTX_set1_hkdf_salt(context, bytes_of(salt), size_of(salt)) == 1 &&
      library.EVP_PKEY_CTX_set1_hkdf_key(context, bytes_of(secret), size_of(secret)) == 1 &&
      library.EVP_PKEY_CTX_add1_hkdf_info(context, bytes_of(info), size_of(info)) == 1 &&
      library.EVP_PKEY_derive(context, key.data(), &size) == 1 && size == key.size();
  if (context != nullptr) library.EVP_PKEY_CTX_free(context);
  library.ERR_clear_error();
  if (!is_derived) return Status(StatusCode::kInternal, "OpenSSL cannot derive a key");
  return key;
}

TlsSession::TlsSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsSession::~TlsSession() = default;

Result<std::unique_ptr<TlsSession>> TlsSession::connect(std::string identity, const TlsKey& key) {
  const auto library = load_tls_library();
  if (!library.ok()) return library.status();
  auto impl = std::make_unique<Impl>(*library, std::move(identity), key);
  if (Status started = impl->start(); !started.ok()) return started;
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(impl)));
}

Result<std::unique_ptr<TlsSession>> TlsSession::accept(FindKey find_key) {
  const auto library = load_tls_library();
  if (!library.ok()) return library.status();
  auto impl = std::make_unique<Impl>(*library, std::move(find_key));
  if (Status started = impl->start(); !started.ok()) return started;
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(impl)));
}

bool TlsSession::is_established() const { return impl_->is_established(); }
const std::string& TlsSession::identity() const { return impl_->identity(); }
bool TlsSession::receive(std::string_view bytes, std::string* plain) {
  return impl_->receive(bytes, plain);
}
bool TlsSession::send(std::string_view plain) { return impl_->send(plain); }
std::string& TlsSession::output() { return impl_->output(); }
TlsSession::Error TlsSession::error() const { return impl_->error(); }
const std::string& TlsSession::error_text() const { return impl_->error_text(); }

}  // namespace elastic::os
