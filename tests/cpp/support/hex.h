#pragma once

// Bytes as text, two digits each, for comparison with a document.

#include <string>

namespace elastic::test {

template <typename Bytes>
std::string hex(const Bytes& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

}  // namespace elastic::test
