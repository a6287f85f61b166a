#pragma once
#include <string>
#include <vector>

// The subcommands of the `winnow` binary. Each gets the arguments after its name and returns the process's exit code:
// 0, 1 for a failure, 2 for a wrong command line.

namespace winnow {

using Arguments = std::vector<std::string>;

int UpMain(const Arguments& arguments);
int RouterMain(const Arguments& arguments);
int InferenceRankMain(const Arguments& arguments);
int CacheRankMain(const Arguments& arguments);
int GenerateMain(const Arguments& arguments);
int BatchMain(const Arguments& arguments);
int StatusMain(const Arguments& arguments);
int TopMain(const Arguments& arguments);
int TimelineMain(const Arguments& arguments);
int BenchMain(const Arguments& arguments);
int BenchEngineMain(const Arguments& arguments);
int BenchServeMain(const Arguments& arguments);
int PlanMain(const Arguments& arguments);
int SelectionMain(const Arguments& arguments);
int DoctorMain(const Arguments& arguments);
int ProfileHeadsMain(const Arguments& arguments);
int ConfigMain(const Arguments& arguments);
int DeployMain(const Arguments& arguments);
int KeysMain(const Arguments& arguments);
int DemoMain(const Arguments& arguments);

}  // namespace winnow
