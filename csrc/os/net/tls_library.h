#pragma once

// OpenSSL 3, loaded when the first secure connection is made: a process without secure connections
// neither loads nor initialises it, and a wheel starts on a host without it.
//
// The part of its interface that is used is declared here, so that no headers are needed to build.
// The library keeps its binary interface for the whole major version;
// tests/cpp/os/net/openssl_test.cc compares these declarations with its headers. Included by
// os/net/tls*.cc only.

#include <cstddef>
#include <cstdint>

#include "elastic/status.h"

// The tags have the names of OpenSSL's headers.
struct bio_method_st;
struct bio_st;
struct engine_st;
struct evp_md_st;
struct evp_pkey_ctx_st;
struct ossl_init_settings_st;
struct ssl_cipher_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct ssl_session_st;
struct ssl_st;
struct x509_store_ctx_st;
using BIO = bio_st;
using BIO_METHOD = bio_method_st;
using EVP_MD = evp_md_st;
using EVP_PKEY_CTX = evp_pkey_ctx_st;
using SSL = ssl_st;
using SSL_CIPHER = ssl_cipher_st;
using SSL_CTX = ssl_ctx_st;
using SSL_METHOD = ssl_method_st;
using SSL_SESSION = ssl_session_st;

namespace elastic::os {

using SslUseSession = int (*)(SSL*, const EVP_MD*, const unsigned char**, std::size_t*,
                              SSL_SESSION**);
using SslFindSession = int (*)(SSL*, const unsigned char*, std::size_t, SSL_SESSION**);
using BioRead = int (*)(BIO*, char*, std::size_t, std::size_t*);
using BioWrite = int (*)(BIO*, const char*, std::size_t, std::size_t*);

// Type, name and parameters.
// clang-format off
#define ELASTIC_TLS_FUNCTIONS(FUNCTION) \
  FUNCTION(int, OPENSSL_init_ssl, (std::uint64_t, const ossl_init_settings_st*)) \
  FUNCTION(void, OPENSSL_cleanse, (void*, std::size_t)) \
  FUNCTION(const SSL_METHOD*, TLS_method, ()) \
  FUNCTION(SSL_CTX*, SSL_CTX_new, (const SSL_METHOD*)) \
  FUNCTION(void, SSL_CTX_free, (SSL_CTX*)) \
  FUNCTION(long, SSL_CTX_ctrl, (SSL_CTX*, int, long, void*)) \
  FUNCTION(std::uint64_t, SSL_CTX_set_options, (SSL_CTX*, std::uint64_t)) \
  FUNCTION(int, SSL_CTX_set_ciphersuites, (SSL_CTX*, const char*)) \
  FUNCTION(int, SSL_CTX_set_num_tickets, (SSL_CTX*, std::size_t)) \
  FUNCTION(void, SSL_CTX_set_psk_use_session_callback, (SSL_CTX*, SslUseSession)) \
  FUNCTION(void, SSL_CTX_set_psk_find_session_callback, (SSL_CTX*, SslFindSession)) \
  FUNCTION(SSL*, SSL_new, (SSL_CTX*)) \
  FUNCTION(void, SSL_free, (SSL*)) \
  FUNCTION(void, SSL_set_bio, (SSL*, BIO*, BIO*)) \
  FUNCTION(void, SSL_set_verify, (SSL*, int, int (*)(int, x509_store_ctx_st*))) \
  FUNCTION(void, SSL_set_accept_state, (SSL*)) \
  FUNCTION(void, SSL_set_connect_state, (SSL*)) \
  FUNCTION(int, SSL_do_handshake, (SSL*)) \
  FUNCTION(int, SSL_read_ex, (SSL*, void*, std::size_t, std::size_t*)) \
  FUNCTION(int, SSL_write_ex, (SSL*, const void*, std::size_t, std::size_t*)) \
  FUNCTION(int, SSL_get_error, (const SSL*, int)) \
  FUNCTION(int, SSL_set_ex_data, (SSL*, int, void*)) \
  FUNCTION(void*, SSL_get_ex_data, (const SSL*, int)) \
  FUNCTION(SSL_SESSION*, SSL_SESSION_new, ()) \
  FUNCTION(void, SSL_SESSION_free, (SSL_SESSION*)) \
  FUNCTION(int, SSL_SESSION_set1_master_key, (SSL_SESSION*, const unsigned char*, std::size_t)) \
  FUNCTION(int, SSL_SESSION_set_cipher, (SSL_SESSION*, const SSL_CIPHER*)) \
  FUNCTION(int, SSL_SESSION_set_protocol_version, (SSL_SESSION*, int)) \
  FUNCTION(int, SSL_session_reused, (const SSL*)) \
  FUNCTION(const SSL_CIPHER*, SSL_CIPHER_find, (SSL*, const unsigned char*)) \
  FUNCTION(const EVP_MD*, SSL_CIPHER_get_handshake_digest, (const SSL_CIPHER*)) \
  FUNCTION(BIO_METHOD*, BIO_meth_new, (int, const char*)) \
  FUNCTION(int, BIO_meth_set_read_ex, (BIO_METHOD*, BioRead)) \
  FUNCTION(int, BIO_meth_set_write_ex, (BIO_METHOD*, BioWrite)) \
  FUNCTION(int, BIO_meth_set_ctrl, (BIO_METHOD*, long (*)(BIO*, int, long, void*))) \
  FUNCTION(BIO*, BIO_new, (const BIO_METHOD*)) \
  FUNCTION(void, BIO_set_init, (BIO*, int)) \
  FUNCTION(void, BIO_set_data, (BIO*, void*)) \
  FUNCTION(void*, BIO_get_data, (BIO*)) \
  FUNCTION(void, BIO_set_flags, (BIO*, int)) \
  FUNCTION(void, BIO_clear_flags, (BIO*, int)) \
  FUNCTION(unsigned long, ERR_get_error, ()) \
  FUNCTION(void, ERR_clear_error, ()) \
  FUNCTION(const char*, ERR_reason_error_string, (unsigned long)) \
  FUNCTION(const EVP_MD*, EVP_sha256, ()) \
  FUNCTION(EVP_PKEY_CTX*, EVP_PKEY_CTX_new_id, (int, engine_st*)) \
  FUNCTION(void, EVP_PKEY_CTX_free, (EVP_PKEY_CTX*)) \
  FUNCTION(int, EVP_PKEY_derive_init, (EVP_PKEY_CTX*)) \
  FUNCTION(int, EVP_PKEY_CTX_set_hkdf_md, (EVP_PKEY_CTX*, const EVP_MD*)) \
  FUNCTION(int, EVP_PKEY_CTX_set1_hkdf_salt, (EVP_PKEY_CTX*, const unsigned char*, int)) \
  FUNCTION(int, EVP_PKEY_CTX_set1_hkdf_key, (EVP_PKEY_CTX*, const unsigned char*, int)) \
  FUNCTION(int, EVP_PKEY_CTX_add1_hkdf_info, (EVP_PKEY_CTX*, const unsigned char*, int)) \
  FUNCTION(int, EVP_PKEY_derive, (EVP_PKEY_CTX*, unsigned char*, std::size_t*))
// clang-format on

// Type, name here, OpenSSL's macro of the same value, and the value.
// clang-format off
#define ELASTIC_TLS_CONSTANTS(CONSTANT) \
  CONSTANT(std::uint64_t, kInitNoAtexit, OPENSSL_INIT_NO_ATEXIT, 0x80000) \
  CONSTANT(int, kBioSourceSink, BIO_TYPE_SOURCE_SINK, 0x400) \
  CONSTANT(int, kBioRead, BIO_FLAGS_READ, 1) \
  CONSTANT(int, kBioReadWriteSpecial, BIO_FLAGS_RWS, 7) \
  CONSTANT(int, kBioShouldRetry, BIO_FLAGS_SHOULD_RETRY, 8) \
  CONSTANT(int, kBioFlush, BIO_CTRL_FLUSH, 11) \
  CONSTANT(int, kTls13, TLS1_3_VERSION, 0x304) \
  CONSTANT(int, kSetMinVersion, SSL_CTRL_SET_MIN_PROTO_VERSION, 123) \
  CONSTANT(int, kSetMaxVersion, SSL_CTRL_SET_MAX_PROTO_VERSION, 124) \
  CONSTANT(int, kSetGroupsList, SSL_CTRL_SET_GROUPS_LIST, 92) \
  CONSTANT(int, kSetMode, SSL_CTRL_MODE, 33) \
  CONSTANT(long, kReleaseBuffers, SSL_MODE_RELEASE_BUFFERS, 0x10) \
  CONSTANT(int, kSetSessionCache, SSL_CTRL_SET_SESS_CACHE_MODE, 44) \
  CONSTANT(long, kSessionCacheOff, SSL_SESS_CACHE_OFF, 0) \
  CONSTANT(std::uint64_t, kNoTicket, SSL_OP_NO_TICKET, 1u << 14) \
  CONSTANT(int, kVerifyPeer, SSL_VERIFY_PEER, 1) \
  CONSTANT(int, kWantRead, SSL_ERROR_WANT_READ, 2) \
  CONSTANT(int, kZeroReturn, SSL_ERROR_ZERO_RETURN, 6) \
  CONSTANT(int, kAlertsBegin, SSL_AD_REASON_OFFSET, 1000) \
  CONSTANT(int, kHkdf, EVP_PKEY_HKDF, 1036)
// clang-format on

namespace openssl {

constexpr int kMajor = 3;

#define ELASTIC_TLS_CONSTANT(type, name, macro, value) constexpr type name = value;
ELASTIC_TLS_CONSTANTS(ELASTIC_TLS_CONSTANT)
#undef ELASTIC_TLS_CONSTANT

// ERR_GET_REASON: the code of errno in errors of the system, else the library's.
constexpr int reason_of(unsigned long error) {
  constexpr unsigned long kSystem = 0x80000000;
  constexpr unsigned long kReasons = 0x7FFFFF;
  return static_cast<int>(error & ((error & kSystem) != 0 ? kSystem - 1 : kReasons));
}

}  // namespace openssl

struct TlsLibrary {
#define ELASTIC_TLS_MEMBER(result, name, parameters) result(*name) parameters;
  ELASTIC_TLS_FUNCTIONS(ELASTIC_TLS_MEMBER)
#undef ELASTIC_TLS_MEMBER
};

// Loads libssl on the first call. Any thread.
Result<const TlsLibrary*> load_tls_library();

}  // namespace elastic::os
