#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/doctor/gpu_findings.h"
#include "cmd/doctor/ucx_transports.h"
#include "cmd/role/machine.h"
#include "common/base/gibibytes.h"
#include "common/base/json.h"
#include "kernels/kernel_table.h"

namespace winnow {
namespace {

struct DoctorOptions {
  bool json = false;

  void Declare(Fields& fields) { fields.Bool("json", &json, "Print JSON: a list of objects, a finding each."); }
};

Finding Cores() {
  const int cores = UsableCores();
  Finding finding{.subject = "cores",
                  .what = absl::StrCat(cores, " usable of ", sysconf(_SC_NPROCESSORS_ONLN), " online")};
  if (cores < 2) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "inference rank and cache rank share one core: --transport=inproc saves the switching";
  }
  return finding;
}

Finding Memory() {
  const double available = static_cast<double>(FreeMemoryBytes());
  const double total = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  Finding finding{.subject = "memory", .what = Gibibytes(available) + " free of " + Gibibytes(total)};
  if (available < 1073741824.0) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "the demo model needs about 1 GiB; ranks refuse to start when their memory does not fit";
  }
  return finding;
}

Finding HugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  std::getline(file, setting);
  Finding finding{.subject = "huge pages", .what = setting.empty() ? "not offered by this kernel" : setting};
  if (setting.empty() || setting.find("[never]") != std::string::npos) {
    finding.verdict = Verdict::kWarn;
    finding.advice =
        "weights and KV are read 5-20 % faster with /sys/kernel/mm/transparent_hugepage/enabled at madvise";
  }
  return finding;
}

Finding Kernels() {
  const absl::StatusOr<const KernelTable*> table = CpuKernels();
  if (!table.ok()) {
    return {Verdict::kMissing, "kernels", std::string(table.status().message()), "this build cannot compute here"};
  }
  Finding finding{.subject = "kernels", .what = std::string((*table)->name)};
  if ((*table)->name.find("portable") != std::string_view::npos) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "no kernels for this CPU's vector instructions: everything works, several times slower";
  }
  return finding;
}

Finding SharedMemory() {
  struct statvfs fs {};
  if (statvfs("/dev/shm", &fs) != 0) {
    return {Verdict::kWarn, "/dev/shm", "not there", "UCX falls back to slower transports without shared memory"};
  }
  const double total = static_cast<double>(fs.f_blocks) * fs.f_frsize,
               free = static_cast<double>(fs.f_bavail) * fs.f_frsize;
  Finding finding{.subject = "/dev/shm", .what = Gibibytes(free) + " free of " + Gibibytes(total)};
  if (free < 256.0 * 1048576) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "the data plane between ranks wants 256 MiB or more (containers: --shm-size=1g)";
  }
  return finding;
}

Finding Ucx() {
  const absl::StatusOr<std::vector<std::string>> names = UcxTransports();
  if (!names.ok() || names->empty()) {
    return {Verdict::kWarn, "ucx", names.ok() ? "no transports" : std::string(names.status().message()),
            "ranks in processes of their own need UCX; --transport=inproc works without"};
  }
  Finding finding{.subject = "ucx", .what = absl::StrJoin(*names, " ")};
  const std::string all = " " + finding.what + " ";
  if (all.find(" posix ") == std::string::npos && all.find(" sysv ") == std::string::npos) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "no shared-memory transport: ranks of one machine talk over TCP";
  }
  return finding;
}

Finding Limit(std::string_view subject, int resource, double wanted, const char* unit, double divisor,
              std::string advice) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  auto text = [&](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("unlimited") : absl::StrFormat("%.0f%s", value / divisor, unit);
  };
  Finding finding{.subject = subject,
                  .what = absl::StrCat(text(limit.rlim_cur), " (hard limit ", text(limit.rlim_max), ")")};
  if (limit.rlim_cur != RLIM_INFINITY && static_cast<double>(limit.rlim_cur) < wanted) {
    finding.verdict = Verdict::kWarn;
    finding.advice = std::move(advice);
  }
  return finding;
}

std::vector<Finding> Findings() {
  std::vector<Finding> findings = {
      Cores(),
      Memory(),
      HugePages(),
      Kernels(),
      SharedMemory(),
      Ucx(),
      Limit("open files", RLIMIT_NOFILE, 4096, "", 1, "each client connection takes one: ulimit -n 20000"),
      Limit("locked memory", RLIMIT_MEMLOCK, 1 << 20, " KiB", 1024,
            "RDMA needs locked memory (ulimit -l unlimited); shared memory and TCP do not"),
  };
  for (Finding& finding : GpuFindings()) findings.push_back(std::move(finding));
  return findings;
}

const char* NameOf(Verdict verdict) {
  return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarn ? "warn" : "MISSING";
}

void Print(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    std::printf("%-8s %-14s %s\n", NameOf(finding.verdict), finding.subject.data(), finding.what.c_str());
    if (!finding.advice.empty()) std::printf("%-23s %s\n", "", finding.advice.c_str());
  }
}

void PrintJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"subject", std::string(finding.subject)},
                    {"verdict", absl::AsciiStrToLower(NameOf(finding.verdict))},
                    {"what", finding.what}});
    if (!finding.advice.empty()) list.back()["advice"] = finding.advice;
  }
  std::printf("%s\n", list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

int DoctorMain(const Arguments& arguments) {
  DoctorOptions options;
  if (const auto code = ParseCommandLine(kDoctorCommand, arguments, options)) return *code;
  const std::vector<Finding> findings = Findings();
  options.json ? PrintJson(findings) : Print(findings);
  const bool missing = std::any_of(findings.begin(), findings.end(),
                                   [](const Finding& finding) { return finding.verdict == Verdict::kMissing; });
  return missing ? kExitFailure : kExitOk;
}

}  // namespace

const Command kDoctorCommand = {
    .name = "doctor",
    .summary = "say what this machine offers and what is missing",
    .synopsis = "[--json]",
    .about =
        "Says of this machine what Winnow uses: ok, warn with advice, or MISSING, which ends it with exit code 1.\n",
    .options = Declared<DoctorOptions>,
    .run = DoctorMain};

}  // namespace winnow
