#pragma once

#include <string_view>

#include "os/net/tls.h"

namespace elastic::os {

inline constexpr std::string_view kIdentity = "elastic/1 node 0123456789abcdef job";

inline TlsKey key_of(unsigned char fill = 7) {
  TlsKey key{};
  key.fill(fill);
  return key;
}

}  // namespace elastic::os
