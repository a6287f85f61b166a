#include "cmd/up/advice.h"

#include <csignal>

namespace winnow {
namespace {

struct Advice {
  std::string_view words;
  std::string_view what_to_do;
};

constexpr Advice kAdvice[] = {
    {"not fit",
     "ask for less with --cache-memory, --slot-memory, --max-context or --max-running; `winnow plan` says what would "
     "fit"},
    {"in use",
     "stop what listens there, or name other ports with --http, --grpc and --metrics (port 0 takes a free one)"},
    {"rchitecture", "README.md lists the architectures that are served"},
    {"tokenizer.json", "see whether all files of the model are in the folder"},
    {"tokenizer.model", "docs/models.md lists the tokenizers that are read; see whether the file is whole"},
    {".tiktoken", "docs/models.md lists the tokenizers that are read; see whether the file is whole"},
    {"vocab.txt", "docs/models.md lists the tokenizers that are read; see whether the file is whole"},
    {"safetensors", "see whether all files of the model are in the folder, and whole"},
    {"CUDA", "`winnow doctor` says what the GPUs lack; --device=cpu does without"},
    {"GPU", "`winnow doctor` says what the GPUs lack; --device=cpu does without"},
};
constexpr std::string_view kKilled =
    "the system may have killed it for want of memory (dmesg says so): ask for less with --cache-memory, "
    "--slot-memory or --max-context";
constexpr std::string_view kOtherwise = "--log-level=debug says more, and `winnow doctor` looks at this machine";

}  // namespace

std::string AdviceFor(std::string_view words, int signal_number) {
  if (signal_number == SIGKILL) return std::string(kKilled);
  for (const Advice& advice : kAdvice) {
    if (words.find(advice.words) != std::string_view::npos) return std::string(advice.what_to_do);
  }
  return std::string(kOtherwise);
}

absl::Status WithAdvice(const absl::Status& reason, int signal_number) {
  if (reason.ok()) return reason;
  const std::string words(reason.message());
  return absl::Status(reason.code(), absl::StrCat(words, "; ", AdviceFor(words, signal_number)));
}

}  // namespace winnow
