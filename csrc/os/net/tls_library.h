#pragma once

// OpenSSL, loaded when the first secure connection is made.
//
// Only the headers are needed to build; libssl is opened at run time, so that a process without
// secure connections neither loads nor initialises it, and a wheel starts on a host without it.
// Included by os/net/tls*.cc only.

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>

#include "elastic/status.h"

#if OPENSSL_VERSION_MAJOR < 3
#error "OpenSSL 3 or later is needed"
#endif

namespace elastic::os {

// clang-format off
#define ELASTIC_TLS_FUNCTIONS(FUNCTION) \
  FUNCTION(OPENSSL_init_ssl) \
  FUNCTION(OPENSSL_cleanse) \
  FUNCTION(TLS_method) \
  FUNCTION(SSL_CTX_new) \
  FUNCTION(SSL_CTX_free) \
  FUNCTION(SSL_CTX_ctrl) \
  FUNCTION(SSL_CTX_set_options) \
  FUNCTION(SSL_CTX_set_ciphersuites) \
  FUNCTION(SSL_CTX_set_num_tickets) \
  FUNCTION(SSL_CTX_set_psk_use_session_callback) \
  FUNCTION(SSL_CTX_set_psk_find_session_callback) \
  FUNCTION(SSL_new) \
  FUNCTION(SSL_free) \
  FUNCTION(SSL_set_bio) \
  FUNCTION(SSL_set_verify) \
  FUNCTION(SSL_set_accept_state) \
  FUNCTION(SSL_set_connect_state) \
  FUNCTION(SSL_do_handshake) \
  FUNCTION(SSL_read_ex) \
  FUNCTION(SSL_write_ex) \
  FUNCTION(SSL_get_error) \
  FUNCTION(SSL_ctrl) \
  FUNCTION(SSL_set_ex_data) \
  FUNCTION(SSL_get_ex_data) \
  FUNCTION(SSL_SESSION_new) \
  FUNCTION(SSL_SESSION_free) \
  FUNCTION(SSL_SESSION_set1_master_key) \
  FUNCTION(SSL_SESSION_set_cipher) \
  FUNCTION(SSL_SESSION_set_protocol_version) \
  FUNCTION(SSL_session_reused) \
  FUNCTION(SSL_CIPHER_find) \
  FUNCTION(SSL_CIPHER_get_handshake_digest) \
  FUNCTION(BIO_meth_new) \
  FUNCTION(BIO_meth_set_read_ex) \
  FUNCTION(BIO_meth_set_write_ex) \
  FUNCTION(BIO_meth_set_ctrl) \
  FUNCTION(BIO_new) \
  FUNCTION(BIO_set_init) \
  FUNCTION(BIO_set_data) \
  FUNCTION(BIO_get_data) \
  FUNCTION(BIO_set_flags) \
  FUNCTION(BIO_clear_flags) \
  FUNCTION(ERR_get_error) \
  FUNCTION(ERR_clear_error) \
  FUNCTION(ERR_reason_error_string) \
  FUNCTION(EVP_sha256) \
  FUNCTION(EVP_PKEY_CTX_new_id) \
  FUNCTION(EVP_PKEY_CTX_free) \
  FUNCTION(EVP_PKEY_derive_init) \
  FUNCTION(EVP_PKEY_CTX_set_hkdf_md) \
  FUNCTION(EVP_PKEY_CTX_set1_hkdf_salt) \
  FUNCTION(EVP_PKEY_CTX_set1_hkdf_key) \
  FUNCTION(EVP_PKEY_CTX_add1_hkdf_info) \
  FUNCTION(EVP_PKEY_derive)
// clang-format on

struct TlsLibrary {
#define ELASTIC_TLS_MEMBER(name) decltype(&::name) name;
  ELASTIC_TLS_FUNCTIONS(ELASTIC_TLS_MEMBER)
#undef ELASTIC_TLS_MEMBER
};

// Loads the library on the first call. Any thread.
Result<const TlsLibrary*> load_tls_library();

}  // namespace elastic::os
