#include "cmd/up/supervisor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    static int number = 0;
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("winnow_supervisor_" + std::to_string(getpid()) + "_" + std::to_string(number++));
    std::filesystem::create_directory(folder_);
    log_ = UniqueFd(open((folder_ / "log").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  ~SupervisorTest() override { std::filesystem::remove_all(folder_); }

  Supervisor::Options Fast() {
    Supervisor::Options options;
    options.first_backoff = milliseconds(1);
    options.last_backoff = milliseconds(4);
    options.grace = milliseconds(200);
    options.log_fd = log_.get();
    return options;
  }

  static Supervisor::Child Script(std::string name, std::string script) {
    return {std::move(name), {SCRIPTED_CHILD}, [script](const Supervisor::Addresses&) { return script; }};
  }

  // Ready at first; later runs count themselves in File("starts") and do what `script` says.
  Supervisor::Child ReadyOnce(std::string name, const std::string& script) {
    Supervisor::Child child = Script(std::move(name), "");
    child.config = [text = "count " + File("starts") + "\n" + script,
                    is_first = true](const Supervisor::Addresses&) mutable {
      return std::exchange(is_first, false) ? std::string("ready\nwait") : text;
    };
    return child;
  }

  std::string File(std::string_view name) { return folder_ / name; }

  std::string Log() {
    std::string text(std::filesystem::file_size(folder_ / "log"), '\0');
    EXPECT_EQ(pread(log_.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

  // How often a child that counts in File("starts") has started.
  size_t Starts() { return std::filesystem::file_size(File("starts")); }

  static bool Never() { return false; }
  static bool Exists(pid_t pid) { return kill(pid, 0) == 0; }

  std::filesystem::path folder_;
  UniqueFd log_;
};

TEST_F(SupervisorTest, CollectsReportsAndPassesLogsOnWithAPrefix) {
  Supervisor supervisor(Fast());
  ASSERT_TRUE(supervisor.Start(Script("a", "log hello from a\nreport grpc 127.0.0.1:1\nready\nwait")).ok());
  ASSERT_TRUE(supervisor.Start(Script("b", "ready\nlog hello from b\nreport http h:2\nwait")).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady() && !supervisor.addresses("b").empty(); }).ok());
  EXPECT_EQ(supervisor.addresses("a"), (Supervisor::Addresses{{"grpc", "127.0.0.1:1"}}));
  EXPECT_EQ(supervisor.addresses("b"), (Supervisor::Addresses{{"http", "h:2"}}));
  const pid_t a = supervisor.pid("a");
  EXPECT_TRUE(Exists(a));
  supervisor.StopAll();
  EXPECT_FALSE(Exists(a));
  EXPECT_THAT(Log(), HasSubstr("a | hello from a\n"));
  EXPECT_THAT(Log(), HasSubstr("b | hello from b\n"));
}

TEST_F(SupervisorTest, AChildThatFailsBeforeItWasReadyIsAnErrorWithItsLastWords) {
  Supervisor supervisor(Fast());
  ASSERT_TRUE(supervisor.Start(Script("good", "ready\nwait")).ok());
  ASSERT_TRUE(supervisor.Start(Script("bad", "log starting\nlog no such model\nexit 3")).ok());
  const absl::Status status = supervisor.RunUntil(Never);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "bad ended with exit code 3: no such model");
}

TEST_F(SupervisorTest, KeepsTheLastLinesOfTheChildThatFailed) {
  Supervisor::Options options = Fast();
  std::string written;
  options.write_log = [&written](std::string_view lines) { written += lines; };
  Supervisor supervisor(options);
  std::string script;
  for (int i = 0; i < 20; ++i) script += "log line " + std::to_string(i) + "\n";
  ASSERT_TRUE(supervisor.Start(Script("good", "log fine\nready\nwait")).ok());
  ASSERT_TRUE(supervisor.Start(Script("bad", script + "exit 3")).ok());
  EXPECT_EQ(supervisor.RunUntil(Never).message(), "bad ended with exit code 3: line 19");
  EXPECT_EQ(supervisor.failure().name, "bad");
  EXPECT_EQ(supervisor.failure().signal_number, 0);
  ASSERT_EQ(supervisor.failure().last_lines.size(), 12u);
  EXPECT_EQ(supervisor.failure().last_lines.front(), "line 8");
  EXPECT_EQ(supervisor.failure().last_lines.back(), "line 19");
  EXPECT_THAT(written, HasSubstr("bad | line 0\n"));
  EXPECT_EQ(Log(), "");
}

TEST_F(SupervisorTest, AProgramThatCannotBeRunIsAnError) {
  Supervisor supervisor(Fast());
  Supervisor::Child child = Script("a", "");
  child.arguments = {"/no/such/program"};
  ASSERT_TRUE(supervisor.Start(child).ok());
  EXPECT_THAT(std::string(supervisor.RunUntil(Never).message()), HasSubstr("cannot run /no/such/program"));
}

TEST_F(SupervisorTest, RestartsADeadChildWithTheAddressesThatItHad) {
  Supervisor supervisor(Fast());
  Supervisor::Child child = Script("a", "");
  std::vector<Supervisor::Addresses> known;
  child.config = [&](const Supervisor::Addresses& addresses) {
    known.push_back(addresses);
    return std::string("report grpc h:7\nready\nwait");
  };
  ASSERT_TRUE(supervisor.Start(child).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  const pid_t first = supervisor.pid("a");
  kill(first, SIGKILL);
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady() && supervisor.pid("a") != first; }).ok());
  EXPECT_EQ(known, (std::vector<Supervisor::Addresses>{{}, {{"grpc", "h:7"}}}));
  EXPECT_THAT(Log(), HasSubstr("winnow up: a was killed by signal 9 (Killed); restart 1 in "));
  EXPECT_THAT(Log(), HasSubstr("winnow up: a is ready again after restart 1\n"));
}

