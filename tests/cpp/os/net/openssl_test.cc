// The declarations of OpenSSL's interface, compared with its headers where they are installed.

#include "os/net/tls_library.h"

#include <gtest/gtest.h>

#if __has_include(<openssl/ssl.h>)
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>

#include <type_traits>

namespace elastic::os {
namespace {

TEST(Openssl, DeclarationsAreThoseOfItsHeaders) {
  static_assert(OPENSSL_VERSION_MAJOR == openssl::kMajor);
#define ELASTIC_TLS_COMPARE(result, name, parameters) \
  static_assert(std::is_same_v<result(*) parameters, decltype(&::name)>, #name);
  ELASTIC_TLS_FUNCTIONS(ELASTIC_TLS_COMPARE)
#undef ELASTIC_TLS_COMPARE
#define ELASTIC_TLS_COMPARE(type, name, macro, value) \
  EXPECT_EQ(openssl::name, type{macro}) << #macro;
  ELASTIC_TLS_CONSTANTS(ELASTIC_TLS_COMPARE)
#undef ELASTIC_TLS_COMPARE
}

TEST(Openssl, ReasonsAreThoseOfItsHeaders) {
  for (const unsigned long error : {0ul, 0x0A000410ul, 0x80000002ul, 0x8000001Bul, 0x0A0C0103ul}) {
    EXPECT_EQ(openssl::reason_of(error), ERR_GET_REASON(error)) << error;
  }
}

}  // namespace
}  // namespace elastic::os
#endif
