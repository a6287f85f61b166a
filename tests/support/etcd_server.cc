#include "tests/support/etcd_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/support/free_port.h"

namespace winnow {
namespace {

constexpr const char* kProgram = "/usr/bin/etcd";
constexpr std::chrono::seconds kStartLimit{60};

}  // namespace

bool EtcdServer::IsInstalled() {
  return access(kProgram, X_OK) == 0;
}

EtcdServer::EtcdServer(TlsFiles tls) : tls_(std::move(tls)), client_port_(FreePort()), peer_port_(FreePort()) {
  Start();
}

EtcdServer::~EtcdServer() {
  Kill();
}

void EtcdServer::Start() {
  const std::string scheme = tls_.empty() ? "http://127.0.0.1:" : "https://127.0.0.1:";
  const std::string clients = absl::StrCat(scheme, client_port_), peers = absl::StrCat("http://127.0.0.1:", peer_port_);
  std::vector<std::string> arguments = {kProgram,
                                        "--name=one",
                                        "--logger=zap",
                                        "--log-level=error",
                                        "--data-dir=" + folder_.path() + "/data",
                                        "--listen-client-urls=" + clients,
                                        "--advertise-client-urls=" + clients,
                                        "--listen-peer-urls=" + peers,
                                        "--initial-advertise-peer-urls=" + peers,
                                        "--initial-cluster=one=" + peers};
  if (!tls_.empty()) {
    for (const std::string& argument : {"--cert-file=" + tls_.certificate, "--key-file=" + tls_.key,
                                        "--trusted-ca-file=" + tls_.authorities, std::string("--client-cert-auth")}) {
      arguments.push_back(argument);
    }
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = folder_.path() + "/log";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execv(kProgram, argv.data());
    _exit(127);
  }
  const auto limit = std::chrono::steady_clock::now() + kStartLimit;
  etcdserverpb::RangeRequest request;
  request.set_key("any");
  absl::Status answered;
  do {
    answered = Client().Range(request).status();
    if (answered.ok()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (std::chrono::steady_clock::now() < limit);
  FAIL() << "etcd does not answer: " << answered;
}

void EtcdServer::Kill() {
  if (pid_ <= 0) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::Signal(int signal_number) const {
  if (pid_ > 0) kill(pid_, signal_number);
}

void EtcdServer::LoseData() {
  std::filesystem::remove_all(folder_.path() + "/data");
}

RegistryUrl EtcdServer::url() const {
  return {.endpoints = {{"127.0.0.1", client_port_}}, .encrypted = !tls_.empty()};
}

EtcdClient EtcdServer::Client() const {
  return EtcdClient(url().endpoints.front(), EtcdCredentials(tls_));
}

std::vector<std::pair<std::string, std::string>> EtcdServer::Values(const std::string& prefix) const {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(EndOfPrefix(prefix));
  std::vector<std::pair<std::string, std::string>> values;
  const auto found = Client().Range(request);
  if (!found.ok()) return values;
  for (const etcdserverpb::KeyValue& entry : found->kvs()) values.emplace_back(entry.key(), entry.value());
  return values;
}

void EtcdServer::Put(const std::string& key, const std::string& value) const {
  etcdserverpb::TxnRequest request;
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  const auto done = Client().Commit(request);
  EXPECT_TRUE(done.ok()) << done.status();
}

void EtcdServer::Delete(const std::string& prefix) const {
  etcdserverpb::TxnRequest request;
  etcdserverpb::DeleteRangeRequest& gone = *request.add_success()->mutable_request_delete_range();
  gone.set_key(prefix);
  gone.set_range_end(EndOfPrefix(prefix));
  const auto done = Client().Commit(request);
  EXPECT_TRUE(done.ok()) << done.status();
}

}  // namespace winnow
