#include "tests/support/test_certificates.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace winnow {
namespace {

constexpr char kNewKey[] = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";

void Run(const std::string& command) {
  ASSERT_EQ(std::system((command + " 2>/dev/null").c_str()), 0) << command;
}

}  // namespace

TestAuthority::TestAuthority(std::string folder) : folder_(std::move(folder)), certificate_(folder_ + "/ca.crt") {
  std::filesystem::create_directories(folder_);
  Run(absl::StrCat(kNewKey, " -subj '/CN=a test authority' -keyout ", folder_, "/ca.key -out ", certificate_));
}

TlsFiles TestAuthority::Issue(std::string_view name, std::string_view names) const {
  const std::string path = absl::StrCat(folder_, "/", AbslSv(name));
  TlsFiles files{.certificate = path + ".crt", .key = path + ".key", .authorities = certificate_};
  // Whoever watches the files sees the new ones together, or an old one for a moment.
  Run(absl::StrCat(kNewKey, " -CA ", certificate_, " -CAkey ", folder_, "/ca.key -subj /CN=", AbslSv(name),
                   " -addext 'subjectAltName=", AbslSv(names), "' -addext basicConstraints=CA:FALSE -keyout ", path,
                   ".key.new -out ", path, ".crt.new"));
  std::filesystem::rename(files.key + ".new", files.key);
  std::filesystem::rename(files.certificate + ".new", files.certificate);
  return files;
}

}  // namespace winnow