TEST_F(SupervisorTest, TooManyDeathsWhileChildrenComeUpAreAnError) {
  Supervisor::Options options = Fast();
  options.max_short_lives = 3;
  Supervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start(Script("a", "count " + File("starts") + "\nready\nlog out of memory\nexit 1")).ok());
  const absl::Status status = supervisor.RunUntil(Never);
  EXPECT_EQ(status.message(),
            "giving up on a, which has died 4 times while the cluster came up; now a ended with exit code 1: out of "
            "memory");
  EXPECT_EQ(Starts(), 4u);
}

TEST_F(SupervisorTest, OneThatCannotRestartIsTriedAgainForAsLongAsTheOthersServe) {
  Supervisor supervisor(Fast());
  ASSERT_TRUE(supervisor.Start(Script("good", "ready\nwait")).ok());
  ASSERT_TRUE(supervisor.Start(ReadyOnce("bad", "log no such model\nexit 2")).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  kill(supervisor.pid("bad"), SIGKILL);
  const absl::Status status = supervisor.KeepUp([&] { return Starts() < 10; });
  EXPECT_EQ(status.message(),
            "nothing is served, and no restart mends this: bad ended with exit code 2: no such model");
  EXPECT_EQ(Starts(), 10u);
  EXPECT_THAT(Log(), HasSubstr("winnow up: bad ended with exit code 2: no such model; restart 10 in "));
}

TEST_F(SupervisorTest, WhatARestartMayMendIsTriedAgainThoughNothingIsServed) {
  for (const char* code : {"0", "1"}) {
    SCOPED_TRACE(code);
    std::filesystem::remove(File("starts"));
    Supervisor supervisor(Fast());
    ASSERT_TRUE(supervisor.Start(ReadyOnce("a", "exit-unless " + File("starts") + " 10 " + code + "\nexit 2")).ok());
    ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
    kill(supervisor.pid("a"), SIGKILL);
    EXPECT_THAT(std::string(supervisor.KeepUp(Never).message()), HasSubstr("exit code 2"));
    EXPECT_EQ(Starts(), 10u);
  }
}

TEST_F(SupervisorTest, AFailureBeforeReadinessIsTriedAgainOnceTheChildHasBeenReady) {
  Supervisor supervisor(Fast());
  // First run: ready, dies. Second run: dies before it is ready. Third run: stays.
  const std::string file = File("starts");
  ASSERT_TRUE(supervisor.Start(Script("a", "count " + file + "\nready\nexit-unless " + file + " 3 1\nwait")).ok());
  EXPECT_TRUE(supervisor
                  .RunUntil([&] {
                    return std::filesystem::exists(file) && std::filesystem::file_size(file) == 3 &&
                           supervisor.AllReady();
                  })
                  .ok());
}

TEST_F(SupervisorTest, ASignalEndsTheRun) {
  Supervisor supervisor(Fast());
  ASSERT_TRUE(supervisor.Start(Script("a", "ready\nwait")).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  kill(getpid(), SIGTERM);
  EXPECT_EQ(supervisor.RunUntil(Never).code(), absl::StatusCode::kCancelled);
  kill(getpid(), SIGINT);
  EXPECT_EQ(supervisor.KeepUp(Never).code(), absl::StatusCode::kCancelled);
}

TEST_F(SupervisorTest, OthersAreToldToEndOnceWhatDrainsFirstIsDrained) {
  Supervisor::Options options = Fast();
  options.grace = milliseconds(20'000);
  Supervisor supervisor(options);
  Supervisor::Child router = Script("router", "drain " + File("go"));
  router.drains_first = true;
  ASSERT_TRUE(supervisor.Start(Script("rank", "ready\nwait")).ok());
  ASSERT_TRUE(supervisor.Start(std::move(router)).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  const pid_t rank = supervisor.pid("rank");
  // The rank lives until the router lets go of it.
  std::atomic<bool> lived{false};
  std::thread request([&] {
    std::this_thread::sleep_for(milliseconds(300));
    lived = Exists(rank);
    std::ofstream(File("go")) << "x";
  });
  supervisor.StopAll();
  request.join();
  EXPECT_TRUE(lived);
  EXPECT_FALSE(Exists(rank));
}

TEST_F(SupervisorTest, ASecondSignalIsPassedOnToWhatStillDrains) {
  Supervisor::Options options = Fast();
  options.grace = options.hurried_grace = std::chrono::hours(1);
  Supervisor supervisor(options);
  Supervisor::Child router = Script("router", "drain /no/such/file");
  router.drains_first = true;
  ASSERT_TRUE(supervisor.Start(Script("rank", "ready\nwait")).ok());
  ASSERT_TRUE(supervisor.Start(std::move(router)).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  std::thread hurry([&] {
    while (Log().find("draining") == std::string::npos) std::this_thread::sleep_for(milliseconds(1));
    kill(getpid(), SIGTERM);
  });
  supervisor.StopAll();
  hurry.join();
  EXPECT_THAT(Log(), HasSubstr("a second signal"));
  EXPECT_THAT(Log(), Not(HasSubstr("killing")));
}

TEST_F(SupervisorTest, AThirdSignalKills) {
  Supervisor::Options options = Fast();
  options.grace = options.hurried_grace = std::chrono::hours(1);
  Supervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start(Script("a", "ignore-term\nready\nwait")).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  kill(getpid(), SIGTERM);
  kill(getpid(), SIGINT);
  supervisor.StopAll();
  EXPECT_THAT(Log(), HasSubstr("killing a, which does not end"));
}

TEST_F(SupervisorTest, KillsAChildThatIgnoresTheRequestToEnd) {
  Supervisor supervisor(Fast());
  ASSERT_TRUE(supervisor.Start(Script("a", "ignore-term\nready\nwait")).ok());
  ASSERT_TRUE(supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok());
  const pid_t pid = supervisor.pid("a");
  supervisor.StopAll();
  EXPECT_FALSE(Exists(pid));
  EXPECT_THAT(Log(), HasSubstr("killing a, which does not end"));
}

TEST_F(SupervisorTest, NoChildSurvivesTheKillingOfItsSupervisor) {
  // Orphans of this process's descendants become its children, so that it can wait for their end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t supervisor_pid = fork();
  if (supervisor_pid == 0) {
    Supervisor supervisor(Fast());
    if (!supervisor.Start(Script("a", "ignore-term\nready\nwait")).ok()) _exit(1);
    if (!supervisor.RunUntil([&] { return supervisor.AllReady(); }).ok()) _exit(2);
    const pid_t child = supervisor.pid("a");
    if (write(ends[1], &child, sizeof child) != sizeof child) _exit(3);
    (void)supervisor.RunUntil(Never);
    _exit(4);
  }
  close(ends[1]);
  pid_t child = -1;
  ASSERT_EQ(read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  close(ends[0]);
  kill(supervisor_pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(supervisor_pid, &status, 0), supervisor_pid);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

}  // namespace
}  // namespace winnow
